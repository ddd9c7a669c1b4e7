# SPDX-License-Identifier: Apache-2.0
"""attention() for torch tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from flashmask._arguments import described
from flashmask._mask import Mask
from flashmask._plans.call import TENSOR, Call
from flashmask._plans.plan import Plan, check_booleans
from flashmask._rows import RowIndices
from flashmask._torch.operators import forward
from flashmask._torch.packing import can_be_read
from flashmask._torch.shared import for_operators


def attention_of_tensors(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Any,
    plan: Plan | None,
    scale: float,
    heads_first: bool,
    deterministic: bool,
    sinks: Any,
    softcap: float,
    alibi: tuple[Any, Any, Any],
    invariant: bool,
    cudnn: int,
    bias: tuple[int, Any, int],
) -> tuple[Tensor, Tensor]:
    """Returns o and lse; `scale` 0 stands for 1 / sqrt(head dim), `softcap` 0 for none; `alibi`: slopes, positions.

    `bias`: its kind, the tensor, and the entry of distance 0.
    """
    if not (isinstance(q, Tensor) and isinstance(k, Tensor) and isinstance(v, Tensor)):
        _refuse_types(q=q, k=k, v=v)
    if heads_first:
        q, k, v = heads_last(q, k, v)
    tensor, causal, documents = None, False, 0
    if plan is not None:
        if not torch.compiler.is_compiling():  # checks here would guard on lengths; the operator makes them
            plan.check_fits(q.shape, k.shape, v.shape)
        tensor = for_operators(plan.tensor)
    else:
        tensor, causal = mask_tensor(mask, q)
        if invariant and isinstance(mask, RowIndices):
            documents = mask.most_documents or 0
    call = Call(
        tensor,
        causal=causal,
        scale=scale,
        deterministic=deterministic,
        sinks=sinks_tensor(sinks),
        softcap=softcap,
        invariant=invariant,
        cudnn=cudnn,
        most_documents=documents,
    )
    if alibi[0] is not None:
        call = with_alibi(call, *alibi)
    if bias[0]:
        kind, values, origin = bias
        if not isinstance(values, Tensor):
            name = "bias" if kind == TENSOR else "distance_bias"
            raise TypeError(f"{name} is {described(values)}; expected a torch tensor, as the others are")
        call = call._replace(bias_kind=kind, bias=values, distance_origin=origin)
    o, lse = forward(q, k, v, call)
    return (o.transpose(1, 2) if heads_first else o), lse


def _refuse_types(**tensors: object) -> None:
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} is {described(tensor)}; expected a torch tensor, as the others are")


def sinks_tensor(sinks: Any) -> Tensor | None:
    """Returns sinks as [heads] or [batch, heads, rows]; models also pass [batch, heads, rows, 1]."""
    if sinks is None:
        return None
    if not isinstance(sinks, Tensor):
        raise TypeError(f"sinks is {described(sinks)}; expected a torch tensor, as the others are")
    return sinks[..., 0] if sinks.ndim == 4 and sinks.shape[3] == 1 else sinks


def with_alibi(call: Call, slopes: Any, query_positions: Any = None, key_positions: Any = None) -> Call:
    """Returns a call with ALiBi; refuses slopes that learn."""
    names = ("alibi_slopes", "query_positions", "key_positions")
    for name, tensor in zip(names, (slopes, query_positions, key_positions), strict=True):
        if tensor is None:
            continue
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} is {described(tensor)}; expected a torch tensor, as the others are")
        if tensor.requires_grad:
            raise ValueError(f"{name} requires a gradient, and none is computed; pass {name}.detach()")
    return call._replace(alibi=True, **dict(zip(names, (slopes, query_positions, key_positions), strict=True)))


def heads_last(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns views (batch, sequence, heads, head dim) of tensors (batch, heads, sequence, head dim)."""
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.ndim != 4:
            raise ValueError(f"{name} has shape {list(tensor.shape)}; expected (batch, heads, sequence, head dim)")
    return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)


def mask_tensor(mask: Any, q: Tensor) -> tuple[Tensor | None, bool]:
    """Returns the operators' arguments for a mask: a tensor or None, and whether row indices are causal."""
    if isinstance(mask, Mask):
        return for_operators(mask.tensor), False
    if mask is None:
        return None, False
    if isinstance(mask, RowIndices):
        if mask.rows is not None and mask.rows != q.shape[1]:
            raise ValueError(f"mask has {mask.rows} rows; expected {q.shape[1]}, the tokens of q")
        return mask.startend_row_indices, mask.causal
    check_booleans(mask)
    if isinstance(mask, Tensor) and not _is_read(mask) and mask.dtype is torch.bool and 2 <= mask.ndim <= 4:
        return mask[(None,) * (4 - mask.ndim)], False
    from flashmask.masks._imports import from_booleans

    made = from_booleans("mask", mask.cpu() if isinstance(mask, Tensor) else mask)
    return for_operators(made.tensor), False


def _is_read(booleans: Tensor) -> bool:
    """Whether booleans become a mask here; the host does not wait for a GPU, and elsewhere there may be no values."""
    if torch.compiler.is_compiling():
        return not (booleans.is_cuda or booleans.is_meta)  # a graph breaks where it reads them
    return can_be_read(booleans)
