// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "flashmask/attention.h"

namespace flashmask {

/// Checks the tensors of one call, one after another.
class TensorCheck {
 public:
  using Shape = std::vector<std::int64_t>;

  TensorCheck(const char* call, Device device) : call_(call), device_(device) {}

  /// Throws Status::invalid_argument, naming the tensor, unless it is as expected and its memory can be used.
  void operator()(const char* name, const TensorView& tensor, DType dtype, const Shape& expected) const;

  /// Throws Status::invalid_argument with the call, the tensor and what is wrong with it.
  [[noreturn]] void fail(const char* name, const std::string& what) const;

 private:
  void check_shape(const char* name, const TensorView& tensor, const Shape& expected) const;
  void check_strides(const char* name, const TensorView& tensor) const;

  const char* call_;
  Device device_;
};

/// A tensor and what messages call it.
struct NamedTensor {
  std::string name;
  const TensorView& tensor;
};

/// Throws Status::invalid_argument unless each output has memory of its own: kernels differ in what they have read
/// before they write over it.
void check_outputs(const TensorCheck& check, std::span<const NamedTensor> outputs, std::span<const NamedTensor> inputs);

/// Throws Status::invalid_argument, naming the first tensor that does not fit the problem.
void check_tensors(const Problem& problem, const ForwardTensors& tensors);
void check_tensors(const Problem& problem, const BackwardTensors& tensors);
void check_tensors(const Problem& problem, const TangentTensors& tensors);

/// Whether a call wants the sums of grad_k and grad_v in float32, beside 16-bit tensors.
bool has_float32_key_gradients(const Problem& problem, const BackwardTensors& tensors);

}  // namespace flashmask
