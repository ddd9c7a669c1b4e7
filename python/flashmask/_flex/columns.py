# SPDX-License-Identifier: Apache-2.0
"""Finds the ranges of rows that each column sees under a formula, in O(N log N) time and O(N) memory.

A comparison is one search per column: an order among rows that rise, an equality among runs of equal rows. Each leaf of
a formula is searched for inside the ranges that the others left, so that a part which holds in many ranges by itself is
fine beside one that leaves few.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from flashmask._flex import ranges as r
from flashmask._flex.formula import FLIPPED, And, Compare, Fact, Formula, Or
from flashmask._flex.ranges import Ranges, TooManyRanges
from flashmask._flex.symbols import Space, Untraceable

_FAR = 1 << 61  # beyond all rows; limits such as the largest int64 are clipped here before they are subtracted from


class _Flagged(NamedTuple):
    """An equality among the rows that a fact leaves: rows that it hides equal nothing."""

    equality: Compare
    keep: Tensor


class Columns:
    """Finds ranges of rows for each column; `swapped`: ranges of columns for each row, under the names of the other.

    A plane is one of the batch entries and heads that the formula tells apart: plane = entry · heads + head.
    """

    def __init__(self, formula: Formula, space: Space, swapped: bool = False) -> None:
        self.formula, self.swapped, self.device = formula, swapped, space.device
        queries, keys = space.sizes[2:]
        self.rows, self.columns = (keys, queries) if swapped else (queries, keys)
        self.index = space.index[3 if swapped else 2]
        tensors = list(_tensors(formula))
        self.batch, self.heads = (max(each.shape[axis] for each in tensors) for axis in range(2))
        self.planes = self.batch * self.heads

    def find(self) -> Ranges:
        """Returns what each column sees; raises TooManyRanges, or Untraceable for NaN in a comparison."""
        return self._restrict(self.formula, r.everything(self.planes, self.columns, self.rows, self.device))

    def _along(self, tensor: Tensor, rows: bool) -> Tensor:
        """[planes, rows or columns, or 1] of a tensor [B or 1, H or 1, Q or 1, KV or 1]."""
        tensor = tensor[:, :, :, 0] if rows != self.swapped else tensor[:, :, 0]
        return tensor.expand(self.batch, self.heads, tensor.shape[2]).reshape(self.planes, -1)

    def _varies_by_row(self, fact: Fact) -> bool:
        return fact.value.shape[3 if self.swapped else 2] > 1

    def _restrict(self, f: Formula, inside: Ranges) -> Ranges:
        """The rows inside the given ranges where a formula holds."""
        if isinstance(f, And):
            return self._restrict_all(_flat(f), inside)
        if isinstance(f, Or):
            return self._restrict_any(_flat(f), inside)
        if isinstance(f, Fact):
            if self._varies_by_row(f):
                return _flagged(self._along(f.value, rows=True), inside)
            return r.in_all(self._along(f.value, rows=False), inside)
        return self._restrict_compared(f, inside)

    def _restrict_compared(self, f: Compare, inside: Ranges) -> Ranges:
        op, rows, columns = self._sides(f)
        if (f.columns if self.swapped else f.rows) is self.index and not columns.is_floating_point():
            return _at_index(op, columns.long(), inside)
        if op == "eq":
            return _equal(rows, columns, inside)
        if op == "ne":
            return r.difference(inside, _equal(rows, columns, inside))
        return _ordered(op, rows, columns, inside)

    def _sides(self, f: Compare) -> tuple[str, Tensor, Tensor]:
        op, rows, columns = (FLIPPED[f.op], f.columns, f.rows) if self.swapped else (f.op, f.rows, f.columns)
        return op, self._along(rows, rows=True), self._along(columns, rows=False)

    def _restrict_any(self, parts: list[Formula], inside: Ranges) -> Ranges:
        found = []
        for part in sorted(parts, key=self._difficulty):
            found.append(self._restrict(part, inside))
            if isinstance(part, Fact) and not self._varies_by_row(part):  # columns seen whole ask nothing of the others
                inside = r.in_all(~self._along(part.value, rows=False), inside)
        return r.union(found)

    def _restrict_all(self, parts: list[Formula], inside: Ranges) -> Ranges:
        """Restricts by one part after another, easy ones first; a part with too many ranges waits for the rest."""
        waiting: list[Any] = sorted(self._joined_flags(parts), key=self._difficulty)
        while waiting:
            later = []
            for part in waiting:
                try:
                    inside = self._restrict_by(part, inside)
                except TooManyRanges:
                    later.append(part)
            if len(later) == len(waiting):
                raise TooManyRanges("conditions that hold in too many ranges of one column together")
            waiting = later
        return inside

    def _restrict_by(self, part: Any, inside: Ranges) -> Ranges:
        if not isinstance(part, _Flagged):
            return self._restrict(part, inside)
        _, rows, columns = self._sides(part.equality)
        return _equal(rows, columns, inside, self._along(part.keep, rows=True))

    def _joined_flags(self, parts: list[Formula]) -> list[Any]:
        """Joins the facts of rows into the first equality: hidden rows of one id then count for nothing."""
        flags = [part for part in parts if isinstance(part, Fact) and self._varies_by_row(part)]
        equality = next((part for part in parts if isinstance(part, Compare) and part.op == "eq"), None)
        if not flags or equality is None:
            return list(parts)
        keep = flags[0].value
        for flag in flags[1:]:
            keep = keep & flag.value
        rest = [part for part in parts if part is not equality and not any(part is flag for flag in flags)]
        return [*rest, _Flagged(equality, keep)]

    def _difficulty(self, part: Any) -> int:
        if isinstance(part, Fact):
            return 3 if self._varies_by_row(part) else 0
        if isinstance(part, (_Flagged, Compare)):
            return 1 if isinstance(part, _Flagged) or part.op == "eq" else 2
        return 4 if isinstance(part, And) else 5


def _tensors(f: Formula) -> list[Tensor]:
    if isinstance(f, (And, Or)):
        return [each for part in f.parts for each in _tensors(part)]
    return [f.value] if isinstance(f, Fact) else [f.rows, f.columns]


def _flat(f: And | Or) -> list[Formula]:
    """The parts of a conjunction within conjunctions, or of a disjunction within disjunctions."""
    out: list[Formula] = []
    for part in f.parts:
        out.extend(_flat(part) if isinstance(part, (And, Or)) and type(part) is type(f) else [part])
    return out


# ---- an equality: runs of equal rows ----


class _Runs(NamedTuple):
    """Runs of rows, [planes, runs], sorted by group and then by row; planes are padded with empty ones at their end.

    `group` numbers what the rows of a run have in common; no column looks for the number of runs.
    """

    begin: Tensor
    end: Tensor
    group: Tensor


def _runs(begin: Tensor, group: Tensor, rows: int) -> _Runs:
    """Runs that begin at these rows and fill the plane, sorted."""
    end = torch.cat([begin[:, 1:], begin.new_full((begin.shape[0], 1), rows)], 1)
    group, order = group.sort(dim=1, stable=True)
    return _Runs(begin.gather(1, order), end.gather(1, order), group)


def _heads(changes: Tensor) -> Tensor:
    """[planes, most] rows where changes [planes, rows] is true, padded with the number of rows; waits once or twice."""
    planes, rows = changes.shape
    at = changes.flatten().nonzero()[:, 0]
    if planes == 1:
        return at[None]
    plane = at.div(rows, rounding_mode="floor")
    counts = torch.bincount(plane, minlength=planes)
    place = torch.arange(at.shape[0], device=at.device) - (counts.cumsum(0) - counts)[plane]
    heads = torch.full((planes, int(counts.max())), rows, dtype=torch.int64, device=at.device)
    heads[plane, place] = at - plane * rows
    return heads


def _with_first(changes: Tensor) -> Tensor:
    """[planes, rows] of what says it for [planes, rows - 1], each row but the first; the first always changes."""
    return torch.cat([torch.ones_like(changes[:, :1]), changes], 1)


def _at(values: Tensor, rows: Tensor) -> Tensor:
    """values[rows] of each plane, where rows may be one past the last."""
    return values.gather(1, rows.flatten(1).clamp(max=values.shape[1] - 1)).reshape(rows.shape)


def _equal(rows: Tensor, columns: Tensor, inside: Ranges, keep: Tensor | None = None) -> Ranges:
    """Rows i with rows[i] == columns[j], and keep[i]."""
    rows, columns = _comparable(rows, columns)
    changes = rows[:, 1:] != rows[:, :-1]
    if keep is not None:
        changes |= keep[:, 1:] != keep[:, :-1]
    begin = _heads(_with_first(changes))
    values = _at(rows, begin)
    distinct = values.sort(dim=1).values
    group = torch.searchsorted(distinct, values)
    if keep is not None:
        group = torch.where(_at(keep, begin), group, begin.shape[1])
    wanted = torch.searchsorted(distinct, columns)
    wanted = torch.where(_at(distinct, wanted) == columns, wanted, begin.shape[1] + 1)
    return r.limited(_overlaps(_runs(begin, group, inside.rows), wanted[:, None], inside)[0])


def _flagged(flags: Tensor, inside: Ranges) -> Ranges:
    """Rows whose flag is set."""
    begin = _heads(_with_first(flags[:, 1:] != flags[:, :-1]))
    group = torch.where(_at(flags, begin), 0, begin.shape[1])
    return r.limited(_overlaps(_runs(begin, group, inside.rows), 0, inside)[0])


def _overlaps(runs: _Runs, wanted: Tensor | int, inside: Ranges) -> tuple[Ranges, Tensor]:
    """The parts of the ranges inside that lie in runs of the group wanted, one slot per run and range; waits once.

    Also returns which run, among all of its plane, each part lies in; of empty parts any.
    """
    width = inside.rows + 1
    low = _search(runs.group * width + runs.end, wanted * width + inside.begin, right=True)
    high = _search(runs.group * width + runs.begin, wanted * width + inside.end)
    most = max(int((high - low).max()), 1)
    r.check_slots(most * inside.slots)
    begins, ends, which = [], [], []
    for each in range(most):
        live = low + each < high
        at = (low + each).clamp(max=runs.begin.shape[1] - 1)
        begin, end = (_at(bounds, at) for bounds in (runs.begin, runs.end))
        begins.append(torch.where(live, torch.clamp(begin, inside.begin, inside.end), inside.end))
        ends.append(torch.where(live, torch.clamp(end, inside.begin, inside.end), inside.end))
        which.append(at)
    begin, end, run = (_interleaved(parts) for parts in (begins, ends, which))
    return Ranges(begin, end, inside.rows), run


def _interleaved(parts: list[Tensor]) -> Tensor:
    """Slot s of each part, then slot s + 1 of each."""
    return parts[0] if len(parts) == 1 else torch.stack(parts, 2).flatten(1, 2)


def _search(ascending: Tensor, wanted: Tensor, right: bool = False) -> Tensor:
    """torch.searchsorted of wanted [planes, slots, columns] in ascending [planes, n]."""
    return torch.searchsorted(ascending, wanted.flatten(1).contiguous(), right=right).reshape(wanted.shape)


def _comparable(rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    """Both in the dtype in which torch compares them, or as int64."""
    dtype = torch.promote_types(rows.dtype, columns.dtype)
    rows, columns = rows.contiguous(), columns.contiguous()
    if not dtype.is_floating_point:
        return rows.long(), columns.long()
    rows, columns = rows.to(dtype), columns.to(dtype)
    if bool(rows.isnan().any() | columns.isnan().any()):
        raise Untraceable("not a number in a comparison")
    return rows, columns


# ---- an order: rows that rise ----


def _ordered(op: str, rows: Tensor, columns: Tensor, inside: Ranges) -> Ranges:
    """Rows i with rows[i] op columns[j]."""
    rows, columns = _comparable(rows, columns)
    above, below = rows[:, 1:], rows[:, :-1]
    falls, rises = above < below, above > below
    n_falls, n_rises, n_ones = torch.stack([falls.sum(), rises.sum(), (above == below + 1).sum()]).tolist()
    counts_up = n_falls + n_ones == falls.numel() and not rows.is_floating_point()
    if n_falls > n_rises:
        op, rows, columns, falls, n_falls = FLIPPED[op], _reversed(rows), _reversed(columns), rises, n_rises
        counts_up = False
    if n_falls:
        return _in_stretches(op, rows, columns, falls, counts_up, inside)
    right = op in ("gt", "le")
    at = _counted(rows[:, :1], columns, right) if counts_up else torch.searchsorted(rows, columns, right=right)
    return _bounded(op, at[:, None], inside)


def _at_index(op: str, columns: Tensor, inside: Ranges) -> Ranges:
    """Rows i with i op columns[j]: nothing to search, nothing to wait for."""
    if op in ("eq", "ne"):
        row = columns.clamp(-1, inside.rows)[:, None]  # one that there is not where no row is equal
        begin, end = (torch.clamp(each, inside.begin, inside.end) for each in (row, row + 1))
        equal = Ranges(begin, end, inside.rows)
        return equal if op == "eq" else r.difference(inside, equal)
    return _bounded(op, columns.clamp(-1, inside.rows)[:, None] + (op in ("gt", "le")), inside)


def _counted(first: Tensor, columns: Tensor, right: bool) -> Tensor:
    """torch.searchsorted in rows that count upwards from the first."""
    return columns.clamp(-_FAR, _FAR) - first.clamp(-_FAR, _FAR) + right


def _reversed(values: Tensor) -> Tensor:
    """Values in the opposite order; the complement of an integer does not overflow."""
    return -values if values.is_floating_point() else ~values


def _bounded(op: str, at: Tensor, inside: Ranges) -> Ranges:
    """The rows from `at` on, or those before it."""
    at = torch.clamp(at, inside.begin, inside.end)
    return inside._replace(begin=at) if op in ("ge", "gt") else inside._replace(end=at)


def _in_stretches(op: str, rows: Tensor, columns: Tensor, falls: Tensor, counts_up: bool, inside: Ranges) -> Ranges:
    """Cuts the ranges inside where rows fall, as positions do that restart, and searches each piece."""
    heads = _heads(_with_first(falls))
    try:
        pieces, stretch = _overlaps(_runs(heads, torch.zeros_like(heads), inside.rows), 0, inside)
    except TooManyRanges:
        return _scanned(op, rows, columns, inside)
    right = op in ("gt", "le")
    if counts_up:
        head = _at(heads, stretch)
        return r.limited(_bounded(op, head + _counted(_at(rows, head), columns[:, None], right), pieces))
    # A row is below its column where its rank, the number of smaller rows, is below that of the column.
    ascending = rows.sort(dim=1).values
    rank, wanted = torch.searchsorted(ascending, rows), torch.searchsorted(ascending, columns, right=right)
    width = rows.shape[1] + 1
    keys = (_with_first(falls).cumsum(1) - 1) * width + rank
    return r.limited(_bounded(op, _search(keys, stretch * width + wanted[:, None]), pieces))


def _scanned(op: str, rows: Tensor, columns: Tensor, inside: Ranges) -> Ranges:
    """Serves rows in any order: looks for the next row that holds, then for the next that does not, and so on."""
    if op in ("ge", "gt"):
        op, rows, columns = FLIPPED[op], _reversed(rows), _reversed(columns)
    compare: Callable[..., Tensor] = getattr(torch, op)
    limit = columns[:, None].expand(inside.begin.shape)
    low, high = _powers(rows, torch.minimum), _powers(rows, torch.maximum)
    at, begins, ends = inside.begin, [], []
    for _ in range(r.MOST + 1):
        begin = torch.minimum(_next(low, at, lambda least: compare(least, limit)), inside.end)
        at = torch.minimum(_next(high, begin, lambda greatest: ~compare(greatest, limit)), inside.end)
        begins.append(begin)
        ends.append(at)
        if not bool((begin < at).any()):
            return r.limited(Ranges(_interleaved(begins), _interleaved(ends), inside.rows))
    raise TooManyRanges("a comparison holds in many ranges of one column")


def _powers(rows: Tensor, combine: Callable[[Tensor, Tensor], Tensor]) -> list[Tensor]:
    """Level l holds, at i, the least or greatest of the rows [i, i + 2^l)."""
    levels, width = [rows], 1
    while 2 * width <= rows.shape[1]:
        levels.append(combine(levels[-1][:, :-width], levels[-1][:, width:]))
        width *= 2
    return levels


def _next(levels: list[Tensor], at: Tensor, may_hold: Callable[[Tensor], Tensor]) -> Tensor:
    """The first row from `at` on that holds, or the number of rows; may_hold(value) of a level's least or greatest."""
    for level in reversed(range(len(levels))):
        values = levels[level]
        inside = at < values.shape[1]
        skip = inside & ~may_hold(_at(values, at))
        at = torch.where(skip, at + (1 << level), at)
    return at
