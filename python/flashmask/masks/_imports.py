# SPDX-License-Identifier: Apache-2.0
"""Masks from what other programs have: booleans, bits, pairs, compressed rows, row indices, block maps."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from flashmask._abi import structs as s
from flashmask._abi.library import create
from flashmask._arguments import (
    AnyArray,
    SparseRows,
    array,
    described,
    integer,
    integers,
    length,
    pointer,
    structs,
)
from flashmask._arguments import (
    pairs as pairs_of,
)
from flashmask._block_map import BlockMap
from flashmask._graph_break import breaks_graph
from flashmask._mask import Mask, MaskShape
from flashmask._rows import check_row_indices

if TYPE_CHECKING:
    import torch

    from flashmask._arguments import Pairs

_INTEGER_TYPES = {1: s.DENSE_I8, 2: s.DENSE_I16, 4: s.DENSE_I32, 8: s.DENSE_I64}


def _shape4(shape: tuple[int, ...]) -> MaskShape:
    """Returns the shape with four dimensions; missing leading dimensions are 1."""
    return MaskShape(*((1,) * (4 - len(shape)) + shape))


def from_dense(visible: AnyArray | torch.Tensor | Sequence[Any]) -> Mask:
    """Makes a mask from booleans, or integers 0 and 1: [rows, columns], or with heads, or batch and heads, first.

    True = visible. An array or CPU tensor of any strides is read once, in place. Raises ValueError at the first integer
    that is neither 0 nor 1.
    """
    return from_booleans("visible", visible)


@breaks_graph
def from_bias(bias: AnyArray | torch.Tensor, rows: int | None = None) -> Mask:
    """Makes the mask of the scores that a bias does not hide: all but those of -inf, NaN included.

    With it, attention(bias=bias) skips the tiles that hold nothing but -inf, and computes the same. `bias`: [rows,
    columns], or with heads, or batch and heads, first. `rows`: how many, where a bias of one row holds for all.
    """
    numbers: Any = bias if hasattr(bias, "dtype") else array("bias", bias)
    if "float" not in str(numbers.dtype):
        raise TypeError(f"bias holds {numbers.dtype} values; expected floating point, -inf where it hides a score")
    visible = array("bias", numbers != -math.inf)  # compared where it is: NumPy has no bfloat16
    if visible.ndim not in (2, 3, 4):
        raise ValueError(f"bias has shape {list(visible.shape)}; expected 2 to 4 dimensions")
    given = visible.shape[-2]
    if given == 1 and rows is None:
        raise ValueError("bias has one row for all; give rows=, the tokens of q, which may be 1")
    tall = given if rows is None else length("rows", rows)
    if given not in (1, tall):
        raise ValueError(f"bias has {given} rows; rows is {tall}, which one row could stand for: leave it out")
    return from_booleans("bias", np.broadcast_to(visible, (*visible.shape[:-2], tall, visible.shape[-1])))


@breaks_graph
def from_booleans(name: str, visible: Any) -> Mask:
    """Does the work of from_dense(); errors call the argument `name`."""
    scores = np.asarray(visible) if isinstance(visible, (list, tuple)) else array(name, visible)
    if scores.dtype.kind not in "biu":
        raise TypeError(f"{name} holds {scores.dtype} values; expected booleans, or integers that are 0 or 1")
    if scores.ndim not in (2, 3, 4):
        raise ValueError(f"{name} has shape {list(scores.shape)}; expected 2 to 4 dimensions")
    if not scores.dtype.isnative or any(stride % scores.itemsize for stride in scores.strides):
        scores = np.ascontiguousarray(scores, scores.dtype.newbyteorder("="))
    shape = _shape4(scores.shape)
    strides = np.zeros(4, np.int64)
    strides[4 - scores.ndim :] = np.asarray(scores.strides, np.int64) // scores.itemsize
    kind = s.DENSE_BOOLEAN if scores.dtype.kind == "b" else _INTEGER_TYPES[scores.itemsize]
    return Mask(create("mask_from_strided", shape.struct(), scores.ctypes.data, kind, pointer(strides)))


@breaks_graph
def from_packed(bits: AnyArray | torch.Tensor, columns: int) -> Mask:
    """Makes a mask from bits, uint8 [rows, ceil(columns / 8)], or with heads, or batch and heads, first.

    Column c is bit c % 8 of byte c // 8, as numpy.packbits(visible, axis=-1, bitorder="little") packs them. Bits past
    the last column are ignored.
    """
    packed = array("bits", bits)
    wide = length("columns", columns)
    if packed.dtype != np.uint8:
        raise TypeError(f"bits holds {packed.dtype} values; expected uint8")
    if packed.ndim not in (2, 3, 4) or packed.shape[-1] != (wide + 7) // 8:
        raise ValueError(
            f"bits has shape {list(packed.shape)}; expected 2 to 4 dimensions, the last of ceil({wide} / 8) = "
            f"{(wide + 7) // 8} bytes"
        )
    shape = _shape4((*packed.shape[:-1], wide))
    packed = np.ascontiguousarray(packed)
    return Mask(create("mask_from_packed", shape.struct(), pointer(packed, ctypes.c_uint8)))


@breaks_graph
def from_pairs(rows: int, columns: int, pairs: Pairs) -> Mask:
    """Makes a mask from its visible scores, (row, column) `pairs` [count, 2] in any order; repeated pairs count once.

    Raises ValueError at the first pair that lies outside the mask.
    """
    given = pairs_of("pairs", pairs)
    return Mask(
        create(
            "mask_from_pairs",
            length("rows", rows),
            length("columns", columns),
            structs(given, s.VisiblePair),
            len(given),
        )
    )


@breaks_graph
def from_csr(matrix: SparseRows) -> Mask:
    """Makes a mask from compressed sparse rows, as in scipy.sparse: row i sees column j where an entry is stored.

    `matrix` is anything with `indptr` [rows + 1], `indices` and `shape`; `indices` may be unsorted within a row.
    Stored zeros count as entries: `matrix.eliminate_zeros()` drops them.
    """
    if not all(hasattr(matrix, name) for name in ("indptr", "indices", "shape")):
        raise TypeError(
            f"matrix is {described(matrix)}; expected compressed sparse rows with indptr, indices and shape"
        )
    layout = getattr(matrix, "format", "csr")
    if layout != "csr":
        raise TypeError(f"matrix is in the format {layout!r}; expected csr: pass matrix.tocsr()")
    if len(matrix.shape) != 2:
        raise ValueError(f"matrix has shape {list(matrix.shape)}; expected two dimensions")
    rows, columns = (length(f"matrix.shape[{axis}]", size) for axis, size in enumerate(matrix.shape))
    offsets = integers("matrix.indptr", matrix.indptr)
    indices = integers("matrix.indices", matrix.indices)
    if offsets.size != rows + 1:
        raise ValueError(f"matrix.indptr has {offsets.size} values for {rows} rows; expected {rows + 1}")
    return Mask(create("mask_from_csr", rows, columns, pointer(offsets), pointer(indices), indices.size))


@breaks_graph
def from_startend_row_indices(
    values: AnyArray | torch.Tensor | Sequence[Any], *, causal: bool, rows: int | None = None
) -> Mask:
    """Makes a mask from row indices, int32 [batch, heads, columns, n]: the masked rows of each column.

    | causal | n | vectors            | masked rows r of column j                             |
    |--------|---|--------------------|-------------------------------------------------------|
    | True   | 1 | LTS                | r >= LTS, and the causal part r < j + rows - columns  |
    | True   | 2 | LTS, LTE           | LTS <= r < LTE, and the causal part                   |
    | False  | 2 | LTS, UTE           | r >= LTS or r < UTE                                   |
    | False  | 4 | LTS, LTE, UTS, UTE | LTS <= r < LTE or UTS <= r < UTE                      |

    Values outside [0, rows] are legal and are clipped; `rows` defaults to the number of columns. FlashMask (Wang et al.
    2024), section 4.1. For row indices on a device use flashmask.RowIndices.
    """
    given = array("values", values)
    if isinstance(values, (list, tuple)):
        given = integers("values", values, ndim=4)
        if given.size and (given.min() < -(2**31) or given.max() >= 2**31):
            raise ValueError("values holds an integer of more than 32 bits; expected int32")
        given = given.astype(np.int32)
    check_row_indices("values", given, causal)
    batch, heads, columns, vectors = given.shape
    shape = MaskShape(batch, heads, columns if rows is None else length("rows", rows), columns)
    given = np.ascontiguousarray(given)
    return Mask(
        create("mask_from_startend_row_indices", pointer(given, ctypes.c_int32), shape.struct(), vectors, int(causal))
    )


@breaks_graph
def from_row_ranges(values: AnyArray | torch.Tensor, columns: int, *, batch: int = 1) -> Mask:
    """Makes a mask from what each row sees, int32 [heads, ends, batch * rows]: `mask_func` of NVIDIA's flex_attention.

    Row r sees the columns [0, e0), [e1, e2), [e3, e4) and so on, an odd number of ends. Values outside [0, columns] are
    clipped; ranges may be empty, overlap and come in any order. `columns` is the number of keys.
    """
    given = array("values", values)
    if given.ndim != 3 or given.dtype != np.int32:
        raise ValueError(f"values is {given.dtype} {list(given.shape)}; expected int32 [heads, ends, batch * rows]")
    batch = integer("batch", batch, minimum=1)
    heads, ends, lines = given.shape
    if lines % batch:
        raise ValueError(f"values has shape {list(given.shape)}; expected a multiple of the batch, {batch}, at the end")
    shape = MaskShape(batch, heads, lines // batch, length("columns", columns))
    given = np.ascontiguousarray(given)
    return Mask(create("mask_from_row_ranges", pointer(given, ctypes.c_int32), shape.struct(), ends))


@breaks_graph
def from_block_map(map: BlockMap) -> Mask:
    """Makes the mask in which exactly the blocks that a flashmask.BlockMap keeps are visible."""
    if not isinstance(map, BlockMap):
        raise TypeError(f"map is {described(map)}; expected a BlockMap")
    return map.to_mask()
