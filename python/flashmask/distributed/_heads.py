# SPDX-License-Identifier: Apache-2.0
"""Exchanges some tokens of all heads for all tokens of some heads, and back: the scheme "heads", and recurrences.

Jacobs et al. 2023 (DeepSpeed-Ulysses), section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TypeAlias

import torch
from torch import Tensor

from flashmask.distributed._group import Group
from flashmask.distributed._local import Local
from flashmask.distributed._parcels import Parcels, kinds_of, swapped
from flashmask.distributed._runs import tokens

Shares: TypeAlias = Sequence[Sequence[tuple[int, int]]]
"""For each tensor, the range of its heads that each rank computes with. Ranges of one tensor cover its heads, ascend,
and may overlap, where several ranks need one group's keys."""


def to_heads(tensors: Sequence[Tensor], local: Local, group: Group, shares: Shares | None = None) -> list[Tensor]:
    """Turns tensors (batch, tokens held, heads, ...) into (batch, all tokens, heads of this rank, ...).

    `shares`: the heads of each rank; None: as many for each.
    """
    if shares is None:
        cut = [list(each.chunk(local.ranks, 2)) for each in tensors]
    else:
        cut = [[_heads(each, part) for part in parts] for each, parts in zip(tensors, shares, strict=True)]
    of_ranks = list(zip(*cut, strict=True))
    kinds = (kinds_of(of_ranks[0]),) * local.ranks if shares is None else tuple(map(kinds_of, of_ranks))
    sent = Parcels((local.held,) * local.ranks, kinds, tensors[0].device)
    for rank, of_rank in enumerate(of_ranks):
        sent.pack(rank, [[share] for share in of_rank])
    received = sent.sent(group, tuple(map(tokens, local.runs)), (kinds[local.rank],) * local.ranks)
    everything = local.everything
    pieces = [received.of(rank, cuts) for rank, cuts in everything.cuts.items()]
    return [torch.cat(everything.ordered([of_rank[place] for of_rank in pieces]), 1) for place in range(len(tensors))]


def to_tokens(tensors: Sequence[Tensor], local: Local, group: Group, shares: Shares | None = None) -> list[Tensor]:
    """Turns tensors (batch, all tokens, heads of this rank, ...) into (batch, tokens held, heads, ...).

    `shares`: the heads of each rank; None: as many for each. A head of several ranks is the sum of what each has, added
    in their order, in float32 at least, and rounded once.
    """
    kinds = None
    if shares is not None:
        kinds = tuple(
            tuple(
                (dtype, batch, torch.Size([parts[rank][1] - parts[rank][0], *rest[1:]]))
                for (dtype, batch, rest), parts in zip(kinds_of(tensors), shares, strict=True)
            )
            for rank in range(local.ranks)
        )
    received = swapped(group, tensors, local.runs, (local.held,) * local.ranks, kinds)
    sources = [received.of(rank, [local.held]) for rank in range(local.ranks)]
    of_tensors = [[source[place][0] for source in sources] for place in range(len(tensors))]
    if shares is None:
        return [torch.cat(parts, 2) for parts in of_tensors]
    return [_together(parts, ranges) for parts, ranges in zip(of_tensors, shares, strict=True)]


def _heads(tensor: Tensor, part: tuple[int, int]) -> Tensor:
    begin, end = part
    return tensor.narrow(2, begin, end - begin)


def _together(parts: Sequence[Tensor], ranges: Sequence[tuple[int, int]]) -> Tensor:
    """Returns (batch, tokens, heads, ...) of the ranks' parts, sums where their ranges overlap."""
    if all(before[1] == after[0] for before, after in pairwise(ranges)):
        return torch.cat(list(parts), 2)
    first = parts[0]
    dtype = torch.promote_types(first.dtype, torch.float32)
    total = first.new_zeros((*first.shape[:2], ranges[-1][1], *first.shape[3:]), dtype=dtype)
    for part, each in zip(parts, ranges, strict=True):
        _heads(total, each).add_(part)
    return total.to(first.dtype)
