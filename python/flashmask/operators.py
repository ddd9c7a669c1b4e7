# SPDX-License-Identifier: Apache-2.0
"""The operators flashmask::forward and flashmask::backward, their fake kernels, autograd and autocast.

Importing this module adds them to torch.ops.flashmask; the first call with a torch tensor imports it too. They take
plain tensors and numbers, so that a program that calls them can be traced, saved and checkpointed:

- q (batch, query length, query heads, head dim), k (batch, key length, kv heads, head dim), v (batch, key length, kv
  heads, value dim): float32, bfloat16 or float16, or float64 for the reference; any strides.
- mask: None: everything is visible, or with `causal` a causal mask; uint8 [n]: Mask.tensor or Plan.tensor; or int32
  [batch, heads, columns, vectors]: startend_row_indices, which `causal` says how to read.
  On a GPU also booleans [batch, heads, rows, columns], True = visible.
- block_mask: None or int32 [batch, heads, ceil(rows / 128), ceil(columns / 128)], 1 = keep.
- scale: 0 stands for 1 / sqrt(head dim). dropout: a probability. seed_offset: int64 [2] where dropout is not 0.
- sinks: None, or float32 or q's dtype, [query heads] or [batch, query heads, query length]. Their gradient comes from
  flashmask::backward_with_sinks, which takes them after lse; flashmask::backward does not take them, since o and lse
  already contain their effect.
- dropout_place: None, or int32 [n] on q's device, as flashmask_dropout_place_pack() writes it: it says which heads,
  rows and columns of a larger problem this call computes, so that dropout decides as in that problem.
- float32_key_gradients, in the backward only: returns the gradients of k and v in float32 for bfloat16 or float16
  tensors, to be added to others, such as those of other ranks, and rounded once. Not with a Plan.tensor that reorders.
- change: the steps that are done to scores, such as "softcap(50.0) | alibi": ScoreChange.text of flashmask.scores; "":
  they stay as they are.
- alibi_slopes, query_positions, key_positions: None; or where the change adds alibi, float32 [query heads] or [batch,
  query heads], beside None or numbers [1 or batch, tokens]: scores lose slope · |query position - key position|. They
  have no gradient.
- deterministic: makes gradients the same bits on every run; on the CPU they always are.
- invariant: gives every document of the mask the bits that it has alone; on a GPU without dropout and ALiBi.
- most_documents: 0, or what RowIndices.most_documents says of `mask`, so that the host need not wait for it where
  invariant is asked for.
- cudnn, on a GPU: 0: FLASHMASK_BACKEND and the GPU decide whose kernels compute; -1: this library's; 2: NVIDIA's
  cudnn.flex_attention, or NotImplementedError; 1: the same, or ours where it does not serve the call.
- o (batch, query length, query heads, value dim), contiguous; lse (batch, query heads, query length), float32, or
  float64 if q is.

flashmask::forward_with_max_scores takes the same and also returns max_scores, with the shape and dtype of lse: the
largest score that each row sees, which has no gradient.

flashmask::merge joins results over disjoint keys, given as lists of o and of lse; flashmask::merge_backward is its
gradient.

flashmask::snapshot copies a mask that lies on a GPU. Calls with the copy share a plan; with any other tensor each call
makes its own, unless the package's functions were called with that tensor outside torch.compile.
"""

from typing import Any

from torch import Tensor

from flashmask._plans.call import Call
from flashmask._torch import operators, plan_pytree, pytree
from flashmask._torch.merge import merge_backward_operator, merge_operator
from flashmask._torch.schemas import (
    Outputs,
    backward_operator,
    backward_with_sinks_operator,
    forward_operator,
    forward_with_max_scores_operator,
    snapshot_operator,
)

__all__ = [
    "backward_operator",
    "backward_with_sinks_operator",
    "forward",
    "forward_operator",
    "forward_with_max_scores_operator",
    "merge_backward_operator",
    "merge_operator",
    "snapshot_operator",
]

pytree.register()
plan_pytree.register()


def forward(q: Tensor, k: Tensor, v: Tensor, *arguments: Any, **named: Any) -> Outputs:
    """Calls flashmask::forward as the package's functions do: by the shortest path, with one plan for all layers."""
    return operators.forward(q, k, v, Call(*arguments, **named))
