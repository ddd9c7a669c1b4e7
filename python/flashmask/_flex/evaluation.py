# SPDX-License-Identifier: Apache-2.0
"""Computes a mask_mod for every pair of tokens, some rows at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from flashmask._flex.columns import TooManyRanges
from flashmask._flex.symbols import B, H, Space, Symbol, evaluate

_PAIRS_AT_ONCE = 1 << 20  # larger temporaries are returned to the system each time


class _GathersByTensors(TorchFunctionMode):
    """Makes tensor[0-d tensors] a gather; plain indexing would read their values, which vmap forbids."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__getitem__:
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            if any(isinstance(i, Tensor) for i in index) and all(isinstance(i, (int, Tensor)) for i in index):
                whole = [i if isinstance(i, Tensor) else torch.tensor(i, device=args[0].device) for i in index]
                return torch.ops.aten.index(args[0], whole)
        return func(*args, **(kwargs or {}))


class Evaluated(NamedTuple):
    """Computes a mask_mod for pairs of tokens: `pairs` takes 1-D tensors b, h, q and kv to booleans [b, h, q, kv].

    `batch` and `heads` count the batch entries and heads that it tells apart: all, or one where it ignores the index.
    """

    pairs: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
    batch: int
    heads: int

    @property
    def planes(self) -> list[tuple[int, int]]:
        return [(b, h) for b in range(self.batch) for h in range(self.heads)]


def of_symbol(symbol: Symbol) -> Evaluated:
    """Computes a symbol again, for other indices."""
    batch, heads = (size if symbol.deps & bit else 1 for size, bit in zip(symbol.space.sizes, (B, H), strict=False))
    return Evaluated(partial(_by_symbol, symbol), batch, heads)


def of_function(mask_mod: Callable[..., Any], space: Space) -> Evaluated:
    """Calls a mask_mod as FlexAttention does: under vmap, with 0-d tensors."""
    one_pair = (index.flatten()[:size] for index, size in zip(space.index, (None, None, 1, 1), strict=True))
    strides = _under_vmap(mask_mod, *one_pair).stride()
    batch, heads = (1 if stride == 0 else size for stride, size in zip(strides, space.sizes[:2], strict=False))
    return Evaluated(partial(_under_vmap, mask_mod), batch, heads)


def _by_symbol(symbol: Symbol, *indices: Tensor) -> Tensor:
    env = {
        "bhqk"[axis]: index.reshape([-1 if axis == at else 1 for at in range(4)])
        for axis, (index, size) in enumerate(zip(indices, symbol.space.sizes, strict=True))
        if index.shape[0] < size  # what depends on whole axes is known
    }
    out: Tensor = evaluate(symbol, env, symbol.space)
    return out.expand([index.shape[0] for index in indices])


def _under_vmap(mask_mod: Callable[..., Any], *indices: Tensor) -> Tensor:
    """Strides of the result are 0 where mask_mod ignores an index."""
    over = mask_mod
    for at in (3, 2, 1, 0):
        over = torch.vmap(over, in_dims=tuple(0 if axis == at else None for axis in range(4)))
    with _GathersByTensors():
        out: Tensor = over(*indices)
    if out.dtype != torch.bool:
        raise TypeError(f"mask_mod returned {out.dtype}; expected booleans")
    if out.ndim != 4:
        raise ValueError(f"mask_mod returned shape {list(out.shape[4:])}; expected one boolean, of no dimension")
    return out


def rows_at_a_time(evaluated: Evaluated, plane: tuple[int, int], space: Space) -> Iterator[tuple[int, Tensor]]:
    """Yields the first row and booleans [these rows, columns] of one batch entry and head, from top to bottom."""
    b, h, q, k = (index.flatten() for index in space.index)
    step = max(1, _PAIRS_AT_ONCE // k.shape[0])
    for first in range(0, q.shape[0], step):
        yield first, evaluated.pairs(b[plane[0], None], h[plane[1], None], q[first : first + step], k)[0, 0]


def masked_ranges(evaluated: Evaluated, plane: tuple[int, int], space: Space) -> Tensor:
    """Returns int32 [columns, 4]: two ranges of masked rows per column, in memory linear in rows and columns.

    Raises TooManyRanges at the first rows where a column begins a third range.
    """
    rows, columns, device = *space.sizes[2:], space.device
    last = torch.ones(1, columns, dtype=torch.bool, device=device)  # as if the row above all were visible
    counts = torch.zeros(columns, dtype=torch.int64, device=device)
    found = []
    for first, visible in rows_at_a_time(evaluated, plane, space):
        at = _set_at(torch.cat([last, visible[:-1]]) ^ visible)  # where a range begins or ends
        last = visible[-1:]
        if at.numel():
            counts += torch.bincount(at % columns, minlength=columns)
            if int(counts.max()) > 4:
                raise TooManyRanges("a column has more than two ranges of masked rows")
            found.append(at + first * columns)
    out = torch.full((columns, 4), rows, dtype=torch.int32, device=device)
    if found:
        pair = torch.cat(found)
        column, order = (pair % columns).sort(stable=True)
        nth = torch.arange(column.shape[0], device=device) - (counts.cumsum(0) - counts)[column]
        out[column, nth] = (pair[order] // columns).to(torch.int32)
    return out


def _set_at(flags: Tensor) -> Tensor:
    """The indices of true elements, counted through the rows; NumPy finds few among many in an eighth of the time."""
    if flags.device.type == "cpu":
        return torch.from_numpy(np.flatnonzero(flags.numpy()))
    return flags.flatten().nonzero()[:, 0]
