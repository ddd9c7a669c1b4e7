# SPDX-License-Identifier: Apache-2.0
"""Exchange: which tokens a rank sends to whom, which it gets, and in what order they lie there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from flashmask.distributed._group import Group
from flashmask.distributed._parcels import Parcels, parts_of, swapped
from flashmask.distributed._runs import Parts, Runs, carried, common, joined, tokens, union, within


@dataclass(frozen=True)
class Exchange:
    """One rank's exchange. The rank holds some tokens and computes with its own and others', in ascending order."""

    rank: int
    held: int
    """How many tokens the rank holds."""
    sends: list[Runs]
    """What every rank gets from this one, counted in the tokens that this one holds."""
    runs: Runs
    """The tokens that the rank computes with."""
    pieces: list[tuple[int, int, int]]
    """These tokens as (rank, begin, end), counted in the tokens that it holds, or in those it gets from that rank."""
    silent: bool
    """Whether no rank of the group sends anything."""

    @classmethod
    def of(cls, rank: int, held: Sequence[Runs], wanted: Sequence[Runs]) -> Exchange:
        """Makes the exchange from what every rank holds and what every rank wants to compute with."""
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
        """How many tokens the rank computes with."""
        return sum(end - begin for _, begin, end in self.pieces)

    @cached_property
    def _gives(self) -> tuple[int, ...]:
        """Number of tokens sent to each rank."""
        return tuple(map(tokens, self.sends))

    @cached_property
    def _gets(self) -> tuple[int, ...]:
        """Number of tokens received from each rank."""
        counts = [0] * len(self.sends)
        for source, begin, end in self.pieces:
            counts[source] += 0 if source == self.rank else end - begin
        return tuple(counts)

    @cached_property
    def cuts(self) -> dict[int, list[int]]:
        """Lengths of each rank's pieces, if any: they cover all that this rank holds, or gets from another rank."""
        return {
            rank: [end - begin for source, begin, end in self.pieces if source == rank]
            for rank in sorted({source for source, _, _ in self.pieces})
        }

    @cached_property
    def _order(self) -> list[int]:
        """Place of each piece in the list of pieces sorted by rank."""
        by_rank = sorted(range(len(self.pieces)), key=lambda number: self.pieces[number][0])
        return sorted(range(len(by_rank)), key=lambda place: by_rank[place])

    def ordered(self, of_ranks: Sequence[Sequence[Tensor]]) -> list[Tensor]:
        """Puts the pieces in order, given those of each rank in `cuts`."""
        parts = [part for of_rank in of_ranks for part in of_rank]
        return [parts[place] for place in self._order]

    def fetch(self, group: Group, tensors: Sequence[Tensor], *, apart: bool = False) -> list[Tensor]:
        """Turns tensors (batch, tokens held, ...) into (batch, tokens computed with, ...).

        Unless `apart`, results may share memory with each other or with `tensors`.
        """
        received = None if self.silent else swapped(group, tensors, self.sends, self._gives, self._gets)
        if received is None or not any(self._gets):
            return [each.clone() for each in tensors] if apart else list(tensors)
        cut = [
            [each.split_with_sizes(cuts, 1) for each in tensors] if rank == self.rank else received.of(rank, cuts)
            for rank, cuts in self.cuts.items()
        ]
        found: dict[int, Tensor] = {}
        for stack in [[place] for place in range(len(tensors))] if apart else received.stacks:
            parts = [part for place in stack for part in self.ordered([of_rank[place] for of_rank in cut])]
            whole = torch.cat(parts, 1).split_with_sizes([self.tokens] * len(stack), 1)
            found.update(zip(stack, whole, strict=True))
        return [found[place] for place in range(len(tensors))]

    def give_back(
        self, group: Group, partials: Sequence[Tensor], dtype: torch.dtype | None = None, *, apart: bool = True
    ) -> list[Tensor]:
        """Sums partials (batch, tokens computed with, ...) over ranks, in their order, into (batch, tokens held, ...).

        Adds up in `partials`, and rounds the sums to `dtype` once. Unless `apart`, results may share memory with
        `partials`, and so keep all of it.
        """
        if self.silent:
            return list(partials)
        self._add(partials, swapped(group, partials, self._fetched, self._gets, self._gives))
        return [self._own(partial, dtype or partial.dtype, apart) for partial in partials]

    def _own(self, sums: Tensor, dtype: torch.dtype, apart: bool) -> Tensor:
        """Takes the sums of the tokens that the rank holds."""
        parts = parts_of(sums, [place for place, _ in self._places[self.rank]])
        if len(parts) == 1:
            return parts[0].to(dtype, copy=apart)
        own = sums.new_empty((sums.shape[0], self.held, *sums.shape[2:]), dtype=dtype)
        return torch.cat(parts, 1, out=own) if parts else own

    def _add(self, partials: Sequence[Tensor], received: Parcels) -> None:
        early: list[Tensor] = []
        if self._early:
            early = [each.new_zeros((each.shape[0], tokens(self._early), *each.shape[2:])) for each in partials]
        for source, places in enumerate(self._returns):
            if not places:
                continue
            counts = [end - begin for begin, end in places]
            of_early = source == self.rank
            given = [each.split_with_sizes(counts, 1) for each in early] if of_early else received.of(source, counts)
            into = early if early and source < self.rank else partials
            for total, parts in zip(into, given, strict=True):
                for place, part in zip(parts_of(total, places), parts, strict=True):
                    place.add_(part)

    @cached_property
    def _early(self) -> Runs:
        """Held tokens that ranks before this one give back, in runs that each lie inside one piece.

        Empty if at most one of these ranks gives any back: its tokens are added to the partials directly.
        """
        before = [runs for runs in self.sends[: self.rank] if runs]
        if len(before) < 2:
            return []
        found: Runs = []
        for runs in before:
            found = union(found, runs)
        return common(found, [place for _, place in self._places[self.rank]])

    @cached_property
    def _returns(self) -> list[Runs]:
        """For each rank, where what it gives back is added, in rank order.

        Ranks before this one add to the early sums, if there are any, and else to the partials. This rank's entry says
        where the early sums are added to the partials. Later ranks add to the partials.
        """
        own, early, before = self._places[self.rank], self._early, self.sends[: self.rank]
        first = [within(early, runs) for runs in before] if early else [carried(runs, own) for runs in before]
        return [*first, *(carried(runs, own) for runs in (early, *self.sends[self.rank + 1 :]))]

    @cached_property
    def _fetched(self) -> list[Runs]:
        """Where the pieces of each other rank lie among the tokens that the rank computes with."""
        return [[] if rank == self.rank else [at for at, _ in places] for rank, places in enumerate(self._places)]

    @cached_property
    def _places(self) -> list[Parts]:
        """For each rank's pieces, where they lie among the tokens computed with, and their ranges in `pieces`."""
        places: list[Parts] = [[] for _ in self.sends]
        at = 0
        for source, begin, end in self.pieces:
            places[source].append(((at, at + end - begin), (begin, end)))
            at += end - begin
        return places
