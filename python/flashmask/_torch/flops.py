# SPDX-License-Identifier: Apache-2.0
"""What torch.utils.flop_counter counts of the operators: the visible pairs of queries and keys, whatever kernels do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import flop_counter
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from flashmask._abi.problem import DTYPES, Problem
from flashmask._mask import Mask
from flashmask._plans.call import Call
from flashmask._torch.plans.mask_source import named_mask
from flashmask._torch.plans.operands import code_of
from flashmask._torch.shared import is_traced
from flashmask.masks._imports import from_booleans


def forward_flops(q: Tensor, k: Tensor, v: Tensor, call: Call) -> int:
    """Counts two products of each visible pair: q·k and its probability times v."""
    return 2 * _visible_pairs(q, k, v, call) * (q.shape[3] + v.shape[3])


def forward_tangents_flops(q: Tensor, k: Tensor, v: Tensor, *others: Any) -> int:
    """Counts the products of each visible pair: the scores, theirs with each tangent of q and k, and the two of v."""
    _, _, of_q, of_k, of_v, call, *_ = others  # behind o and lse
    of_scores = 1 + sum(each is not None for each in (of_q, of_k))
    of_values = (of_scores > 1) + (of_v is not None)
    return 2 * _visible_pairs(q, k, v, call) * (of_scores * q.shape[3] + of_values * v.shape[3])


def backward_flops(grad_o: Tensor, grad_lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, *others: Any) -> int:
    """Counts five products of each visible pair, as PyTorch does for its own attention: scores are computed again."""
    _, _, call, *_ = others  # behind o and lse
    return 2 * _visible_pairs(q, k, v, call) * (3 * q.shape[3] + 2 * v.shape[3])


def linear_forward_flops(q: Tensor, k: Tensor, v: Tensor, *others: Any) -> int:
    """Counts two products of each token's recurrence: k vᵀ into the state, and q times the state."""
    return 4 * v.shape[:3].numel() * k.shape[3] * v.shape[3]


def linear_backward_flops(q: Tensor, k: Tensor, v: Tensor, *others: Any) -> int:
    """Counts five: the state again and its gradient, and what each gives to q, to k and to v."""
    return 10 * v.shape[:3].numel() * k.shape[3] * v.shape[3]


def _visible_pairs(q: Tensor, k: Tensor, v: Tensor, call: Call) -> int:
    """Returns how many pairs the mask of a call leaves visible; of a mask without values, how many there are."""
    masks = [mask for mask in (call.mask, call.block_mask) if mask is not None]
    if any(type(mask) is not Tensor or mask.is_meta for mask in masks) or (masks and is_traced()):
        return q.shape[0] * q.shape[2] * q.shape[1] * k.shape[1]
    problem = call.problem((q.shape, k.shape, v.shape), DTYPES[code_of(q, k, v)])
    mask = _mask_of(call, problem)
    each = (problem.batch // mask.shape.batch) * (problem.query_heads // mask.shape.heads)
    return mask.explain().visible_pairs * each


def _mask_of(call: Call, problem: Problem) -> Mask:
    """Waits for masks on a GPU."""
    mask, blocks = (None if each is None else each.cpu() for each in (call.mask, call.block_mask))
    if mask is not None and mask.dtype is torch.bool:
        return from_booleans("mask", mask)
    return named_mask(call._replace(mask=mask, block_mask=blocks), problem).mask


def count_flops(name: str, flops: Callable[..., int]) -> None:
    """Has FlopCounterMode count flashmask::<name>, counters that are counting already included."""
    operator = getattr(torch.ops.flashmask, name)

    def formula(*arguments: Any, out_val: Any = None) -> int:
        return flops(*arguments)

    flop_counter.register_flop_formula(operator, get_raw=True)(formula)
    for mode in _get_current_dispatch_mode_stack():
        counter = getattr(mode, "counter", None)
        if isinstance(counter, flop_counter.FlopCounterMode):
            counter.flop_registry[operator] = formula
