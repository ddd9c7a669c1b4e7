"""Chunks of tokens."""

from __future__ import annotations

from collections.abc import Iterator


def chunks(tokens: int, size: int) -> Iterator[slice]:
    """Neighbouring slices of `size` tokens that cover all of them; the last one may be shorter."""
    for begin in range(0, tokens, size):
        yield slice(begin, min(begin + size, tokens))
