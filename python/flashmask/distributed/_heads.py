# SPDX-License-Identifier: Apache-2.0
"""Exchanges some tokens of all heads for all tokens of some heads, and back: the scheme "heads", and recurrences.

Jacobs et al. 2023 (DeepSpeed-Ulysses), section 3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import Tensor

from flashmask.distributed._group import Group
from flashmask.distributed._lent import lend
from flashmask.distributed._local import Local
from flashmask.distributed._parcels import Kinds, kinds_of
from flashmask.distributed._runs import tokens

_WORDS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}


def range_of(heads: int, groups: int, rank: int, ranks: int) -> tuple[int, int]:
    """Returns the range of groups, each of as many heads, that the heads of a rank are in."""
    begin, end = rank * heads // ranks, (rank + 1) * heads // ranks
    return begin * groups // heads, -(-end * groups // heads)


def exchange_of(local: Local, kinds: Kinds, heads: int | None = None) -> HeadExchange:
    """Returns the exchange of tensors of these kinds, which have all heads; made once per sharding and kinds.

    heads: how many are dealt to the ranks, if tensors may have fewer, a divisor: groups of heads.
    """
    key = kinds, heads
    found: HeadExchange | None = local.exchanges.get(key)
    if found is None:
        found = local.exchanges[key] = HeadExchange(local, kinds, heads)
    return found


def of_all_ranks(tensors: Sequence[Tensor], heads: Sequence[int]) -> Kinds:
    """Returns the kinds of tensors that have heads of one rank, as they are with all `heads`."""
    kinds = zip(kinds_of(tensors), heads, strict=True)
    return tuple([(dtype, batch, torch.Size((count, *rest[1:]))) for (dtype, batch, rest), count in kinds])


class HeadExchange:
    """One rank's exchange, of tensors that it is made for.

    What is sent is rows: of a token, the rank's heads of one tensor, then those of the next, as integers that are as
    wide as all of these allow. So one copy packs a rank's tokens of all tensors, whatever their dtypes.
    """

    def __init__(self, local: Local, kinds: Kinds, heads: int | None) -> None:
        self.local, self._kinds, self._heads = local, kinds, heads
        self._batch = kinds[0][1]
        if any(batch != self._batch for _, batch, _ in kinds):
            raise ValueError(f"tensors have batches of {[batch for _, batch, _ in kinds]}; expected one batch")
        self.shares = [
            [range_of(heads or rest[0], rest[0], rank, local.ranks) for rank in range(local.ranks)]
            for _, _, rest in kinds
        ]
        """For each tensor, the range of its heads that each rank computes with. They cover its heads, ascend, and may
        overlap, where several ranks need one group."""
        of_head = [dtype.itemsize * math.prod(rest[1:]) for dtype, _, rest in kinds]
        bounds = zip(of_head, self.shares, strict=True)
        size = math.gcd(8, *(each * bound for each, parts in bounds for part in parts for bound in part))
        self._word = _WORDS[size]
        self._cuts = [
            [(begin * each // size, (end - begin) * each // size) for begin, end in parts]
            for each, parts in zip(of_head, self.shares, strict=True)
        ]
        """For each tensor and rank, where the rank's words begin among those of a token, and how many they are."""
        self._apart = [all(before[1] == after[0] for before, after in pairwise(parts)) for parts in self.shares]
        self._is_even = all(self._apart) and all(len({width for _, width in cuts}) == 1 for cuts in self._cuts)
        self._shapes_held = [(self._batch, local.held, *rest) for _, _, rest in kinds]
        self._shapes_whole = [
            (self._batch, local.tokens, parts[local.rank][1] - parts[local.rank][0], *rest[1:])
            for (_, _, rest), parts in zip(kinds, self.shares, strict=True)
        ]
        """For each tensor, its shape with the tokens held here and all heads; with all tokens and this rank's heads."""
        self._widths = [[cuts[rank][1] for cuts in self._cuts] for rank in range(local.ranks)]
        """For each rank and tensor, the words of a token."""
        self._rows = [sum(widths) for widths in self._widths]
        self._of_tokens = [self._batch * local.held * row for row in self._rows]
        """For each rank, how many words are the tokens held here with its heads."""
        own = self._rows[local.rank]
        self._of_heads = [self._batch * tokens(runs) * own for runs in local.runs]
        """For each rank, how many words are its tokens with the heads of this one."""
        self._is_in_order = self._batch == 1 and all(
            before[1] == after[0] for before, after in pairwise([run for runs in local.runs for run in runs])
        )

    def chosen(self, places: Sequence[int]) -> HeadExchange:
        """Returns the exchange of some of the tensors."""
        return exchange_of(self.local, tuple([self._kinds[place] for place in places]), self._heads)

    def to_heads(self, group: Group, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Turns tensors (batch, tokens held, heads, ...) into (batch, all tokens, heads of this rank, ...)."""
        own = self.local.rank
        received = self._swapped(group, self._of_each_rank(tensors), self._of_tokens, self._of_heads)
        pieces = [each.split_with_sizes(self._widths[own], 2) for each in self._in_order(received)]
        found = []
        for place, (dtype, _, _) in enumerate(self._kinds):
            parts = [piece[place] for piece in pieces]
            words = torch.cat(parts, 1) if len(parts) > 1 else parts[0].contiguous()
            found.append(_plain(words.view(dtype).view(self._shapes_whole[place])))
        return found

    def to_tokens(self, group: Group, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Turns tensors (batch, all tokens, heads of this rank, ...) into (batch, tokens held, heads, ...).

        A head of several ranks is the sum of what each has, added in their order, in float32 at least, and rounded
        once.
        """
        local = self.local
        rows = [self._words(each) for each in tensors]
        sent = torch.empty(sum(self._of_heads), dtype=self._word, device=tensors[0].device)
        self._pack(rows, sent)
        received = self._swapped(group, sent, self._of_heads, self._of_tokens)
        parts = [
            block.view(self._batch, local.held, row).split_with_sizes(widths, 2)
            for block, row, widths in zip(
                received.split_with_sizes(self._of_tokens), self._rows, self._widths, strict=True
            )
        ]
        return [self._together(place, [part[place] for part in parts]) for place in range(len(tensors))]

    def _words(self, tensor: Tensor) -> Tensor:
        """Returns (batch, tokens, words) of a tensor (batch, tokens, heads, ...)."""
        shape = self._batch, tensor.shape[1], math.prod(tensor.shape[2:])
        rows = tensor.view(shape) if tensor.is_contiguous() else tensor.reshape(shape)
        ratio = max(self._word.itemsize // rows.element_size(), 1)
        entries, of_tokens, last = rows.stride()
        if last != 1 or entries % ratio or of_tokens % ratio or rows.storage_offset() % ratio:
            rows = rows.clone(memory_format=torch.contiguous_format)
        return rows.view(self._word)

    def _of_each_rank(self, tensors: Sequence[Tensor]) -> Tensor:
        """Packs the words of each rank's heads of the tokens held here."""
        batch, held, ranks = self._batch, self.local.held, self.local.ranks
        words = [self._words(each) for each in tensors]
        if self._is_even:
            apart = [
                each.as_strided((ranks, batch, held, cuts[0][1]), (cuts[0][1], *each.stride()))
                for each, cuts in zip(words, self._cuts, strict=True)
            ]
            return torch.cat(apart, 3).view(-1)
        sent = torch.empty(sum(self._of_tokens), dtype=self._word, device=words[0].device)
        for rank, block in enumerate(sent.split_with_sizes(self._of_tokens)):
            parts = [each.narrow(2, *cuts[rank]) for each, cuts in zip(words, self._cuts, strict=True)]
            torch.cat(parts, 2, out=block.view(batch, held, self._rows[rank]))
        return sent

    def _swapped(self, group: Group, sent: Tensor, sizes: Sequence[int], sizes_back: Sequence[int]) -> Tensor:
        """Sends sizes[rank] words to each rank; returns what comes, sizes_back[rank] words from each."""
        received = torch.empty(sum(sizes_back), dtype=self._word, device=sent.device)
        size = self._word.itemsize
        given, got = sent.view(torch.uint8), received.view(torch.uint8)  # bytes: backends lack some integers
        splits = [size * each for each in sizes_back], [size * each for each in sizes]
        dist.all_to_all_single(got, given, *splits, group=group.handle)
        lend(got, given)
        return received

    def _in_order(self, received: Tensor) -> Sequence[Tensor]:
        """Returns all tokens, (batch, tokens, words of this rank), in pieces that follow each other."""
        local, row = self.local, self._rows[self.local.rank]
        if self._is_in_order:
            return [received.view(1, local.tokens, row)]
        everything, blocks = local.everything, received.split_with_sizes(self._of_heads)
        return everything.ordered(
            [
                blocks[rank].view(self._batch, sum(cuts), row).split_with_sizes(cuts, 1)
                for rank, cuts in everything.cuts.items()
            ]
        )

    def _pack(self, rows: Sequence[Tensor], sent: Tensor) -> None:
        """Packs the rows (batch, all tokens, words) of all tensors, for each rank those of its tokens."""
        local, row = self.local, self._rows[self.local.rank]
        if self._is_in_order:
            torch.cat(list(rows), 2, out=sent.view(1, local.tokens, row))
            return
        for runs, block in zip(local.runs, sent.split_with_sizes(self._of_heads), strict=True):
            lengths = [end - begin for begin, end in runs]
            into = block.view(self._batch, sum(lengths), row).split_with_sizes(lengths, 1)
            for (begin, end), each in zip(runs, into, strict=True):
                torch.cat([whole.narrow(1, begin, end - begin) for whole in rows], 2, out=each)

    def _together(self, place: int, parts: list[Tensor]) -> Tensor:
        """Returns (batch, tokens held, heads, ...) of the words from all ranks, sums where their ranges overlap."""
        dtype, _, rest = self._kinds[place]
        shape = self._shapes_held[place]
        if self._apart[place]:
            return _plain(torch.cat(parts, 2).view(dtype).view(shape))
        sums = torch.promote_types(dtype, torch.float32)
        total = torch.zeros(shape, dtype=sums, device=parts[0].device)
        for part, (begin, end) in zip(parts, self.shares[place], strict=True):
            total.narrow(2, begin, end - begin).add_(
                part.contiguous().view(dtype).view(*shape[:2], end - begin, *rest[1:])
            )
        return total.to(dtype)


def _plain(tensor: Tensor) -> Tensor:
    """Returns the tensor without its being a view: results of a Function that are views cannot be changed in place."""
    return tensor.data
