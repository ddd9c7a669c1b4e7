# SPDX-License-Identifier: Apache-2.0
"""Calls a mask_mod for every pair, some rows at a time: as FlexAttention does, under vmap, with 0-d tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from flashmask._flex.ranges import TooManyRanges

PAIRS_AT_ONCE = 1 << 20


class _GathersByTensors(TorchFunctionMode):
    """Makes tensor[0-d tensors] a gather; plain indexing would read their values, which vmap forbids."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__getitem__:
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            if any(isinstance(i, Tensor) for i in index) and all(isinstance(i, (int, Tensor)) for i in index):
                whole = [i if isinstance(i, Tensor) else torch.tensor(i, device=args[0].device) for i in index]
                return torch.ops.aten.index(args[0], whole)
        return func(*args, **(kwargs or {}))


def evaluated(mask_mod: Callable[..., Any], b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """Returns booleans [b, h, q, k] for 1-D index tensors; strides are 0 where mask_mod ignores an index."""
    over = mask_mod
    for at in (3, 2, 1, 0):
        over = torch.vmap(over, in_dims=tuple(0 if axis == at else None for axis in range(4)))
    with _GathersByTensors():
        out: Tensor = over(b, h, q, k)
    if out.dtype != torch.bool:
        raise TypeError(f"mask_mod returned {out.dtype}; expected booleans")
    if out.ndim != 4:
        raise ValueError(f"mask_mod returned shape {list(out.shape[4:])}; expected one boolean, of no dimension")
    return out


def planes_of(mask_mod: Callable[..., Any], sizes: tuple[int, int, int, int], device: torch.device) -> tuple[int, int]:
    """Returns how many batch entries and heads mask_mod tells apart: all, or one where it ignores the index."""
    indices = [torch.arange(size, device=device) for size in (sizes[0], sizes[1], 1, 1)]
    out = evaluated(mask_mod, *indices)
    batch, heads = (1 if stride == 0 else size for stride, size in zip(out.stride()[:2], sizes[:2], strict=True))
    return batch, heads


def rows_at_a_time(
    mask_mod: Callable[..., Any], plane: tuple[int, int], rows: int, columns: int, device: torch.device
) -> Iterator[tuple[int, Tensor]]:
    """Yields the first row and booleans [these rows, columns] of one batch entry and head, from top to bottom."""
    b, h = (torch.tensor([index], device=device) for index in plane)
    k = torch.arange(columns, device=device)
    step = max(1, PAIRS_AT_ONCE // max(1, columns))
    for first in range(0, rows, step):
        q = torch.arange(first, min(first + step, rows), device=device)
        yield first, evaluated(mask_mod, b, h, q, k)[0, 0]


def masked_ranges(
    mask_mod: Callable[..., Any], plane: tuple[int, int], rows: int, columns: int, device: torch.device
) -> Tensor:
    """Returns int32 [columns, 4]: two ranges of masked rows per column, in memory linear in rows and columns.

    Raises TooManyRanges at the first rows where a column begins a third range.
    """
    last = torch.ones(1, columns, dtype=torch.bool, device=device)  # as if the row above all were visible
    counts = torch.zeros(columns, dtype=torch.int64, device=device)
    found = []
    for first, visible in rows_at_a_time(mask_mod, plane, rows, columns, device):
        above = torch.cat([last, visible[:-1]])
        row, column = (above ^ visible).nonzero(as_tuple=True)  # where a range begins or ends
        last = visible[-1:]
        if row.numel():
            counts += torch.bincount(column, minlength=columns)
            if int(counts.max()) > 4:
                raise TooManyRanges("a column has more than two ranges of masked rows")
            found.append((column, row + first))
    out = torch.full((columns, 4), rows, dtype=torch.int32, device=device)
    if found:
        column, row = (torch.cat(each) for each in zip(*found, strict=True))
        column, order = column.sort(stable=True)
        place = torch.arange(column.shape[0], device=device) - (counts.cumsum(0) - counts)[column]
        out[column, place] = row[order].to(torch.int32)
    return out
