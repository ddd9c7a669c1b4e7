// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "flashmask/attention.h"
#include "flashmask/export.h"
#include "flashmask/mask.h"
#include "flashmask/nodes.h"
#include "flashmask/problem.h"
#include "flashmask/tensor.h"

/// Linear attention with a decay under masks that are trees: plain, RetNet, Mamba-2's scalar decay, and mLSTM with its
/// normaliser and stabiliser (docs/linear.md).
namespace flashmask {

/// Shapes, dtype and kind of one call. With W(i, j) = e^(log_forget of j + 1 … i along i's path + log_input of j) where
/// row i sees column j, else 0:
///
///     o(i) = Σ_j W(i, j) scale (q(i) · k(j)) v(j), and if normalize divided by max(|Σ_j W(i, j) scale (q(i) · k(j))|,
///     1)
///
/// q, k (batch, length, key_heads, key_dim); v, o (batch, length, heads, value_dim); gates (batch, length, heads),
/// float32.
struct LinearProblem {
  std::int64_t batch = 1;
  std::int64_t length = 0;     ///< tokens; batch · length is at most 2^31 − 1
  std::int64_t heads = 1;      ///< of v, the gates and o; a multiple of key_heads, and 0 where these are 0
  std::int64_t key_heads = 1;  ///< of q and k; head h reads key head h / (heads / key_heads)
  std::int64_t key_dim = 0;    ///< 1 … kMaxHeadDim
  std::int64_t value_dim = 0;  ///< 1 … kMaxHeadDim
  DType dtype = DType::f32;    ///< of q, k, v and o
  Device device = {};
  std::optional<float> scale = {};  ///< nullopt: 1 / sqrt(key_dim)
  bool normalize = false;           ///< divide as mLSTM does

  FLASHMASK_API float query_scale() const;
};

/// Throws Status::invalid_argument naming the first field that is out of range.
FLASHMASK_API void validate(const LinearProblem& problem);

/// States of a recurrence, float32, of `count` nodes. What a state stands for is e^log_scale times what it holds, and
/// so is the normaliser: log_scale, at least 0, keeps large input gates within float32. Gradients of states, given and
/// returned, are those of what they hold, as if log_scale were a constant.
struct LinearStates {
  TensorView state;       ///< (count, heads, key_dim, value_dim): Σ W k vᵀ
  TensorView normalizer;  ///< (count, heads, key_dim): Σ W k; absent unless the problem normalizes
  TensorView log_scale;   ///< (count, heads); absent among gradients: the scale is no variable
};

struct LinearPlanContent;

/// Everything decided before data arrives: the nodes of the mask and the kernel. Shared by all layers, forward and
/// backward, from any number of threads. A moved-from plan throws Status::invalid_argument when it is used.
class FLASHMASK_API LinearPlan {
 public:
  explicit LinearPlan(std::shared_ptr<const LinearPlanContent> content) : content_(std::move(content)) {}

  const LinearProblem& problem() const;
  /// The nodes of the whole batch: final states are in their order, initial ones in that of the roots, which are the
  /// nodes without a parent.
  const Nodes& nodes() const;
  std::int64_t roots() const;
  const std::string& kernel() const;  ///< the name of the forward's, one of linear_kernels()
  /// The name of the backward's. Throws Status::unsupported where there is none.
  const std::string& backward_kernel() const;
  const LinearPlanContent& content() const;  ///< for the library itself

 private:
  std::shared_ptr<const LinearPlanContent> content_;
};

/// Finds the nodes of a mask (length × length; batch 1, which every batch entry shares, or the problem's) and chooses a
/// kernel: the best that runs here, or the first whose name begins with `kernel`. Throws Status::invalid_argument,
/// naming the first column that does not fit, where the mask is no tree, and Status::unsupported where no kernel serves
/// the problem: on GPUs they take bfloat16 and float16, keys to 256 and values to 512 dims, multiples of
/// 8. Where the kernel named has no backward of a problem, another one's is taken.
FLASHMASK_API LinearPlan linear_plan(const Mask& mask, const LinearProblem& problem, const std::string& kernel = {});

/// An entry of the table of kernels of linear attention.
struct LinearKernelInfo {
  std::string
      name;  ///< <arch>.linear.<dtype>[.d<key dim>v<value dim>].s<tokens of a step>, such as avx512.linear.f32.s64
  std::string arch;  ///< as in KernelInfo
  DType dtype = DType::f32;
  DeviceType device = DeviceType::cpu;
  std::int64_t key_dim = 0, value_dim = 0;  ///< the largest that it takes
};

/// Returns every kernel of linear attention of this build, best first for each device and dtype.
FLASHMASK_API std::vector<LinearKernelInfo> linear_kernels();

/// Says why plans on this machine do not take a kernel; empty when they do.
FLASHMASK_API std::string why_not_linear(const std::string& kernel);

/// Any strides, the last one 1. Each element of an output has memory of its own, as ForwardTensors says.
struct LinearForwardTensors {
  TensorView q, k, v;          ///< in
  TensorView log_forget = {};  ///< in; absent: 0, no decay. At most 0; below −2^20 it counts as −2^20, which resets
  TensorView log_input = {};   ///< in; absent: 0
  LinearStates initial = {};   ///< in, one per root; absent: zero
  TensorView o;                ///< out; zeros for padding
  LinearStates final = {};     ///< out, one per node; absent: not wanted
};

struct LinearBackwardTensors {
  TensorView q, k, v;                                    ///< in
  TensorView log_forget = {}, log_input = {};            ///< in, as in the forward
  LinearStates initial = {};                             ///< in, as in the forward
  TensorView o, grad_o;                                  ///< in
  LinearStates grad_final = {};                          ///< in, one per node; absent: zero
  TensorView grad_q, grad_k, grad_v;                     ///< out; zeros for padding
  TensorView grad_log_forget = {}, grad_log_input = {};  ///< out; absent: not wanted
  LinearStates grad_initial = {};                        ///< out, one per root; absent: not wanted
};

/// Returns the bytes of GPU memory that a call takes as Execution::workspace; 0 on the CPU. Where a call is given none,
/// it allocates them for itself. Of the tensors only which are present counts.
FLASHMASK_API std::size_t linear_workspace_bytes(const LinearPlan& plan, const LinearForwardTensors& tensors);
FLASHMASK_API std::size_t linear_workspace_bytes(const LinearPlan& plan, const LinearBackwardTensors& tensors);

/// Computes linear attention, walking each tree of each head in steps of 64 tokens with its state in float32. A tree
/// has the bits that it has alone: anywhere in any batch, for any number of threads. Rows of other trees are never read
/// into a sum, so that NaN stays in its tree. On a GPU the call returns before the work is done.
FLASHMASK_API void linear_forward(const LinearPlan& plan, const LinearForwardTensors& tensors,
                                  const Execution& execution = {});

/// Computes the gradients of everything that the forward reads but log_scale, with the same guarantees.
FLASHMASK_API void linear_backward(const LinearPlan& plan, const LinearBackwardTensors& tensors,
                                   const Execution& execution = {});

}  // namespace flashmask
