// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "flashmask/attention.h"
#include "flashmask/export.h"
#include "flashmask/tensor.h"

namespace flashmask {

/// A result of attention over some keys: o (batch, rows, heads, dim), lse (batch, heads, rows) float32. Any strides,
/// the last one 1.
struct MergePart {
  TensorView o, lse;
};

/// Attention of the same queries over disjoint keys: at least one part, all of one shape, dtype and device.
struct MergeTensors {
  std::vector<MergePart> parts;  ///< in
  TensorView o, lse;             ///< out; may be a part's own tensors, and overlaps no other
};

/// Computes attention over the keys of all parts: lse = log Σ exp(lseᵢ), o = Σ exp(lseᵢ − lse) oᵢ, in float32 and in
/// the order of the parts, so that results are bit-identical on every run. A part counts for nothing where its lse is
/// −inf, or +inf as FlashAttention writes it for rows that saw nothing, whatever its o holds there; where all are, o =
/// 0 and lse = −inf. Give sinks to the attention call of exactly one part, no matter which: its lse includes them, and
/// the merged result counts them once. On a GPU the parts are read on the stream and the call returns before the work
/// is done; the parts must form at most 32 groups that are evenly spaced in memory. Only the executor and the stream of
/// `execution` are used.
FLASHMASK_API void merge(const MergeTensors& tensors, const Execution& execution = {});

/// A part and where its gradients go.
struct MergePartGradients {
  TensorView o, lse;            ///< in
  TensorView grad_o, grad_lse;  ///< out; every element is written
};

struct MergeGradients {
  std::vector<MergePartGradients> parts;
  TensorView o, lse, grad_o;  ///< in: what was merged, and the gradient of o
  TensorView grad_lse = {};   ///< in, shape and dtype of lse; may be absent
};

/// Computes the gradients of the parts: with w = exp(lseᵢ − lse), the gradient of oᵢ is w grad_o and that of lseᵢ is
/// w (grad_o · (oᵢ − o) + grad_lse). Empty rows get 0.
FLASHMASK_API void merge_backward(const MergeGradients& tensors, const Execution& execution = {});

}  // namespace flashmask
