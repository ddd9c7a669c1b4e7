# SPDX-License-Identifier: Apache-2.0
"""Parcels: the tokens of several tensors that one all_to_all sends to, or receives from, each rank."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

from flashmask.distributed._group import Group
from flashmask.distributed._lent import lend
from flashmask.distributed._runs import Runs

Kinds: TypeAlias = tuple[tuple[torch.dtype, int, torch.Size], ...]
"""For each tensor (batch, tokens, ...): dtype, batch, and the sizes after the tokens."""
_ALIGNED = 16


def kinds_of(tensors: Sequence[Tensor]) -> Kinds:
    """Returns what a layout depends on besides numbers of tokens."""
    return tuple([(each.dtype, each.shape[0], each.shape[2:]) for each in tensors])


def parts_of(tensor: Tensor, runs: Runs) -> list[Tensor]:
    """Returns views of the tokens of each run."""
    return [tensor.narrow(1, begin, end - begin) for begin, end in runs]


class _Block(NamedTuple):
    """A contiguous tensor (batch, tokens, ...) inside a tensor of bytes; `offset` in elements."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    def of(self, memory: Tensor) -> Tensor:
        return memory.view(self.dtype).as_strided(self.shape, self.strides, self.offset)


class Layout:
    """The layout of tensors' tokens, for or from each rank in turn, in one tensor of bytes; `counts`: tokens per rank.

    Bytes work for every dtype on every backend. Tensors of one kind are stacked: the tokens of one and then those of
    the next make one block (batch, tokens of all, ...), which one copy packs.
    """

    def __init__(self, counts: tuple[int, ...], kinds: Kinds) -> None:
        self.stacks = [[place for place, each in enumerate(kinds) if each == kind] for kind in dict.fromkeys(kinds)]
        """The numbers of the tensors in each stack."""
        self.blocks: list[list[_Block]] = []
        """Blocks by rank and stack."""
        self.splits: list[int] = []
        """Bytes for each rank."""
        at = 0
        for count in counts:
            begin = at
            self.blocks.append([])
            for stack in self.stacks:
                dtype, batch, rest = kinds[stack[0]]
                shape = batch, len(stack) * count, *rest
                strides = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
                self.blocks[-1].append(_Block(dtype, shape, strides, at // dtype.itemsize))
                at += -(-math.prod(shape) * dtype.itemsize // _ALIGNED) * _ALIGNED
            self.splits.append(at - begin)
        self.bytes = at


_layout = lru_cache(64)(Layout)


def swapped(
    group: Group, tensors: Sequence[Tensor], runs: Sequence[Runs], gives: tuple[int, ...], gets: tuple[int, ...]
) -> Parcels:
    """Sends each rank the tokens of its runs, of all tensors; returns what ranks send to this one.

    gives, gets: number of tokens sent to each rank, those of its runs, and received from each.
    """
    sent = Parcels(gives, kinds_of(tensors), tensors[0].device)
    for rank, of_rank in enumerate(runs):
        if of_rank:
            sent.pack(rank, [parts_of(each, of_rank) for each in tensors])
    return sent.sent(group, gets)


class Parcels:
    """Memory for one all_to_all: for, or from, each rank counts[rank] tokens of tensors of these kinds."""

    def __init__(self, counts: tuple[int, ...], kinds: Kinds, device: torch.device) -> None:
        self._kinds, self._layout = kinds, _layout(counts, kinds)
        self.stacks = self._layout.stacks
        self._bytes = torch.empty(self._layout.bytes, dtype=torch.uint8, device=device)

    def pack(self, rank: int, parts: Sequence[Sequence[Tensor]]) -> None:
        """Packs parts of each tensor, one after the other, into the parcel for a rank."""
        for stack, block in zip(self.stacks, self._layout.blocks[rank], strict=True):
            torch.cat([part for place in stack for part in parts[place]], 1, out=block.of(self._bytes))

    def of(self, rank: int, cuts: list[int]) -> list[Sequence[Tensor]]:
        """Returns what came from a rank: each tensor, split into parts of `cuts` tokens."""
        found: dict[int, Sequence[Tensor]] = {}
        for stack, block in zip(self.stacks, self._layout.blocks[rank], strict=True):
            parts = block.of(self._bytes).split_with_sizes(cuts * len(stack), 1)
            for number, place in enumerate(stack):
                found[place] = parts[number * len(cuts) : (number + 1) * len(cuts)]
        return [found[place] for place in range(len(self._kinds))]

    def sent(self, group: Group, counts: tuple[int, ...]) -> Parcels:
        """Sends the parcels; returns what all ranks send to this one, counts[rank] tokens each."""
        received = Parcels(counts, self._kinds, self._bytes.device)
        splits = received._layout.splits, self._layout.splits
        dist.all_to_all_single(received._bytes, self._bytes, *splits, group=group.handle)
        lend(received._bytes, self._bytes)
        return received
