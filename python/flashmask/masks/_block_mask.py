# SPDX-License-Identifier: Apache-2.0
"""Masks from FlexAttention's BlockMask: its lists of blocks, and its predicate inside partial ones."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from flashmask._arguments import AnyArray, described
from flashmask._block_map import BlockMap
from flashmask._graph_break import breaks_graph
from flashmask._mask import Mask
from flashmask._rows import RowIndices
from flashmask.masks._imports import from_block_map, from_packed
from flashmask.masks._mask_mod import Made, made_from_ranges, packed, ranges_of
from flashmask.masks._windows import full

if TYPE_CHECKING:
    import torch

    from flashmask._flex.columns import Ranges
    from flashmask._flex.evaluation import Evaluated
    from flashmask._flex.symbols import Space

_ABSENT, _PARTIAL, _FULL = 0, 1, 2


class _Blocks(NamedTuple):
    """The lists of a BlockMask as int8 [batch, heads, row blocks, column blocks]: absent, partial or full."""

    kinds: torch.Tensor
    size: tuple[int, int]
    """Rows and columns of a block; those at the end may have fewer."""


@breaks_graph
def from_block_mask(block_mask: Any) -> Mask | RowIndices:
    """Makes a mask from a BlockMask of torch.nn.attention.flex_attention, as its compiled kernels read it.

    Absent blocks hide all their pairs, full ones show them, and partial ones ask mask_mod, which is read as
    from_mask_mod() does, on the BlockMask's device. Where it agrees with the lists, as after create_block_mask(), the
    result is that of from_mask_mod(); the check takes time linear in tokens and blocks. Where the lists hide or show
    more, it is a Mask of both. A predicate that symbols do not follow is called for the pairs of partial blocks alone.

    The mask has the batch entries and heads of the BlockMask, or 1 where all are alike. Raises TypeError for anything
    else, and ValueError for a BlockMask whose lists or whose mask_mod were cut by slicing.
    """
    return made_from_block_mask(block_mask).mask


def made_from_block_mask(block_mask: Any, call: tuple[int, int] = (1, 1)) -> Made:
    """Does the work of from_block_mask().

    `call` is the batch and heads of a call. Where the BlockMask lists one entry or head, it serves them all, and as in
    compiled kernels mask_mod is asked for each, unless it indexes tensors of one entry by them.
    """
    import torch

    from flashmask._flex.symbols import Space

    listed = _checked_sizes(block_mask)
    if 0 in listed:
        return Made(full(*listed[2:]), "columns")
    batch, heads = (most if own == 1 else own for own, most in zip(listed[:2], call, strict=True))
    with torch.no_grad():
        device = block_mask.kv_num_blocks.device
        blocks = _Blocks(_kinds(block_mask, listed), tuple(block_mask.BLOCK_SIZE))
        try:
            return _made(block_mask.mask_mod, blocks, Space((batch, heads, *listed[2:]), device))
        except IndexError:
            if (batch, heads) == listed[:2]:
                raise
            return _made(block_mask.mask_mod, blocks, Space(listed, device))


def _made(mask_mod: Any, blocks: _Blocks, space: Space) -> Made:
    from flashmask._flex.evaluation import of_function, of_symbol
    from flashmask._flex.formula import formula
    from flashmask._flex.symbols import Untraceable, trace_mask

    try:
        symbol = trace_mask(mask_mod, space)
    except Untraceable:
        return _evaluated(of_function(mask_mod, space), blocks, space)
    try:
        return _by_ranges(ranges_of(formula(symbol), space), blocks, space)
    except Untraceable:
        return _evaluated(of_symbol(symbol), blocks, space)


def _by_ranges(ranges: Ranges, blocks: _Blocks, space: Space) -> Made:
    """Makes the mask of the predicate's ranges; raises Untraceable where the lists differ from it by odd blocks."""
    from flashmask._flex.symbols import Untraceable

    agree = _agree(blocks, ranges, space)
    side = math.gcd(*blocks.size)
    if not agree and side % 16:
        raise Untraceable(f"blocks of {blocks.size}, which no block map has")
    made = made_from_ranges(ranges, space)
    return made if agree else Made(_within(made.mask, blocks, side, space.sizes), f"{made.way} and lists")


