// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "flashmask/executor.h"
#include "flashmask/linear_attention.h"
#include "flashmask/span.h"

namespace flashmask {

/// A root and all nodes below it.
struct LinearTree {
  std::int64_t first_node = 0, nodes = 0;  ///< of the batch's
  std::int64_t root = 0;                   ///< its number among the roots
  std::int64_t tokens = 0;                 ///< from its first to its last
};

/// One entry of the table of kernels of linear attention.
class LinearKernel {
 public:
  LinearKernel(std::string name, DType dtype) : name_(std::move(name)), dtype_(dtype) {}
  virtual ~LinearKernel() = default;

  const std::string& name() const { return name_; }
  DType dtype() const { return dtype_; }

  /// As Kernel::refusal() and Kernel::reservation() in kernel.h.
  virtual std::string refusal() const = 0;
  virtual std::string reservation() const = 0;
  virtual void forward(const LinearPlanContent& plan, const LinearForwardTensors& tensors,
                       Executor& executor) const = 0;
  virtual void backward(const LinearPlanContent& plan, const LinearBackwardTensors& tensors,
                        Executor& executor) const = 0;

 private:
  std::string name_;
  DType dtype_;
};

struct LinearPlanContent {
  LinearProblem problem;
  Nodes nodes;
  std::vector<LinearTree> trees;  ///< the longest first
  std::int64_t roots = 0;
  std::vector<Span> padding;  ///< tokens of the batch in no node
  const LinearKernel* kernel = nullptr;
};

/// Returns the nodes of a problem's whole batch. Throws where the mask does not fit the problem or is no tree.
Nodes linear_nodes(const Mask& mask, const LinearProblem& problem);

/// The entries for CPUs, best first for each dtype.
std::vector<std::unique_ptr<const LinearKernel>> linear_cpu_kernels();

/// Throws Status::invalid_argument, naming the first tensor that does not fit the plan.
void check_tensors(const LinearPlanContent& plan, const LinearForwardTensors& tensors);
void check_tensors(const LinearPlanContent& plan, const LinearBackwardTensors& tensors);

}  // namespace flashmask
