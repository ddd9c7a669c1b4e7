# SPDX-License-Identifier: Apache-2.0
"""BlockMap: blocks of scores that are kept or left out as a whole."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from flashmask._abi.library import create, library
from flashmask._arguments import AnyArray, array, described, integer, length, pointer
from flashmask._graph_break import breaks_graph
from flashmask._mask import Mask, MaskShape

if TYPE_CHECKING:
    import torch

    Blocks: TypeAlias = AnyArray | torch.Tensor | Sequence[Any]
    Shape: TypeAlias = MaskShape | tuple[int, int] | tuple[int, int, int, int]


class BlockMap:
    """Blocks of scores that are kept or left out as a whole, alone (`to_mask`) or ANDed onto a mask (`mask & map`).

    The mask of block-sparse attention: Dao et al. 2022 (FlashAttention), algorithm 5. Built by flashmask.block_maps.
    """

    @breaks_graph
    def __init__(self, shape: Shape, block: int, keep: Blocks) -> None:
        """Keeps the blocks where `keep`, booleans or 0 and 1 [ceil(rows / block), ceil(columns / block)], is set.

        `keep` may have heads, or batch and heads, in front. `shape` counts scores: (rows, columns) or (batch, heads,
        rows, columns). `block` is a multiple of 16.
        """
        extent, side = score_shape(shape), block_side(block)
        kept = of_blocks("keep", keep, extent, side, "biu")
        if kept.size and not np.isin(kept, (0, 1)).all():
            raise ValueError("keep holds other values than 0 and 1; expected 1 = keep, 0 = leave out")
        self._make("create", extent, side, (kept.astype(np.uint8),))

    def _make(self, builder: str, shape: MaskShape, block: int, details: tuple[Any, ...]) -> None:
        """Calls flashmask_block_map_<builder>; arrays among the details are passed as pointers."""
        arguments = [_as_pointer(value) if isinstance(value, np.ndarray) else value for value in details]
        self._handle = create(f"block_map_{builder}", shape.struct(), block, *arguments)
        self._recipe = (builder, shape, block, details)

    @classmethod
    def _built(cls, *recipe: Any) -> BlockMap:
        """Makes the block map of a builder of flashmask.block_maps, whose arguments were checked."""
        block_map = cls.__new__(cls)
        block_map._make(*recipe)
        return block_map

    def __del__(self, destroy: Any = library.flashmask_block_map_destroy) -> None:
        handle = getattr(self, "_handle", None)
        if handle is not None:
            destroy(handle)

    def __reduce__(self) -> tuple[Any, ...]:
        return BlockMap._built, self._recipe

    def __copy__(self) -> BlockMap:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> BlockMap:
        return self

    @property
    def shape(self) -> MaskShape:
        """(batch, heads, rows, columns), counting scores."""
        shape: MaskShape = self._recipe[1]
        return shape

    @property
    def block(self) -> int:
        """Side of a block in tokens."""
        return self._recipe[2]

    @property
    @breaks_graph
    def density(self) -> float:
        """Share of the blocks that are kept."""
        cost = self.to_mask().explain((self.block, self.block))
        return cost.active_tiles / cost.tiles if cost.tiles else 0.0

    @breaks_graph
    def to_mask(self) -> Mask:
        """Returns the kept blocks as a mask."""
        return Mask(create("mask_from_block_map", self._handle))

    @breaks_graph
    def __and__(self, other: object) -> Mask:
        if not isinstance(other, Mask):
            return NotImplemented
        return Mask(create("mask_and_block_map", other._handle, self._handle))

    __rand__ = __and__

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name}={size}" for name, size in self.shape._asdict().items())
        return f"<flashmask.BlockMap {sizes}, block={self.block}>"


def _as_pointer(values: AnyArray) -> Any:
    return pointer(values, ctypes.c_float if values.dtype == np.float32 else ctypes.c_uint8)


def score_shape(shape: object) -> MaskShape:
    """Returns (batch, heads, rows, columns); batch and heads are 1 where only (rows, columns) are given."""
    if not isinstance(shape, (tuple, list)) or len(shape) not in (2, 4):
        raise TypeError(f"shape is {described(shape)}; expected (rows, columns) or (batch, heads, rows, columns)")
    sizes = [length(f"shape[{axis}]", size) for axis, size in enumerate(shape)]
    return MaskShape(*([1] * (4 - len(sizes)) + sizes))


def block_side(block: object) -> int:
    """Returns the side of a block, a multiple of 16."""
    side = integer("block", block, minimum=16)
    if side % 16:
        raise ValueError(f"block is {side}; expected a multiple of 16")
    return side


def of_blocks(name: str, values: object, shape: MaskShape, block: int, kinds: str) -> AnyArray:
    """Returns one value per block, contiguous [batch, heads, block rows, block columns]."""
    given = np.asarray(values) if isinstance(values, (list, tuple)) else array(name, values)
    if given.size and given.dtype.kind not in kinds:
        expected = "numbers" if "f" in kinds else "booleans, or 0 and 1"
        raise TypeError(f"{name} holds {given.dtype} values; expected {expected}")
    expected_shape = (shape.batch, shape.heads, -(-shape.rows // block), -(-shape.columns // block))
    if given.ndim not in (2, 3, 4) or (1,) * (4 - given.ndim) + given.shape != expected_shape:
        raise ValueError(
            f"{name} has shape {list(given.shape)}; expected one value per block of {block}, {list(expected_shape)}"
        )
    return np.ascontiguousarray(given.reshape(expected_shape))
