#pragma once

#include "flashmask/executor.h"
#include "flashmask/export.h"
#include "flashmask/tensor.h"

namespace flashmask {

/// Two results of attention of the same queries over disjoint keys: o1, o2 (batch, rows, heads, dim) of one dtype,
/// lse1, lse2 (batch, heads, rows) float32. Any strides, the last one 1.
struct MergeTensors {
  TensorView o1, lse1, o2, lse2;  ///< in
  TensorView o, lse;              ///< out; may be those of either side
};

/// Attention over the keys of both: lse = log(exp(lse1) + exp(lse2)), o = exp(lse1 − lse) o1 + exp(lse2 − lse) o2, in
/// float32. A side counts for nothing where its lse is −inf, whatever its o holds there; where both are, o = 0 and
/// lse = −inf. More sides are merged one after another, in any order. CPU tensors.
FLASHMASK_API void merge(const MergeTensors& tensors, Executor& executor = default_executor());

struct MergeGradients {
  TensorView o1, lse1, o2, lse2, o, lse, grad_o;      ///< in
  TensorView grad_lse;                                ///< in, shape and dtype of lse; may be absent
  TensorView grad_o1, grad_lse1, grad_o2, grad_lse2;  ///< out; every element is written
};

/// The gradients of what was merged: with w = exp(lse1 − lse), grad_o1 = w grad_o and
/// grad_lse1 = w (grad_o · (o1 − o) + grad_lse), and the same for the other side. Empty rows get 0.
FLASHMASK_API void merge_backward(const MergeGradients& tensors, Executor& executor = default_executor());

}  // namespace flashmask
