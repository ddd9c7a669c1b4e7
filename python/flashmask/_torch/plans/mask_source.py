# SPDX-License-Identifier: Apache-2.0
"""Turns an operator's mask arguments into a key of the plan cache and into a Mask."""

from __future__ import annotations

import ctypes
from collections.abc import Hashable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from flashmask._abi.header import HEADER_BYTES, Options, read_header
from flashmask._abi.library import create, library
from flashmask._abi.problem import Problem
from flashmask._mask import Mask, MaskShape
from flashmask._plans.call import Call
from flashmask._rows import check_row_indices
from flashmask._torch.plans.by_tensor import mask_of
from flashmask._torch.shared import content_of
from flashmask.masks import from_startend_row_indices

BLOCK = 128
"""Side, in scores, of the block that an entry of `block_mask` keeps or leaves out."""


class NamedMask(NamedTuple):
    """A mask, what messages call it, the options of its plan and about how many bytes it takes."""

    name: str
    mask: Mask
    options: Options
    size: int


def source_of(call: Call) -> Hashable:
    """Returns what identifies the mask of a call: a packed mask's header, or the contents of row indices and blocks."""
    mask = call.mask
    if mask is None:
        source: Hashable = None
    elif mask.dtype is torch.uint8:
        source = packed_header(mask, call.causal)
    else:
        source = content_of(mask)
    return source if call.block_mask is None else (source, content_of(call.block_mask))


def packed_header(mask: Tensor, causal: bool) -> bytes:
    """Returns the header of a packed mask on the CPU."""
    if causal or mask.ndim != 1 or mask.numel() < HEADER_BYTES or not mask.is_contiguous():
        _refuse_packed(causal)
    return ctypes.string_at(mask.data_ptr(), HEADER_BYTES)


def _refuse_packed(causal: bool) -> None:
    if causal:
        raise ValueError("causal is True beside a packed mask, which says itself whether it is causal; pass False")
    read_header(b"")


def named_mask(call: Call, problem: Problem) -> NamedMask:
    """Returns the mask of a call."""
    found, block_mask = _unblocked(call.mask, call.causal, problem), call.block_mask
    if block_mask is None:
        return found
    return found._replace(mask=_and_blocks(found.mask, block_mask, problem), size=found.size + block_mask.nbytes)


def _unblocked(mask: Tensor | None, causal: bool, problem: Problem) -> NamedMask:
    if mask is None:
        kind = "causal" if causal else "full"
        made = Mask(create(f"mask_{kind}", problem.query_length, problem.key_length))
        return NamedMask("mask", made, Options(), 8 * problem.key_length)
    if mask.dtype is torch.uint8:
        _, options = read_header(mask[:HEADER_BYTES].numpy().tobytes())
        return NamedMask("mask", mask_of(mask), options, mask.nbytes)
    return NamedMask("startend_row_indices", from_row_indices(mask, causal, problem), Options(), mask.nbytes)


def from_row_indices(values: Tensor, causal: bool, problem: Problem) -> Mask:
    """Makes the mask of row indices, int32 [batch, heads, columns, n]."""
    check_row_indices("startend_row_indices", values, causal)
    return from_startend_row_indices(values, causal=causal, rows=problem.query_length)


def _and_blocks(mask: Mask, block_mask: Tensor, problem: Problem) -> Mask:
    """Leaves out the blocks of `block_mask` that hold 0."""
    check_block_mask(block_mask, problem)
    keep = block_mask.numpy()
    if ((keep != 0) & (keep != 1)).any():
        raise ValueError("block_mask holds other values than 0 and 1; expected 1 for a block that is kept, else 0")
    shape = MaskShape(keep.shape[0], keep.shape[1], problem.query_length, problem.key_length)
    bytes_kept = np.ascontiguousarray(keep, np.uint8)
    pointer = bytes_kept.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
    blocks = create("block_map_create", ctypes.byref(shape.struct()), BLOCK, pointer)
    try:
        return Mask(create("mask_and_block_map", mask._handle, blocks))
    finally:
        library.flashmask_block_map_destroy(blocks)


def check_block_mask(block_mask: Tensor, problem: Problem) -> None:
    """Refuses a block mask that is not int32 [1 | batch, heads, ceil(rows / 128), ceil(columns / 128)]."""
    if block_mask.dtype is not torch.int32:
        raise TypeError(f"block_mask holds {block_mask.dtype} values; expected int32")
    blocks = (-(-problem.query_length // BLOCK), -(-problem.key_length // BLOCK))
    heads = (1, problem.kv_heads, problem.query_heads)
    shape = tuple(block_mask.shape)
    fits = len(shape) == 4 and shape[0] in (1, problem.batch) and shape[1] in heads and shape[2:] == blocks
    if not fits:
        raise ValueError(
            f"block_mask has shape {list(shape)}; expected [1 or {problem.batch}, {' or '.join(map(str, heads))}, "
            f"{blocks[0]}, {blocks[1]}]: batch, heads, and blocks of {BLOCK} x {BLOCK} scores"
        )
