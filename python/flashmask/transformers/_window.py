# SPDX-License-Identifier: Apache-2.0
"""Applies a layer's window to row indices that the user passed."""

from __future__ import annotations

import torch
from torch import Tensor

from flashmask import Mask, RowIndices, masks
from flashmask.transformers._indices import Indices
from flashmask.transformers._once import warn_once
from flashmask.transformers._visible import equal_runs

_BETWEEN = (
    "row indices beside a window that reaches over part of what lies between an answer and its question: rows and "
    "positions differ there, and two ranges a key cannot say it"
)


def within_window(says: Indices, positions: Tensor | None, *, rows: int, window: int) -> Indices | Mask:
    """Restricts row indices to keys whose position is fewer than `window` before the query's own.

    positions [B or 1, Sk] are the tokens' positions; None: their numbers, aligned bottom-right. Positions differ from
    rows where answers share a question: each answer's positions follow its question, whatever tokens lie between them.
    """
    columns = says.vectors.shape[2]
    if says.vectors.shape[-1] == 1:
        cut, exact = _cut(says.vectors, positions, rows, window)
        if torch.compiler.is_compiling():
            torch._assert_async(exact.all(), f"{_BETWEEN}; run this model without torch.compile")
            return Indices(cut, says.causal)
        if bool(exact.all()):
            return Indices(cut, says.causal)
    mask = RowIndices(*says, rows).to_mask()
    if positions is None or bool((positions.diff() == 1).all()):
        return mask & masks.window(rows, columns, window - 1, None)
    return _pair_by_pair(mask, positions, window)


def _cut(vectors: Tensor, positions: Tensor | None, rows: int, window: int) -> tuple[Tensor, Tensor]:
    """Returns the first masked rows [B or 1, heads, Sk, 1] under the window, and for which keys they are exact."""
    ends, index = vectors[..., 0].clamp(max=rows), torch.arange(vectors.shape[2], device=vectors.device)
    leaves = (index + window + rows - len(index)).to(torch.int32)  # the row at which a key leaves the window
    if positions is None:
        return torch.minimum(ends, leaves)[..., None], torch.ones_like(ends, dtype=torch.bool)
    together = ends <= equal_runs(positions - index).end[:, None]  # up to here positions advance with rows
    near = (positions.amax(-1, keepdim=True) - positions < window)[:, None]  # no position is outside
    return torch.where(together, torch.minimum(ends, leaves), ends)[..., None], together | near


def _pair_by_pair(mask: Mask, positions: Tensor, window: int) -> Mask:
    warn_once(f"flashmask: {_BETWEEN}. The mask is made of booleans for every pair of tokens, here and from now on.")
    near = positions[:, None, :, None] - positions[:, None, None, :] < window
    return masks.from_dense(torch.as_tensor(mask.to_dense()) & near.cpu())
