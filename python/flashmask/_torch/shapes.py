# SPDX-License-Identifier: Apache-2.0
"""The operators without data: the shapes and dtypes of their results."""

from __future__ import annotations

from torch import Tensor

from flashmask._plans.call import Call
from flashmask._torch.plans.operands import key_gradient_dtype, lse_dtype
from flashmask._torch.schemas import Gradients, Outputs, OutputsWithMaxScores


def forward_fake(q: Tensor, k: Tensor, v: Tensor, call: Call) -> Outputs:
    """Returns empty o and lse, also for tensors on meta."""
    check_meta(q, k=k, v=v, mask=call.mask, block_mask=call.block_mask, sinks=call.sinks)
    check_meta(
        q, alibi_slopes=call.alibi_slopes, query_positions=call.query_positions, key_positions=call.key_positions
    )
    check_meta(q, bias=call.bias, **{f"operand {i}": each for i, each in enumerate(call.reads)})
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.ndim != 4:
            raise ValueError(f"{name} has shape {list(tensor.shape)}; expected (batch, sequence, heads, head dim)")
    batch, rows, heads, _ = q.shape
    return q.new_empty((batch, rows, heads, v.shape[3])), q.new_empty((batch, heads, rows), dtype=lse_dtype(q.dtype))


def forward_with_max_scores_fake(q: Tensor, k: Tensor, v: Tensor, call: Call) -> OutputsWithMaxScores:
    o, lse = forward_fake(q, k, v, call)
    return o, lse, lse.new_empty(lse.shape)


def forward_tangents_fake(q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, *others: object) -> Outputs:
    """Returns empty tangents of o and lse."""
    return o.new_empty(o.shape), lse.new_empty(lse.shape)


def check_meta(q: Tensor, **tensors: Tensor | None) -> None:
    """Refuses tensors without values beside a q with values: dispatch would compute nothing."""
    for name, tensor in tensors.items():
        if tensor is not None and tensor.is_meta and not q.is_meta:
            raise ValueError(f"{name} is on meta; expected {q.device}, the device of q")


def backward_fake(
    grad_o: Tensor,
    grad_lse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    call: Call,
    float32_key_gradients: bool = False,
    bias_gradient: bool = False,
) -> Gradients:
    """Returns empty gradients of q, k and v, of the sinks where the call has some, and of the bias where asked for."""
    dtype = key_gradient_dtype(q.dtype, float32_key_gradients)
    gradients: Gradients = q.new_empty(q.shape), k.new_empty(k.shape, dtype=dtype), v.new_empty(v.shape, dtype=dtype)
    of_call = call.sinks, call.bias if bias_gradient else None
    return *gradients, *(each.new_empty(each.shape) for each in of_call if each is not None)


def snapshot_fake(mask: Tensor) -> Tensor:
    return mask.new_empty(mask.shape)
