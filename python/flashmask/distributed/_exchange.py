"""Exchange: which tokens a rank sends to whom, which it gets, and in what order they lie there."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

from flashmask.distributed._group import Group

Runs: TypeAlias = Sequence[tuple[int, int]]
"""Tokens as half-open ranges, ascending and disjoint."""
Parts: TypeAlias = list[tuple[tuple[int, int], tuple[int, int]]]
"""Tokens twice: where they lie in one tensor, and where in another."""
_ALIGNED = 16


class Parcels:
    """Memory for one all_to_all: for, or from, each rank in turn so many tokens of tensors like these.

    It is one tensor of bytes, which treat every dtype alike, on every backend.
    """

    def __init__(self, counts: Sequence[int], like: Sequence[Tensor]) -> None:
        self._counts, self._like = counts, like
        self.splits = [sum(_padded(_shape(each, count), each) for each in like) for count in counts]
        self.bytes = torch.empty(sum(self.splits), dtype=torch.uint8, device=like[0].device)

    def of(self, rank: int) -> list[Tensor]:
        """The tensors for, or from, a rank."""
        found, begin = [], sum(self.splits[:rank])
        for each in self._like:
            shape = _shape(each, self._counts[rank])
            part = self.bytes[begin : begin + math.prod(shape) * each.element_size()]
            found.append(part.view(each.dtype).view(shape))
            begin += _padded(shape, each)
        return found

    def sent(self, group: Group, counts: Sequence[int]) -> Parcels:
        """What all ranks send to this one, so many tokens each."""
        received = Parcels(counts, self._like)
        dist.all_to_all_single(received.bytes, self.bytes, received.splits, self.splits, group=group.handle)
        return received


def _shape(tensor: Tensor, count: int) -> tuple[int, ...]:
    """Of so many tokens."""
    return (tensor.shape[0], count, *tensor.shape[2:])


def _padded(shape: Sequence[int], like: Tensor) -> int:
    """Bytes up to the beginning of the next tensor."""
    return -(-math.prod(shape) * like.element_size() // _ALIGNED) * _ALIGNED


@dataclass(frozen=True)
class Exchange:
    """Of one rank. It holds tokens of the sequence, and computes with its own and others' in ascending order."""

    rank: int
    held: int
    """How many tokens the rank holds."""
    sends: list[Runs]
    """What every rank gets of this one, counted in the tokens that it holds."""
    runs: Runs
    """What it computes with."""
    pieces: list[tuple[int, int, int]]
    """The same as (rank, begin, end), counted in what it holds, or in what it gets of the other rank."""
    silent: bool
    """Whether no rank of the group sends anything."""

    @classmethod
    def of(cls, rank: int, held: Sequence[Runs], wanted: Sequence[Runs]) -> Exchange:
        """Of what every rank holds, and what every rank wants to compute with."""
        placed: list[tuple[int, int, int, int]] = []
        for source, runs in enumerate(held):
            found = common(wanted[rank], runs)
            places = within(runs, found) if source == rank else within(found, found)
            placed += [(at, source, *place) for (at, _), place in zip(found, places, strict=True)]
        sends = [[] if to == rank else within(held[rank], common(each, held[rank])) for to, each in enumerate(wanted)]
        own = (tokens(common(each, runs)) for each, runs in zip(wanted, held, strict=True))
        return cls(
            rank,
            tokens(held[rank]),
            sends,
            list(wanted[rank]),
            joined([piece[1:] for piece in sorted(placed)]),
            all(tokens(each) == kept for each, kept in zip(wanted, own, strict=True)),
        )

    @cached_property
    def tokens(self) -> int:
        """How many the rank computes with."""
        return sum(end - begin for _, begin, end in self.pieces)

    @cached_property
    def _takes_all_it_holds_alone(self) -> bool:
        return self.tokens == self.held and all(source == self.rank for source, *_ in self.pieces)

    @cached_property
    def _gives(self) -> list[int]:
        """Tokens to each rank."""
        return list(map(tokens, self.sends))

    @cached_property
    def _gets(self) -> list[int]:
        """Tokens from each rank."""
        counts = [0] * len(self.sends)
        for source, begin, end in self.pieces:
            counts[source] += 0 if source == self.rank else end - begin
        return counts

    def fetch(self, group: Group, tensors: Sequence[Tensor]) -> list[Tensor]:
        """(batch, tokens computed with, ...) of tensors (batch, tokens held, ...)."""
        received = None if self.silent else self._swap(group, tensors)
        if self._takes_all_it_holds_alone:
            return list(tensors)
        sources = {self.rank: list(tensors)}
        for source, count in enumerate(self._gets):
            if count and received is not None:
                sources[source] = received.of(source)
        return [
            _joined([sources[source][place][:, begin:end] for source, begin, end in self.pieces], each)
            for place, each in enumerate(tensors)
        ]

    def _swap(self, group: Group, tensors: Sequence[Tensor]) -> Parcels:
        parcels = Parcels(self._gives, tensors)
        for to, runs in enumerate(self.sends):
            if runs:
                pack(parcels.of(to), tensors, runs)
        return parcels.sent(group, self._gets)

    def give_back(self, group: Group, partials: Sequence[Tensor], dtype: torch.dtype | None = None) -> list[Tensor]:
        """(batch, tokens held, ...): sums over all ranks, in their order, of (batch, tokens computed with, ...).

        They are added up in `partials`, and rounded to `dtype` once.
        """
        if self.silent:
            return list(partials)
        parcels = Parcels(self._gets, partials)
        for source, count in enumerate(self._gets):
            if count:
                pack(parcels.of(source), partials, [place for place, _ in self._places[source]])
        received = parcels.sent(group, self._gives)
        early = [each.new_zeros(_shape(each, tokens(self._early))) for each in partials]
        for source, parts in enumerate(self._returns):
            if parts:
                into = early if source < self.rank else partials
                _add(into, early if source == self.rank else received.of(source), parts)
        totals = [each.new_empty(_shape(each, self.held), dtype=dtype) for each in partials]
        for total, partial in zip(totals, partials, strict=True):
            for (begin, end), (to, until) in self._places[self.rank]:
                total[:, to:until] = partial[:, begin:end]
        return totals

    @cached_property
    def _early(self) -> Runs:
        """Of the tokens that the rank holds, those that ranks before it give back, none across two of its pieces."""
        found: Runs = []
        for runs in self.sends[: self.rank]:
            found = union(found, runs)
        return common(found, [place for _, place in self._places[self.rank]])

    @cached_property
    def _returns(self) -> list[Parts]:
        """What is added in the order of ranks: of each, to what the ranks before this one gave, or to this one's."""
        own, early = self._places[self.rank], self._early
        before = [zip(within(runs, runs), within(early, runs), strict=True) for runs in self.sends[: self.rank]]
        others = [
            zip(within(runs, runs), carried(runs, own), strict=True) for runs in (early, *self.sends[self.rank + 1 :])
        ]
        return [list(parts) for parts in (*before, *others)]

    @cached_property
    def _places(self) -> list[Parts]:
        """Of each rank's pieces: where they lie in what the rank computes with, and where in `pieces`."""
        places: list[Parts] = [[] for _ in self.sends]
        at = 0
        for source, begin, end in self.pieces:
            places[source].append(((at, at + end - begin), (begin, end)))
            at += end - begin
        return places


