// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "plan/linear.h"

namespace flashmask::cuda {

/// Says that a head dim is no multiple of 8 or above what a kernel takes; empty if it is neither.
std::string dims_refusal(const LinearProblem& problem, std::int64_t most_keys, std::int64_t most_values);

/// An entry of the table of kernels of linear attention on GPUs: checks and memory, which all families share. `launch`
/// returns the bytes of workspace that a call takes; where `workspace` is null it does nothing else.
class LinearEntry : public LinearKernel {
 public:
  using LinearKernel::LinearKernel;

  std::size_t workspace_bytes(const LinearPlanContent& plan, const LinearForwardTensors& tensors) const final;
  std::size_t workspace_bytes(const LinearPlanContent& plan, const LinearBackwardTensors& tensors) const final;
  void forward(const LinearPlanContent& plan, const LinearForwardTensors& tensors,
               const Execution& execution) const final;
  void backward(const LinearPlanContent& plan, const LinearBackwardTensors& tensors,
                const Execution& execution) const final;

 protected:
  virtual std::size_t launch(const LinearPlanContent& plan, const LinearForwardTensors& tensors, std::byte* workspace,
                             void* stream) const = 0;
  virtual std::size_t launch(const LinearPlanContent& plan, const LinearBackwardTensors& tensors, std::byte* workspace,
                             void* stream) const = 0;

 private:
  template <class Tensors>
  std::size_t bytes_of(const LinearPlanContent& plan, const Tensors& tensors) const;
  template <class Tensors>
  void run(const char* call, const LinearPlanContent& plan, const Tensors& tensors, const Execution& execution) const;
};

}  // namespace flashmask::cuda
