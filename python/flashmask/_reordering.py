# SPDX-License-Identifier: Apache-2.0
"""Reordering: a mask in an order of tokens that takes less work."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np

from flashmask._abi import structs as s
from flashmask._abi.library import call, create, library
from flashmask._arguments import IntArray, SparseRows, copied, described, integers, pointer
from flashmask._explain import tile_shape
from flashmask._graph_break import breaks_graph
from flashmask._mask import Mask, MaskShape


@dataclass(frozen=True, eq=False)
class Reordering:
    """A mask whose visible scores were gathered into fewer tiles by renaming tokens.

    Sharma and Geiping 2024 (Binary Block Masking), section 3.2.
    """

    mask: Mask
    """The mask in the new order."""
    rows: IntArray
    """Permutation [batch, rows]: row i of `mask` is row rows[b, i] of the original. Gather q, o, lse by it."""
    columns: IntArray
    """Permutation [batch, columns] of the columns. Gather k and v by it."""
    gained: bool
    """Whether work was saved; if not, `mask` equals the original and the permutations change nothing."""
    tile: tuple[int, int]
    tiles_before: int
    """Active tiles of the original mask."""
    tiles_after: int
    why: str
    """The order that was chosen, or why none was."""

    def __str__(self) -> str:
        return (
            f"{self.tiles_before:,} -> {self.tiles_after:,} active tiles at {self.tile[0]} x {self.tile[1]}: {self.why}"
        )


def reorder(mask: Mask, tile: object) -> Reordering:
    """See Mask.reorder."""
    tile_rows, tile_columns = tile_shape(tile)
    handle = create("mask_reorder", mask._handle, tile_rows, tile_columns)
    try:
        view = s.ReorderingView()
        call("reordering_get", handle, ctypes.byref(view))
        shape = mask.shape
        return Reordering(
            mask=Mask(create("reordering_get_mask", handle)),
            rows=copied(view.rows, shape.batch, shape.rows),
            columns=copied(view.columns, shape.batch, shape.columns),
            gained=bool(view.gained),
            tile=(view.tile_rows, view.tile_columns),
            tiles_before=view.tiles_before,
            tiles_after=view.tiles_after,
            why=view.why.decode(),
        )
    finally:
        library.flashmask_reordering_destroy(handle)


def permute(mask: Mask, rows: object, columns: object) -> Mask:
    """See Mask.permute."""
    shape = mask.shape
    by_row, by_column = _order("rows", rows, shape), _order("columns", columns, shape)
    return Mask(create("mask_permute", mask._handle, pointer(by_row), pointer(by_column)))


def _order(name: str, given: object, shape: MaskShape) -> IntArray:
    """Returns one permutation per batch entry, [batch, tokens]; one for all may be given without the batch."""
    order = integers(name, given, ndim=(1, 2))
    tokens = getattr(shape, name)
    if order.shape not in ((tokens,), (shape.batch, tokens)):
        raise ValueError(f"{name} has shape {list(order.shape)}; expected [{tokens}] or [{shape.batch}, {tokens}]")
    return np.ascontiguousarray(np.broadcast_to(order, (shape.batch, tokens)))


@breaks_graph
def reverse_cuthill_mckee(matrix: SparseRows) -> IntArray:
    """Returns the nodes of a graph in the order of Cuthill and McKee (1969), reversed; int64 [nodes].

    `matrix` holds compressed sparse rows with edges in both directions, as flashmask.masks.from_csr takes them. The
    order is breadth first, with a node's neighbours by ascending degree, from an end of each component (George and Liu
    1979).
    """
    if not all(hasattr(matrix, name) for name in ("indptr", "indices")):
        raise TypeError(f"matrix is {described(matrix)}; expected compressed sparse rows with indptr and indices")
    offsets, neighbours = integers("matrix.indptr", matrix.indptr), integers("matrix.indices", matrix.indices)
    if offsets.size == 0:
        raise ValueError("matrix.indptr is empty; expected one offset a node and the end")
    order = np.empty(offsets.size - 1, np.int64)
    call(
        "reverse_cuthill_mckee",
        order.size,
        pointer(offsets),
        pointer(neighbours),
        neighbours.size,
        pointer(order),
    )
    return order
