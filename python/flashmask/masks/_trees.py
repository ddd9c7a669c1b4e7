# SPDX-License-Identifier: Apache-2.0
"""Masks of trees and graphs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from flashmask._abi import structs as s
from flashmask._abi.header import Options
from flashmask._abi.library import create
from flashmask._arguments import IntArray, boolean, choice, integers, length, pairs, pointer, structs
from flashmask._arguments import lengths as token_counts
from flashmask._graph_break import breaks_graph
from flashmask._mask import Mask

if TYPE_CHECKING:
    from flashmask._arguments import Integers, Pairs

_ORDERS = ("as_given", "depth_first")
_SIGHTS = ("ancestors", "parent")


class TreeMask(Mask):
    """A tree's mask, which also says where each given node's first token lies: `positions`, int64 [nodes].

    `mask, positions = masks.tree(...)` takes it apart.
    """

    positions: IntArray

    def __init__(self, handle: int, positions: IntArray, mask_id: bytes | None = None) -> None:
        super().__init__(handle, mask_id)
        self.positions = positions

    @property
    def mask(self) -> Mask:
        """The mask, which this is."""
        return self

    def __iter__(self) -> Iterator[Any]:
        return iter((self.mask, self.positions))

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle_tree, (self._packed(Options()).tobytes(), self.positions.tolist())


def _unpickle_tree(packed: bytes, positions: list[int]) -> TreeMask:
    return TreeMask._unpack(np.frombuffer(packed, np.uint8), np.array(positions, np.int64))


@breaks_graph
def tree(
    parents: Integers,
    lengths: Integers,
    tokens: int | None = None,
    order: Literal["as_given", "depth_first"] = "depth_first",
) -> TreeMask:
    """A forest: each node sees its ancestors and itself, causally.

    Node k has lengths[k] tokens and the parent parents[k], −1 for a root; both [nodes]. "depth_first" lays the nodes
    out so that every subtree is contiguous, and `positions` says where each went; "as_given" keeps the order of the
    arrays, and raises ValueError where a parent does not come before its children or a subtree is not contiguous.
    `tokens` defaults to the sum of the lengths.
    """
    above, sizes = integers("parents", parents), token_counts("lengths", lengths)
    if above.size != sizes.size:
        raise ValueError(f"parents has {above.size} nodes, lengths has {sizes.size}; expected as many of each")
    total = int(sizes.sum()) if tokens is None else length("tokens", tokens)
    positions = np.empty(above.size, np.int64)
    layout = choice("order", order, _ORDERS)
    handle = create("mask_tree", pointer(above), pointer(sizes), above.size, total, layout, pointer(positions))
    return TreeMask(handle, positions)


@breaks_graph
def tree_in_order(
    parents: Integers, tokens: int, prefix: int = 0, sight: Literal["ancestors", "parent"] = "ancestors"
) -> Mask:
    """A forest of one token per node in the order of the array, as a decoder verifies speculated tokens.

    `parents` [nodes] holds for each node an earlier one, or −1 for a root. All nodes see the `prefix` columns before
    them (the cache); the rest of `tokens` is padding. The mask has `tokens` rows and prefix + tokens columns. `sight`:
    a node sees its ancestors, or its parent only, as in the mask generator published with Binary Block Masking (Sharma
    and Geiping 2024).
    """
    above = integers("parents", parents)
    return Mask(
        create(
            "mask_tree_in_order",
            pointer(above),
            above.size,
            length("tokens", tokens),
            length("prefix", prefix),
            choice("sight", sight, _SIGHTS),
        )
    )


@breaks_graph
def medusa_parents(candidates: Integers) -> IntArray:
    """Returns the parents in MEDUSA's tree, breadth first, for tree_in_order().

    The tree has candidates[0] roots and candidates[k] children for each node of level k − 1. The result is int64 [sum
    over k of the product of candidates[0] to candidates[k]]. Cai et al. 2024 (Medusa), section 2.1.2.
    """
    counts = token_counts("candidates", candidates)
    parents = np.empty(0, np.int64)
    level = np.array([-1])
    for count in counts:
        first = parents.size
        parents = np.concatenate([parents, np.repeat(level, count)])
        level = np.arange(first, parents.size)
    return parents


@breaks_graph
def medusa_tree(
    candidates: Integers, tokens: int, prefix: int = 0, sight: Literal["ancestors", "parent"] = "ancestors"
) -> Mask:
    """tree_in_order() of medusa_parents(candidates)."""
    counts = token_counts("candidates", candidates)
    return Mask(
        create(
            "mask_medusa_tree",
            pointer(counts),
            counts.size,
            length("tokens", tokens),
            length("prefix", prefix),
            choice("sight", sight, _SIGHTS),
        )
    )


@breaks_graph
def graph(nodes: int, edges: Pairs, *, symmetric: bool = False, self_loops: bool = False) -> Mask:
    """Attention over a graph: row u sees column v for each edge (u, v) of `edges` [count, 2], in any order.

    `symmetric`: an edge (u, v) also lets row v see column u. `self_loops`: every node sees itself. Repeated edges count
    once.
    """
    given = pairs("edges", edges)
    return Mask(
        create(
            "mask_graph",
            length("nodes", nodes),
            structs(given, s.VisiblePair),
            len(given),
            int(boolean("symmetric", symmetric)),
            int(boolean("self_loops", self_loops)),
        )
    )
