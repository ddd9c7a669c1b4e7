# SPDX-License-Identifier: Apache-2.0
"""Builders of common block maps.

`shape` counts scores, (rows, columns) or (batch, heads, rows, columns), and `block` is the side of a block in tokens, a
multiple of 16. Each row of blocks has an own block, aligned bottom-right like causality: that of row i is block
i + block columns − block rows.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from flashmask._arguments import AnyArray, array, described, integer, length
from flashmask._block_map import BlockMap, block_side, of_blocks, score_shape
from flashmask._graph_break import breaks_graph
from flashmask._mask import MaskShape

if TYPE_CHECKING:
    from flashmask._block_map import Blocks, Shape

__all__ = ["at_least", "best", "butterfly", "create", "from_dense", "random", "sliding", "strided"]


@breaks_graph
def create(shape: Shape, block: int, keep: Blocks) -> BlockMap:
    """Returns BlockMap(shape, block, keep)."""
    return BlockMap(shape, block, keep)


@breaks_graph
def from_dense(visible: Blocks, block: int) -> BlockMap:
    """Keeps the blocks of `visible`, booleans or 0 and 1 [rows, columns], that hold a visible score.

    `visible` may have heads, or batch and heads, in front. Blocks have a side of `block` tokens; the last row and
    column of blocks may be ragged.
    """
    given = np.asarray(visible) if isinstance(visible, (list, tuple)) else array("visible", visible)
    if given.dtype.kind not in "biu":
        raise TypeError(f"visible holds {given.dtype} values; expected booleans, or integers that are 0 or 1")
    if given.ndim not in (2, 3, 4):
        raise ValueError(f"visible has shape {list(given.shape)}; expected 2 to 4 dimensions")
    side = block_side(block)
    seen = given.reshape((1,) * (4 - given.ndim) + given.shape) != 0
    if 0 not in seen.shape:
        by_row = np.logical_or.reduceat(seen, np.arange(0, seen.shape[2], side), axis=2)
        keep = np.logical_or.reduceat(by_row, np.arange(0, seen.shape[3], side), axis=3)
    else:
        keep = np.zeros((*seen.shape[:2], -(-seen.shape[2] // side), -(-seen.shape[3] // side)), np.bool_)
    return BlockMap(MaskShape(*seen.shape), side, keep)


@breaks_graph
def butterfly(shape: Shape, block: int, strides: int | None = None) -> BlockMap:
    """Keeps each row's own block and those whose number differs from its own in one of the lowest `strides` bits.

    `strides` None: in any one bit. If the number of blocks per side is a power of two, each row keeps strides + 1
    blocks. Chen et al. 2021 (Pixelated Butterfly), section 3.2: flat block butterfly.
    """
    bits = -1 if strides is None else length("strides", strides)
    return BlockMap._built("butterfly", score_shape(shape), block_side(block), (bits,))


@breaks_graph
def strided(shape: Shape, block: int, stride: int) -> BlockMap:
    """Keeps each row's own block and every block a multiple of `stride` blocks before or after it."""
    step = integer("stride", stride, minimum=1)
    return BlockMap._built("strided", score_shape(shape), block_side(block), (step,))


@breaks_graph
def sliding(shape: Shape, block: int, left: int, right: int) -> BlockMap:
    """Keeps each row's own block and its `left` and `right` neighbours."""
    sides = (length("left", left), length("right", right))
    return BlockMap._built("sliding", score_shape(shape), block_side(block), sides)


@breaks_graph
def random(shape: Shape, block: int, kept: int, seed: int) -> BlockMap:
    """Keeps `kept` different random blocks in every row of blocks of every batch entry and head, all equally likely.

    `seed`, an unsigned integer, gives the same map on every machine.
    """
    draw = (length("kept", kept), integer("seed", seed, minimum=0, maximum=2**64 - 1))
    return BlockMap._built("random", score_shape(shape), block_side(block), draw)


@breaks_graph
def best(shape: Shape, block: int, scores: Blocks, kept: int) -> BlockMap:
    """Keeps each row's `kept` best blocks, the earlier ones among equals; never a block at −inf.

    `scores`, such as estimated attention: [batch, heads, block rows, block columns], or fewer leading dimensions.
    """
    extent, side = score_shape(shape), block_side(block)
    return BlockMap._built("best", extent, side, (_scores(scores, extent, side), length("kept", kept)))


@breaks_graph
def at_least(shape: Shape, block: int, scores: Blocks, threshold: float) -> BlockMap:
    """Keeps the blocks that score at least `threshold`; `scores` as in best()."""
    if isinstance(threshold, bool) or not isinstance(threshold, (int, float, np.number)):
        raise TypeError(f"threshold is {described(threshold)}; expected a number")
    if math.isnan(threshold):
        raise ValueError("threshold is nan; expected a number")
    extent, side = score_shape(shape), block_side(block)
    return BlockMap._built("at_least", extent, side, (_scores(scores, extent, side), float(threshold)))


def _scores(scores: object, shape: MaskShape, block: int) -> AnyArray:
    """Returns scores as float32, one per block."""
    return of_blocks("scores", scores, shape, block, "fiu").astype(np.float32)
