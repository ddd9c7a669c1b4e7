# SPDX-License-Identifier: Apache-2.0
"""attention() for torch tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from flashmask._arguments import described
from flashmask._mask import Mask
from flashmask._options import CallOptions
from flashmask._plans.call import Call
from flashmask._plans.plan import Plan, check_booleans
from flashmask._rows import RowIndices
from flashmask._torch.dropout import seed_offset_of
from flashmask._torch.operators import forward, forward_with_max_scores
from flashmask._torch.packing import can_be_read
from flashmask._torch.shared import for_operators
from flashmask.scores import OPERANDS, ScoreChange


def attention_of_tensors(
    q: Tensor, k: Tensor, v: Tensor, mask: Any, plan: Plan | None, options: CallOptions, with_max_scores: bool = False
) -> tuple[Tensor, ...]:
    """Returns o and lse, perhaps with the largest score of each row."""
    if not (isinstance(q, Tensor) and isinstance(k, Tensor) and isinstance(v, Tensor)):
        _refuse_types(q=q, k=k, v=v)
    if options.heads_first:
        q, k, v = heads_last(q, k, v)
    tensor, causal, documents = None, False, 0
    if plan is not None:
        if not torch.compiler.is_compiling():  # checks here would guard on lengths; the operator makes them
            plan.check_fits(q.shape, k.shape, v.shape)
        tensor = for_operators(plan.tensor)
    else:
        tensor, causal = mask_tensor(mask, q)
        if options.invariant and isinstance(mask, RowIndices):
            documents = mask.most_documents or 0
    seed = drawn_seed(options, q.device)
    call = call_of(options, tensor, causal=causal, seed_offset=seed, most_documents=documents)
    o, *of_rows = (forward_with_max_scores if with_max_scores else forward)(q, k, v, call)
    return (o.transpose(1, 2) if options.heads_first else o), *of_rows


def call_of(options: CallOptions, mask: Tensor | None = None, score: ScoreChange | None = None, **others: Any) -> Call:
    """Returns what the operators are given: a mask, the options, perhaps with another `score`, and fields of Call."""
    score = options.score if score is None else score
    call = Call(
        mask,
        scale=options.scale,
        dropout=options.dropout,
        deterministic=options.deterministic,
        sinks=sinks_tensor(options.sinks),
        invariant=options.invariant,
        change=score.text,
        cudnn=options.cudnn,
        **others,
    )
    if not score.kind and not score.reads:
        return call
    for name, operand in zip(OPERANDS.get(score.kind, ()), score.operands, strict=True):
        if operand is not None:
            _check_operand(name, operand, score.kind == "alibi")
    for i, operand in enumerate(score.reads):
        _check_operand(f"operand {i}", operand, True)
    return call.biased(score)


def drawn_seed(options: CallOptions, device: torch.device) -> Tensor | None:
    """Draws the seed and offset of a call's dropout; None where nothing is dropped."""
    return seed_offset_of(None, options.dropout, device) if options.dropout else None


def _check_operand(name: str, operand: object, constant: bool) -> None:
    if not isinstance(operand, Tensor):
        raise TypeError(f"{name} is {described(operand)}; expected a torch tensor, as the others are")
    if constant and operand.requires_grad:
        raise ValueError(f"{name} requires a gradient, and none is computed; pass {name}.detach()")


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
