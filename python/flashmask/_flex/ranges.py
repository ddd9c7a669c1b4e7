# SPDX-License-Identifier: Apache-2.0
"""Lists of row ranges, one list per column.

`begin` and `end` are int64 [planes, slots, columns], where a plane is a batch entry and head. The ranges [begin, end)
of a column ascend: begin <= end <= the next begin. Empty ones may stand anywhere, and neighbours may touch; compacted()
leaves neither.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from flashmask._flex.symbols import Untraceable

MOST = 16  # ranges of a column, compacted
_RAW = 32  # slots before they are compacted
_EXCHANGED = 6  # slots that are sorted by exchanges


class TooManyRanges(Untraceable):
    """Some column needs more ranges than are kept."""


class Ranges(NamedTuple):
    begin: Tensor
    end: Tensor
    rows: int

    @property
    def slots(self) -> int:
        return self.begin.shape[1]


def everything(planes: int, columns: int, rows: int, device: torch.device) -> Ranges:
    """One range of all rows."""
    begin = torch.zeros(planes, 1, columns, dtype=torch.int64, device=device)
    return Ranges(begin, begin + rows, rows)


def in_all(keep: Tensor, ranges: Ranges) -> Ranges:
    """The ranges in columns where keep [planes, columns] is true, empty ones elsewhere."""
    return Ranges(ranges.begin, torch.where(keep[:, None], ranges.end, ranges.begin), ranges.rows)


def complement(ranges: Ranges) -> Ranges:
    """The rows that lie in none of the ranges."""
    zero = torch.zeros_like(ranges.begin[:, :1])
    return Ranges(torch.cat([zero, ranges.end], 1), torch.cat([ranges.begin, zero + ranges.rows], 1), ranges.rows)


def union(parts: list[Ranges]) -> Ranges:
    """The rows that lie in any of the ranges."""
    if len(parts) == 1:
        return parts[0]
    return _by_rank([each.begin for each in parts], [each.end for each in parts], parts[0].rows)


def difference(a: Ranges, b: Ranges) -> Ranges:
    """The rows of `a` that are not in `b`, all of which lie in `a`."""
    return _by_rank([a.begin, b.end], [a.end, b.begin], a.rows)


def _by_rank(begins: list[Tensor], ends: list[Tensor], rows: int) -> Ranges:
    """Pairs the n-th begin with the n-th end: a row is inside where more ranges began before it than ended."""
    begin, end = (_sorted(torch.cat(each, 1)) for each in (begins, ends))
    begin[:, 1:] = torch.maximum(begin[:, 1:], end[:, :-1])
    return limited(Ranges(begin, end, rows))


def _sorted(bounds: Tensor) -> Tensor:
    """Sorts the slots of each column; few of them by exchanges between neighbours, which take whole slots at once."""
    slots = list(bounds.unbind(1))
    if len(slots) > _EXCHANGED:
        return bounds.sort(dim=1).values
    for turn in range(len(slots)):
        for left in range(turn % 2, len(slots) - 1, 2):
            a, b = slots[left : left + 2]
            slots[left : left + 2] = torch.minimum(a, b), torch.maximum(a, b)
    return torch.stack(slots, 1)


def check_slots(slots: int) -> None:
    """Refuses more slots than memory is kept for."""
    if slots > _RAW:
        raise TooManyRanges(f"a condition holds in {slots} ranges of one column")


def limited(ranges: Ranges) -> Ranges:
    """Returns the same rows in few slots: compacted where there are more than two."""
    return ranges if ranges.slots <= 2 else compacted(ranges)


def compacted(ranges: Ranges) -> Ranges:
    """Returns the same rows, touching ranges joined and empty ones last, in as many slots as the busiest column needs.

    Waits for the device once, to learn how many. Raises TooManyRanges above MOST.
    """
    begin, end, rows = ranges
    live = begin < end
    opens, closes = torch.empty_like(live), torch.empty_like(live)
    reach = torch.full_like(begin[:, 0], -1)  # where the last range before ended
    for slot in range(ranges.slots):
        opens[:, slot] = live[:, slot] & (begin[:, slot] > reach)
        reach = torch.where(live[:, slot], end[:, slot], reach)
    following = torch.full_like(reach, rows + 1)  # where the next range begins
    for slot in reversed(range(ranges.slots)):
        closes[:, slot] = live[:, slot] & (end[:, slot] < following)
        following = torch.where(live[:, slot], begin[:, slot], following)
    counts = opens.cumsum(1)
    most = max(int(counts[:, -1].max()), 1) if counts.numel() else 1
    if most > MOST:
        raise TooManyRanges(f"a column has {most} ranges")
    shape = (begin.shape[0], most + 1, begin.shape[2])  # the last slot takes what is dropped
    at = counts - 1
    out_begin, out_end = (torch.full(shape, rows, dtype=begin.dtype, device=begin.device) for _ in range(2))
    out_begin.scatter_(1, torch.where(opens, at, most), begin)
    out_end.scatter_(1, torch.where(closes, at, most), end)
    return Ranges(out_begin[:, :most], out_end[:, :most], rows)
