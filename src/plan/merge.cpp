// SPDX-License-Identifier: Apache-2.0
#include "plan/merge.h"

#include <string>
#include <vector>

#include "flashmask/error.h"
#include "plan/executor_of.h"
#include "plan/tensor_checks.h"

namespace flashmask {
namespace {

/// Checks the tensors of a call against the first of them, an output of attention.
class MergeCheck {
 public:
  MergeCheck(const char* call, const TensorView& first) : check_(call, first.device), dtype_(first.dtype) {
    const auto refuse = [&](const std::string& what) {
      throw Error(Status::invalid_argument, std::string(call) + ": o1: " + what);
    };
    if (first.rank != 4) refuse("rank is " + std::to_string(first.rank) + "; expected 4, (batch, rows, heads, dim)");
    for (const std::int64_t size : first.shape)
      if (size < 0) refuse("a size is " + std::to_string(size) + "; expected 0 or more");
    const auto& [batch, rows, heads, dim] = first.shape;
    extent_ = {batch, rows, heads, dim};
  }

  void values(const std::string& name, const TensorView& tensor) const {
    check_(name.c_str(), tensor, dtype_, {extent_.batch, extent_.rows, extent_.heads, extent_.dim});
  }
  void lse(const std::string& name, const TensorView& tensor) const {
    check_(name.c_str(), tensor, DType::f32, {extent_.batch, extent_.heads, extent_.rows});
  }

  const MergeExtent& extent() const { return extent_; }
  const TensorCheck& tensors() const { return check_; }

 private:
  TensorCheck check_;
  DType dtype_;
  MergeExtent extent_{};
};

/// Checks the parts of MergeTensors or MergeGradients and what they merge to.
template <class Tensors>
MergeCheck check_merged(const char* call, const Tensors& tensors) {
  if (tensors.parts.empty())
    throw Error(Status::invalid_argument, std::string(call) + ": there are no parts; expected at least one");
  const MergeCheck check(call, tensors.parts.front().o);
  for (std::size_t i = 0; i < tensors.parts.size(); ++i) {
    check.values("o" + std::to_string(i + 1), tensors.parts[i].o);
    check.lse("lse" + std::to_string(i + 1), tensors.parts[i].lse);
  }
  check.values("o", tensors.o);
  check.lse("lse", tensors.lse);
  return check;
}

bool is_same(const TensorView& a, const TensorView& b) {
  return a.data == b.data && a.dtype == b.dtype && a.shape == b.shape && a.strides == b.strides;
}

/// An output may be the very tensor that it is made from, since each element is read before it is written.
MergeExtent check(const MergeTensors& tensors) {
  const MergeCheck check = check_merged("merge", tensors);
  std::vector<NamedTensor> inputs;
  for (std::size_t i = 0; i < tensors.parts.size(); ++i) {
    const auto& [o, lse] = tensors.parts[i];
    if (!is_same(o, tensors.o)) inputs.push_back({"o" + std::to_string(i + 1), o});
    if (!is_same(lse, tensors.lse)) inputs.push_back({"lse" + std::to_string(i + 1), lse});
  }
  const NamedTensor outputs[] = {{"o", tensors.o}, {"lse", tensors.lse}};
  check_outputs(check.tensors(), outputs, inputs);
  return check.extent();
}

MergeExtent check(const MergeGradients& tensors) {
  const MergeCheck check = check_merged("merge_backward", tensors);
  check.values("grad_o", tensors.grad_o);
  if (tensors.grad_lse.present()) check.lse("grad_lse", tensors.grad_lse);
  std::vector<NamedTensor> outputs;
  std::vector<NamedTensor> inputs = {
      {"o", tensors.o}, {"lse", tensors.lse}, {"grad_o", tensors.grad_o}, {"grad_lse", tensors.grad_lse}};
  for (std::size_t i = 0; i < tensors.parts.size(); ++i) {
    const MergePartGradients& part = tensors.parts[i];
    const std::string number = std::to_string(i + 1);
    check.values("grad_o" + number, part.grad_o);
    check.lse("grad_lse" + number, part.grad_lse);
    outputs.push_back({"grad_o" + number, part.grad_o});
    outputs.push_back({"grad_lse" + number, part.grad_lse});
    inputs.push_back({"o" + number, part.o});
    inputs.push_back({"lse" + number, part.lse});
  }
  check_outputs(check.tensors(), outputs, inputs);
  return check.extent();
}

bool is_empty(const MergeExtent& extent) { return extent.batch == 0 || extent.rows == 0 || extent.heads == 0; }

}  // namespace

void merge(const MergeTensors& tensors, const Execution& execution) {
  const MergeExtent extent = check(tensors);
  if (is_empty(extent)) return;
  if (tensors.o.device.type == DeviceType::cpu)
    merge_on_cpu(tensors, extent, executor_of(execution));
  else
    merge_on_gpu(tensors, extent, execution.stream);
}

void merge_backward(const MergeGradients& tensors, const Execution& execution) {
  const MergeExtent extent = check(tensors);
  if (is_empty(extent)) return;
  if (tensors.o.device.type == DeviceType::cpu)
    merge_backward_on_cpu(tensors, extent, executor_of(execution));
  else
    merge_backward_on_gpu(tensors, extent, execution.stream);
}

}  // namespace flashmask
