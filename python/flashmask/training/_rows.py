# SPDX-License-Identifier: Apache-2.0
"""Functions of single tokens, run on one chunk of tokens at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from flashmask._torch.autograd import once_differentiable
from flashmask.training._autocast import autocast_now
from flashmask.training._chunks import IN_CHUNKS, chunks, like
from flashmask.training._sums import GradientSums

OfTokens = Callable[[Tensor], Tensor]


class _InChunks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, function: OfTokens, chunk: int, hidden: Tensor, *parameters: Tensor) -> Tensor:
        ctx.save_for_backward(hidden)
        ctx.function, ctx.chunk, ctx.parameters, ctx.settings = function, chunk, parameters, autocast_now()
        with ctx.settings():
            return chunked_forward(function, hidden, chunk)

    @staticmethod
    @once_differentiable(IN_CHUNKS)
    def backward(ctx: Any, grad: Tensor) -> Any:
        (hidden,) = ctx.saved_tensors
        grad_hidden, sums = torch.empty_like(hidden), GradientSums(ctx.parameters)
        with torch.enable_grad(), ctx.settings():
            for span in chunks(hidden.shape[1], ctx.chunk):
                given = hidden[:, span].detach().requires_grad_()
                out = ctx.function(given)
                found = torch.autograd.grad(out, [given, *ctx.parameters], grad[:, span], allow_unused=True)
                grad_hidden[:, span] = found[0]
                sums.add(found[1:])
        return None, None, grad_hidden, *sums.result()


def chunked_forward(function: OfTokens, hidden: Tensor, chunk: int) -> Tensor:
    out: Tensor | None = None
    for span in chunks(hidden.shape[1], chunk):
        of_chunk = function(hidden[:, span])
        out = like(of_chunk, hidden.shape[1]) if out is None else out
        out[:, span] = of_chunk
    return function(hidden) if out is None else out


def in_chunks(function: OfTokens, hidden: Tensor, parameters: Sequence[Tensor], *, chunk: int) -> Tensor:
    """Joins function(hidden [B, c, H]) of all chunks; keeps only hidden, and the backward runs the function again.

    `parameters`: those of the function that need a gradient.
    """
    if not torch.is_grad_enabled():
        return chunked_forward(function, hidden, chunk)
    out: Tensor = _InChunks.apply(function, chunk, hidden, *parameters)  # type: ignore[no-untyped-call]
    return out
