# SPDX-License-Identifier: Apache-2.0
"""Runs: tokens as ranges, and operations on them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import TypeAlias

Runs: TypeAlias = Sequence[tuple[int, int]]
"""Tokens as half-open ranges, ascending and disjoint."""
Parts: TypeAlias = list[tuple[tuple[int, int], tuple[int, int]]]
"""Pairs of ranges: where tokens lie in one tensor, and where in another."""


def tokens(runs: Runs) -> int:
    """Returns how many tokens the runs have in all."""
    return sum(end - begin for begin, end in runs)


def common(first: Runs, second: Runs) -> Runs:
    """Returns the tokens that are in both."""
    found: list[tuple[int, int]] = []
    if not first or not second or first[-1][1] <= second[0][0] or second[-1][1] <= first[0][0]:
        return found  # the usual case with many ranks
    i = j = 0
    while i < len(first) and j < len(second):
        begin, end = max(first[i][0], second[j][0]), min(first[i][1], second[j][1])
        if begin < end:
            found.append((begin, end))
        if first[i][1] <= second[j][1]:
            i += 1
        else:
            j += 1
    return found


def union(first: Runs, second: Runs) -> Runs:
    """Returns the tokens that are in either, with neighbouring runs joined."""
    found: list[tuple[int, int]] = []
    for begin, end in sorted([*first, *second]):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        elif begin < end:
            found.append((begin, end))
    return found


def within(runs: Runs, parts: Runs) -> Runs:
    """Returns where `parts`, each inside one of `runs`, lie when the tokens of `runs` are counted from 0."""
    found: list[tuple[int, int]] = []
    at = 0
    waiting = iter(parts)
    part = next(waiting, None)
    for begin, end in runs:
        while part is not None and part[1] <= end:
            found.append((at + part[0] - begin, at + part[1] - begin))
            part = next(waiting, None)
        at += end - begin
    return found


def carried(parts: Runs, places: Parts) -> Runs:
    """Moves `parts`, each inside the second range of one of `places`, to the first range of that place."""
    found: list[tuple[int, int]] = []
    begins = [begin for _, (begin, _) in places]
    for begin, end in parts:
        (at, _), (first, _) = places[bisect_right(begins, begin) - 1]
        found.append((at + begin - first, at + end - first))
    return found


def joined(pieces: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Joins neighbouring pieces of one rank of which one begins where the other ends."""
    found: list[tuple[int, int, int]] = []
    for rank, begin, end in pieces:
        if found and found[-1][0] == rank and found[-1][2] == begin:
            found[-1] = rank, found[-1][1], end
        else:
            found.append((rank, begin, end))
    return found
