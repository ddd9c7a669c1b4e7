# SPDX-License-Identifier: Apache-2.0
"""Liger-kernel's fused linear cross-entropy, where it is installed."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from flashmask._torch.autograd import once_differentiable
from flashmask.data._examples import IGNORED

ONCE = "linear_cross_entropy is differentiable once; make all logits and use torch's cross_entropy for more"
"""Why a second derivative is refused."""
_DTYPES = (torch.bfloat16, torch.float16)


class _Once(torch.autograd.Function):
    """Passes a loss on, with create_graph refused, whose second derivative Liger's function takes for 0."""

    @staticmethod
    def forward(ctx: Any, total: Tensor) -> Tensor:
        return total.view_as(total)

    @staticmethod
    @once_differentiable(ONCE)
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


@functools.cache
def _function() -> Any:
    """Returns Liger's autograd function, or None if it is not installed."""
    try:
        from liger_kernel.ops import fused_linear_cross_entropy
    except ImportError:
        return None
    return fused_linear_cross_entropy.LigerFusedLinearCrossEntropyFunction


def uses_liger(rows: Tensor, weight: Tensor) -> bool:
    """Whether by_liger() can compute the loss of such rows and weights."""
    return rows.is_cuda and rows.dtype == weight.dtype and rows.dtype in _DTYPES and _function() is not None


def by_liger(rows: Tensor, weight: Tensor, labels: Tensor, bias: Tensor | None, softcap: float | None) -> Tensor:
    """Returns the loss summed over rows; the gradient of the weight accumulates in float32."""
    no_weights, smoothing, of_lse = None, 0.0, 0.0
    others = bias, no_weights, IGNORED, of_lse, smoothing, "sum", softcap, False, torch.float32
    found: Any = _function().apply(rows, weight, labels, *others)
    total: Tensor = _Once.apply(found[0] if isinstance(found, tuple) else found)  # type: ignore[no-untyped-call]
    return total