def _checked_sizes(block_mask: Any) -> tuple[int, int, int, int]:
    """Returns batch, heads, rows and columns."""
    if not all(hasattr(block_mask, name) for name in ("mask_mod", "kv_num_blocks", "seq_lengths", "BLOCK_SIZE")):
        raise TypeError(f"block_mask is {described(block_mask)}; expected a BlockMask of FlexAttention")
    if getattr(block_mask.mask_mod, "__name__", "") == "_sliced_mask_mod_error":
        raise ValueError(
            "Cannot use mask_mod from a sliced BlockMask; set it to that of the BlockMask that was sliced, or make the "
            "mask with flashmask.masks.from_mask_mod()"
        )
    rows, columns = map(int, block_mask.seq_lengths)
    listed, expected = block_mask.kv_num_blocks.shape[-1], -(-rows // block_mask.BLOCK_SIZE[0])
    if listed != expected:
        raise ValueError(
            f"block_mask lists {listed} blocks of rows, as a sliced BlockMask does; expected {expected} for {rows} rows"
        )
    batch, heads = (1, 1, *block_mask.kv_num_blocks.shape[:-1])[-2:]
    return batch, heads, rows, columns


def _kinds(block_mask: Any, sizes: tuple[int, int, int, int]) -> torch.Tensor:
    import torch

    lists = [
        (block_mask.kv_num_blocks, block_mask.kv_indices, _PARTIAL),
        (block_mask.full_kv_num_blocks, block_mask.full_kv_indices, _FULL),
    ]
    shape = (*sizes[:2], *(-(-tokens // size) for tokens, size in zip(sizes[2:], block_mask.BLOCK_SIZE, strict=True)))
    columns = shape[3]
    kinds = torch.zeros(*shape[:3], columns + 1, dtype=torch.int8, device=lists[0][0].device)  # the last: not listed
    for counts, indices, kind in lists:
        if counts is not None:
            listed = torch.arange(indices.shape[-1], device=indices.device) < counts[..., None]
            at = torch.where(listed, indices.long(), columns).clamp(0, columns)
            kinds.scatter_(3, at.reshape(*shape[:3], -1), kind)
    return kinds[..., :columns]


def _agree(blocks: _Blocks, ranges: Ranges, space: Space) -> bool:
    """Whether no pair that mask_mod shows is absent, and none that it masks lies in a full block; waits once."""
    import torch

    counts = _pairs_per_block(ranges, *(blocks.size[::-1] if ranges.swapped else blocks.size))
    counts = counts.reshape(*ranges.values.shape[:2], *counts.shape[1:])
    sides = [
        (torch.arange(0, tokens, size, device=counts.device) + size).clamp(max=tokens).diff(prepend=counts.new_zeros(1))
        for tokens, size in zip(space.sizes[2:], blocks.size, strict=True)
    ]
    area = sides[0][:, None] * sides[1]
    visible = counts if ranges.swapped else area - counts.transpose(2, 3)  # masked pairs, or visible ones
    wrong = torch.where(blocks.kinds == _FULL, visible != area, (blocks.kinds == _ABSENT) & (visible > 0))
    return not bool(wrong.any())


def _pairs_per_block(ranges: Ranges, rows_of: int, columns_of: int) -> torch.Tensor:
    """Returns [planes, column blocks, row blocks]: pairs in the ranges, in time linear in ranges and blocks."""
    import torch

    bounds = ranges.values.flatten(0, 1).permute(2, 0, 1).long()  # [begin and end per range, planes, columns]
    _, planes, columns = bounds.shape
    device, row_blocks = bounds.device, -(-ranges.rows // rows_of)
    shape = planes, -(-columns // columns_of), row_blocks + 1
    column = torch.arange(columns, device=device) // columns_of
    list_of = (torch.arange(planes, device=device)[:, None] * shape[1] + column) * shape[2]
    # Before row x lie sum((x - begin)+) - sum((x - end)+) pairs; each bound counts from the next edge of a block on.
    counts, sums = (torch.zeros(math.prod(shape), dtype=torch.int64, device=device) for _ in range(2))
    for own, sign in ((bounds[0::2], 1), (bounds[1::2], -1)):
        edge = (list_of + (own + rows_of - 1) // rows_of).flatten()
        counts.index_add_(0, edge, torch.full_like(edge, sign))
        sums.index_add_(0, edge, own.flatten(), alpha=sign)
    edges = (torch.arange(shape[2], device=device) * rows_of).clamp(max=ranges.rows)
    before = edges * counts.reshape(shape).cumsum(2) - sums.reshape(shape).cumsum(2)
    return before.diff(dim=2)


def _within(mask: Mask | RowIndices, blocks: _Blocks, side: int, sizes: tuple[int, int, int, int]) -> Mask:
    """Returns what the mask shows in partial blocks, and all of full ones."""
    out = (mask.to_mask() if isinstance(mask, RowIndices) else mask) & _shown(blocks, _PARTIAL, side, sizes)
    return out | _shown(blocks, _FULL, side, sizes) if bool((blocks.kinds == _FULL).any()) else out


def _shown(blocks: _Blocks, kind: int, side: int, sizes: tuple[int, int, int, int]) -> Mask:
    """Returns the mask of all blocks of one kind, in squares of `side`."""
    keep = blocks.kinds == kind
    for axis, size in enumerate(blocks.size):
        keep = keep.repeat_interleave(size // side, 2 + axis).narrow(2 + axis, 0, -(-sizes[2 + axis] // side))
    return from_block_map(BlockMap((*keep.shape[:2], *sizes[2:]), side, keep.cpu().numpy()))


def _evaluated(evaluated: Evaluated, blocks: _Blocks, space: Space) -> Made:
    """Computes a predicate for the pairs of partial blocks, one row of blocks at a time."""
    batch, heads = (max(pair) for pair in zip(blocks.kinds.shape, (evaluated.batch, evaluated.heads), strict=False))
    rows = blocks.kinds.shape[2]
    lines = [
        _line(evaluated, (b, h), row, blocks, space) for b in range(batch) for h in range(heads) for row in range(rows)
    ]
    bits = np.concatenate(lines).reshape(batch, heads, space.sizes[2], -1)
    return Made(from_packed(bits, space.sizes[3]), "evaluated bits")


def _line(evaluated: Evaluated, plane: tuple[int, int], row: int, blocks: _Blocks, space: Space) -> AnyArray:
    """Returns what the rows of a row of blocks see, uint8 [rows, bytes]."""
    b, h, q, k = (index.flatten() for index in space.index)
    kinds = blocks.kinds.expand(*space.sizes[:2], -1, -1)[plane][row]
    kinds = kinds.repeat_interleave(blocks.size[1])[: space.sizes[3]]
    rows = q[row * blocks.size[0] : (row + 1) * blocks.size[0]]
    visible = (kinds == _FULL).repeat(rows.shape[0], 1)
    asked = (kinds == _PARTIAL).nonzero()[:, 0]
    if asked.numel():
        visible[:, asked] = evaluated.pairs(b[plane[0], None], h[plane[1], None], rows, k[asked])[0, 0]
    return packed(visible)