def pack(parcel: Sequence[Tensor], tensors: Sequence[Tensor], runs: Runs) -> None:
    """Puts the tokens of these runs, at least one, of each tensor into a parcel."""
    for part, each in zip(parcel, tensors, strict=True):
        torch.cat([each[:, begin:end] for begin, end in runs], 1, out=part)


def _add(totals: Sequence[Tensor], tensors: Sequence[Tensor], parts: Parts) -> None:
    for total, tensor in zip(totals, tensors, strict=True):
        for (begin, end), (to, until) in parts:
            total[:, to:until] += tensor[:, begin:end]


def _joined(pieces: list[Tensor], like: Tensor) -> Tensor:
    return torch.cat(pieces, 1) if pieces else like[:, :0]


# ---- runs ----


def tokens(runs: Runs) -> int:
    """How many there are in all."""
    return sum(end - begin for begin, end in runs)


def common(first: Runs, second: Runs) -> Runs:
    """The tokens of both."""
    found: list[tuple[int, int]] = []
    if not first or not second or first[-1][1] <= second[0][0] or second[-1][1] <= first[0][0]:
        return found  # as it is for most pairs of many ranks
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
    """The tokens of either, neighbouring runs as one."""
    found: list[tuple[int, int]] = []
    for begin, end in sorted([*first, *second]):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        elif begin < end:
            found.append((begin, end))
    return found


def within(runs: Runs, parts: Runs) -> Runs:
    """Where `parts`, each inside one of `runs`, lie when the tokens of `runs` are counted from 0."""
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
    """Where `parts`, each inside the second run of one of `places`, are when that lies where its first run does."""
    found: list[tuple[int, int]] = []
    begins = [begin for _, (begin, _) in places]
    for begin, end in parts:
        (at, _), (first, _) = places[bisect_right(begins, begin) - 1]
        found.append((at + begin - first, at + end - first))
    return found


def joined(pieces: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """The same with neighbours of one rank that go on where the other ends as one."""
    found: list[tuple[int, int, int]] = []
    for rank, begin, end in pieces:
        if found and found[-1][0] == rank and found[-1][2] == begin:
            found[-1] = rank, found[-1][1], end
        else:
            found.append((rank, begin, end))
    return found
