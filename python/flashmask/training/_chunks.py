# SPDX-License-Identifier: Apache-2.0
"""Chunks of tokens."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

IN_CHUNKS = "a model in chunks of tokens is differentiable once; run it without flashmask.training for more"
"""Why a second derivative is refused."""


def chunks(tokens: int, size: int) -> Iterator[slice]:
    """Yields neighbouring slices of `size` tokens that cover all of them; the last one may be shorter."""
    for begin in range(0, tokens, size):
        yield slice(begin, min(begin + size, tokens))


def like(part: Tensor, tokens: int) -> Tensor:
    """Allocates [B, tokens, ...] for all chunks, given the result of one, [B, c, ...]."""
    return part.new_empty((part.shape[0], tokens, *part.shape[2:]))
