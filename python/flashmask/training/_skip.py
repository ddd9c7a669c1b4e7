"""Linear layers whose result nobody reads, because only gradients are wanted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


class _OnlyGradients(torch.autograd.Function):
    """A linear layer that says zeros, and has the gradients of the real one."""

    @staticmethod
    def forward(ctx: Any, given: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(given, weight)
        return given.new_zeros(()).expand(*given.shape[:-1], weight.shape[0])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        given, weight = ctx.saved_tensors
        asked = ctx.needs_input_grad
        rows = grad.flatten(0, -2)
        return (
            grad @ weight if asked[0] else None,
            rows.mT @ given.flatten(0, -2) if asked[1] else None,
            rows.sum(0) if asked[2] else None,
        )


class _SkippedLinear(nn.Linear):
    def forward(self, given: Tensor) -> Tensor:
        found: Tensor = _OnlyGradients.apply(given, self.weight, self.bias)  # type: ignore[no-untyped-call]
        return found


@contextmanager
def skipped(layers: Sequence[nn.Linear]) -> Iterator[None]:
    """Lets these layers compute nothing forward; under autocast, which casts what they are given, they do.

    Their class changes, rather than their forward, because that is what torch.compile tells compiled code apart by.
    """
    layers = () if torch.is_autocast_enabled("cuda") or torch.is_autocast_enabled("cpu") else layers
    for each in layers:
        each.__class__ = _SkippedLinear
    try:
        yield
    finally:
        for each in layers:
            each.__class__ = nn.Linear
