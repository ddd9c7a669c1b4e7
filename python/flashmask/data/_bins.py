# SPDX-License-Identifier: Apache-2.0
"""The choice of examples that share a sequence."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence

from flashmask._arguments import choice

PACKINGS = ("order", "best-fit")


def fill(lengths: Sequence[int], length: int, packing: str = "best-fit") -> list[list[int]]:
    """Returns, for each sequence of `length` tokens, the numbers of the examples in it, in the order they lie there.

    Examples stay whole. packing="order" takes them in the order given and closes a sequence at the first one that does
    not fit; "best-fit" takes the longest first (the earlier of equals) and puts each into the fullest sequence that
    still holds it (the first of equals). The command's `--packing` has the same words and results. Raises ValueError
    for a packing that is neither and for lengths outside [0, length].
    """
    choice("packing", packing, PACKINGS)
    for number, tokens in enumerate(lengths):
        if not 0 <= tokens <= length:
            raise ValueError(f"lengths[{number}] is {tokens}; expected 0 to {length}, the length of a sequence")
    if packing == "order":
        return _in_order(lengths, length)
    return _best_fit(lengths, length, sorted(range(len(lengths)), key=lambda example: -lengths[example]))


def _in_order(lengths: Sequence[int], length: int) -> list[list[int]]:
    sequences: list[list[int]] = []
    free = -1
    for example, tokens in enumerate(lengths):
        if tokens > free:
            sequences.append([])
            free = length
        sequences[-1].append(example)
        free -= tokens
    return sequences


def _best_fit(lengths: Sequence[int], length: int, longest_first: Iterable[int]) -> list[list[int]]:
    sequences: list[list[int]] = []
    room: list[tuple[int, int]] = []  # (free tokens, sequence), sorted: the first that fits is the fullest
    for example in longest_first:
        fullest = bisect_left(room, (lengths[example], 0))
        if fullest == len(room):
            room.append((length, len(sequences)))
            sequences.append([])
        free, sequence = room.pop(fullest)
        sequences[sequence].append(example)
        insort(room, (free - lengths[example], sequence))
    return sequences
