# SPDX-License-Identifier: Apache-2.0
"""Masks from a FlexAttention predicate."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from flashmask._arguments import AnyArray, described, integer, length
from flashmask._graph_break import breaks_graph
from flashmask._mask import Mask
from flashmask._rows import RowIndices
from flashmask.masks._imports import from_packed, from_row_ranges, from_startend_row_indices
from flashmask.masks._windows import full

if TYPE_CHECKING:
    import torch

    from flashmask._flex.columns import Ranges
    from flashmask._flex.evaluation import Evaluated
    from flashmask._flex.formula import Formula
    from flashmask._flex.symbols import Space, Symbol

    MaskMod: TypeAlias = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class Made(NamedTuple):
    """A mask, and which way it was made, for tests: "columns", "rows", "evaluated" or "evaluated bits"."""

    mask: Mask | RowIndices
    way: str


@breaks_graph
def from_mask_mod(
    mask_mod: MaskMod,
    batch: int | None,
    heads: int | None,
    rows: int,
    columns: int,
    *,
    device: str | torch.device = "cpu",
) -> Mask | RowIndices:
    """Makes a mask from a predicate mask_mod(b, h, q_idx, kv_idx) of torch.nn.attention.flex_attention; True = visible.

    The predicate runs once, on symbols: what it computes of one token is computed for all tokens by the torch functions
    that it calls, on `device`, where its captured tensors must lie; comparisons between the two tokens become ranges of
    rows, in O(N log N) time and O(N) memory. A predicate that symbols do not follow (a matrix indexed by both tokens, a
    branch on an index, floats of both tokens) or that shows many ranges is called for all pairs, some rows at a time.
    Indices are int64 and count from 0. Captured tensors are read now, not when attention() runs.

    `batch` and `heads` None: 1. The mask has as many batch entries and heads as the predicate tells apart: all, or 1,
    which attention() broadcasts. On a CPU it is a Mask. On another device it is RowIndices there, which attention()
    takes too, if two ranges of masked rows per column say it, else a Mask. A Mask takes 16 bytes per column, or the
    bits of its partial cells where that is not enough; these are made from rows · columns / 8 bytes.

    Raises TypeError if the predicate returns no boolean tensor, ValueError if a captured tensor is elsewhere, and
    IndexError where a captured tensor is indexed past its end. Dong et al. 2024 (FlexAttention).
    """
    if not callable(mask_mod):
        raise TypeError(f"mask_mod is {described(mask_mod)}; expected a function (b, h, q_idx, kv_idx) -> bool tensor")
    batch = 1 if batch is None else integer("batch", batch, minimum=1)
    heads = 1 if heads is None else integer("heads", heads, minimum=1)
    return made_from_mask_mod(mask_mod, (batch, heads, length("rows", rows), length("columns", columns)), device).mask


def made_from_mask_mod(mask_mod: MaskMod, sizes: tuple[int, int, int, int], device: Any) -> Made:
    """Does the work of from_mask_mod(); sizes are batch, heads, rows and columns."""
    import torch

    from flashmask._flex.evaluation import of_function
    from flashmask._flex.symbols import Space, Untraceable, trace_mask

    if 0 in sizes:
        return Made(full(*sizes[2:]), "columns")
    with torch.no_grad():
        space = Space(sizes, device)
        try:
            symbol = trace_mask(mask_mod, space)
        except Untraceable:
            return _made_from_pairs(of_function(mask_mod, space), space)
        return made_from_symbol(symbol)


def from_symbol(symbol: Symbol) -> Mask | RowIndices:
    """Returns what from_mask_mod() does, of a boolean symbol."""
    return made_from_symbol(symbol).mask


def made_from_symbol(symbol: Symbol) -> Made:
    """Does the work of from_symbol()."""
    from flashmask._flex.evaluation import of_symbol
    from flashmask._flex.formula import formula
    from flashmask._flex.symbols import Untraceable

    try:
        return made_from_formula(formula(symbol), symbol.space)
    except Untraceable:
        return _made_from_pairs(of_symbol(symbol), symbol.space)


def made_from_formula(formula: Formula, space: Space) -> Made:
    """Makes a mask of a formula; raises Untraceable where neither columns nor rows have few ranges."""
    return made_from_ranges(ranges_of(formula, space), space)


def made_from_ranges(ranges: Ranges, space: Space) -> Made:
    """Makes a mask of what ranges_of() returned."""
    if ranges.swapped:
        return Made(_of_visible_columns(ranges), "rows")
    return Made(_of_masked_rows(ranges.values, space), "columns")


def ranges_of(formula: Formula, space: Space) -> Ranges:
    """Returns masked rows per column, at most two ranges, and where there are more what each row sees (`swapped`)."""
    from flashmask._flex.columns import TooManyRanges, masked_rows, visible_columns

    try:
        return masked_rows(formula, space)
    except TooManyRanges:
        return visible_columns(formula, space)


def _of_masked_rows(values: torch.Tensor, space: Space) -> Mask | RowIndices:
    rows = space.sizes[2]
    if space.device.type == "cpu":
        return from_startend_row_indices(values, causal=False, rows=rows)
    return RowIndices(values, causal=False, rows=rows)


def _of_visible_columns(visible: Ranges) -> Mask:
    """Makes a mask of what each row sees."""
    import torch

    ends = visible.values.permute(1, 3, 0, 2)  # [heads, begin and end per range, batch, rows]
    ends = torch.cat([torch.zeros_like(ends[:, :1]), ends], 1)  # the format begins with a range from 0
    return from_row_ranges(ends.flatten(2).cpu(), visible.rows, batch=ends.shape[2])


def _made_from_pairs(evaluated: Evaluated, space: Space) -> Made:
    import torch

    from flashmask._flex.columns import TooManyRanges
    from flashmask._flex.evaluation import masked_ranges

    planes = evaluated.batch, evaluated.heads
    try:
        values = torch.stack([masked_ranges(evaluated, plane, space) for plane in evaluated.planes])
        return Made(_of_masked_rows(values.reshape(*planes, *values.shape[1:]), space), "evaluated")
    except TooManyRanges:
        bits = np.stack([_bits(evaluated, plane, space) for plane in evaluated.planes])
        return Made(from_packed(bits.reshape(*planes, *bits.shape[1:]), space.sizes[3]), "evaluated bits")


def _bits(evaluated: Evaluated, plane: tuple[int, int], space: Space) -> AnyArray:
    """Returns what one batch entry and head sees, uint8 [rows, bytes]."""
    from flashmask._flex.evaluation import rows_at_a_time

    return np.concatenate([packed(visible) for _, visible in rows_at_a_time(evaluated, plane, space)])


def packed(visible: torch.Tensor) -> AnyArray:
    """Packs booleans as from_packed() takes them."""
    return np.packbits(visible.cpu().numpy(), axis=-1, bitorder="little")
