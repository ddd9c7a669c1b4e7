# SPDX-License-Identifier: Apache-2.0
"""Masks that the user passes in the model call: row indices, or dense booleans."""

from __future__ import annotations

import torch
from torch import Tensor

from flashmask import Mask, masks
from flashmask.transformers._indices import Indices, read
from flashmask.transformers._window import within_window


def given_mask(
    indices: Tensor, *others: Tensor, has_visible: bool, rows: int, causal: bool, window: int | None
) -> Indices | Mask:
    """Restricts a call's row indices [B or 1, heads, Sk, n] to a layer's window and removes keys that are padding.

    others: with has_visible first the model's own mask, int32 [B or 1, Sk, 2], which is only used for the columns that
    no row sees in it; then position ids [B or 1, Sk], if there are any.
    """
    positions = others[has_visible:]
    says = read(_without_padding(indices, rows, others[0], causal) if has_visible else indices, causal)
    if window is None:
        return says
    if not causal:
        raise ValueError(
            f"startend_row_indices in a layer that is not causal and has sliding_window={window}: what such a window "
            "means differs between models; put it into the row indices and set the layer's sliding_window to None"
        )
    return within_window(says, positions[0] if positions else None, rows=rows, window=window)


def _without_padding(indices: Tensor, rows: int, visible: Tensor, causal: bool) -> Tensor:
    """Masks the columns that no row sees in `visible`."""
    seen = (visible[..., 1] < visible[..., 0])[:, None]
    nobody = [0, rows, rows, rows] if indices.shape[-1] == 4 else [0, rows if causal else 0]
    vectors = zip(indices.unbind(-1), nobody, strict=False)
    return torch.stack([torch.where(seen, vector, hidden) for vector, hidden in vectors], -1)


def dense_mask(visible: Tensor) -> Mask:
    """Makes a mask of booleans [B, heads, Sq, Sk], True = visible; waits for the device if they are not on the CPU."""
    return masks.from_dense(visible.cpu())


def check_row_indices(indices: Tensor, name: str, batch: int, columns: int) -> None:
    """Raises where the indices cannot belong to this layer; flashmask_attention() checks heads and n."""
    if indices.dtype is not torch.int32:
        raise TypeError(f"{name} has dtype {indices.dtype}; expected torch.int32")
    if indices.ndim != 4 or indices.shape[0] not in (1, batch) or indices.shape[2] != columns:
        raise ValueError(
            f"{name} has shape {list(indices.shape)}; expected [{batch} or 1, heads, {columns}, n] for {columns} keys"
        )
