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

/// Results of attention of the same queries over disjoint keys, at least one, of one shape, dtype and device.
struct MergeTensors {
  std::vector<MergePart> parts;  ///< in
  TensorView o, lse;             ///< out; may be those of a part
};

/// Attention over the keys of all parts: lse = log Σ exp(lseᵢ), o = Σ exp(lseᵢ − lse) oᵢ, in float32 and in the order
/// of the parts, so that bits repeat. A part counts for nothing where its lse is −inf, whatever its o holds there;
/// where all are, o = 0 and lse = −inf. Sinks are given to the call of one part, any: they are in its lse, and in the
/// merged result once. On a GPU parts are read on the stream and the call returns before the work is
/// done; there at most 32 that do not lie evenly spaced in memory. Of `execution` the executor and the stream are
/// looked at.
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

/// The gradients of what was merged: with w = exp(lseᵢ − lse), those of part i are w grad_o and
/// w (grad_o · (oᵢ − o) + grad_lse). Empty rows get 0.
FLASHMASK_API void merge_backward(const MergeGradients& tensors, const Execution& execution = {});

}  // namespace flashmask
