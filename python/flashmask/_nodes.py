# SPDX-License-Identifier: Apache-2.0
"""Nodes: a mask as a tree of runs of tokens, for layers with a state."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar, cast

import numpy as np

from flashmask._abi import structs as s
from flashmask._abi.library import call, create, library
from flashmask._arguments import IntArray, copied, described
from flashmask._graph_break import breaks_graph
from flashmask._mask import Mask
from flashmask._rows import RowIndices

Made = TypeVar("Made")


@dataclass(frozen=True, eq=False, repr=False)
class Nodes:
    """What a mask means for a layer with a state: where states begin, end and fork.

    A node is a run of tokens that follow each other. A state passes along it; where several nodes have one parent, the
    parent's last state is the first one of each. Nodes ascend, a parent before its children. Tokens of batch entry b
    are numbered from b * columns on, as in a tensor whose batch and sequence were made one axis.
    """

    tokens: int
    """Number of tokens, those of padding among them, which are in no node."""
    begins: IntArray
    """First token of each node, int64 [nodes]."""
    ends: IntArray
    """Token after the last one of each node."""
    parents: IntArray
    """The node whose last token a node's first one follows; -1 for a root."""
    levels: IntArray
    """How many nodes lie above."""
    predecessors: IntArray
    """The token whose state each token continues, int64 [tokens]; -1 at the begin of a root and for padding."""

    def __len__(self) -> int:
        return len(self.begins)

    @cached_property
    def depth(self) -> int:
        """Number of levels: 1 for documents, 2 for prompts with answers."""
        return int(self.levels.max(initial=-1)) + 1

    @cached_property
    def padding(self) -> IntArray:
        """Tokens in no node."""
        inside = np.zeros(self.tokens + 1, np.int64)
        np.add.at(inside, self.begins, 1)
        np.add.at(inside, self.ends, -1)
        return np.flatnonzero(np.cumsum(inside[:-1]) == 0)

    def kept(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """Returns what `make` makes of the nodes, made once for each key."""
        if key not in self._kept:
            self._kept[key] = make()
        return cast("Made", self._kept[key])

    @cached_property
    def _kept(self) -> dict[Hashable, object]:
        return {}

    def repeated(self, times: int) -> Nodes:
        """Returns the nodes of a batch whose entries all have this mask; the same ones for the same number."""
        return self if times == 1 else self.kept(("repeated", times), lambda: self._repeated(times))

    def _repeated(self, times: int) -> Nodes:
        entry = np.arange(times)[:, None]

        def shifted(values: IntArray, step: int) -> IntArray:
            return np.where(values < 0, values, values + entry * step).reshape(-1)

        return Nodes(
            self.tokens * times,
            shifted(self.begins, self.tokens),
            shifted(self.ends, self.tokens),
            shifted(self.parents, len(self)),
            np.tile(self.levels, times),
            shifted(self.predecessors, self.tokens),
        )

    def __reduce__(self) -> tuple[Any, ...]:
        arrays = self.begins, self.ends, self.parents, self.levels, self.predecessors
        return _unpickle, (self.tokens, *(each.tobytes() for each in arrays))

    def __repr__(self) -> str:
        return f"<flashmask.Nodes: {len(self):,} of {self.tokens:,} tokens, {self.depth} levels>"


def _unpickle(tokens: int, *arrays: bytes) -> Nodes:
    return Nodes(tokens, *(np.frombuffer(each, np.int64).copy() for each in arrays))


@breaks_graph
def nodes(mask: Mask | RowIndices) -> Nodes:
    """Finds the nodes of a mask, one tree or more per batch entry, on the host.

    mask: any mask in which what a token sees is itself and all that its predecessor sees: causal, packed documents,
        shared questions, trees, packed rollouts, with or without padding. RowIndices, as masks.from_cu_seqlens and
        masks.from_position_ids make them, are read from their device, which waits for it. A token that nobody sees is
        padding.

    Raises ValueError, naming the first column that does not fit, where a state would have to forget single tokens, as
    in a sliding window, or see later ones; NotImplementedError for masks held as bits or beside a block map.
    """
    if isinstance(mask, RowIndices):
        mask = mask.to_mask()
    if not isinstance(mask, Mask):
        raise TypeError(f"mask is {described(mask)}; expected flashmask.Mask or flashmask.RowIndices")
    handle = create("mask_nodes", mask._handle)
    try:
        view = s.NodesView()
        call("nodes_get", handle, ctypes.byref(view))
        return Nodes(
            view.tokens,
            begins=copied(view.begins, view.count),
            ends=copied(view.ends, view.count),
            parents=copied(view.parents, view.count),
            levels=copied(view.levels, view.count),
            predecessors=copied(view.predecessors, view.tokens),
        )
    finally:
        library.flashmask_nodes_destroy(handle)
