# SPDX-License-Identifier: Apache-2.0
"""Masks from a FlexAttention predicate."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from flashmask._arguments import AnyArray, described, integer, length
from flashmask._graph_break import breaks_graph
from flashmask._mask import Mask
from flashmask.masks._imports import from_packed
from flashmask.masks._stacks import stack_batch, stack_heads

if TYPE_CHECKING:
    import torch

    MaskMod: TypeAlias = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

_SCORES_AT_ONCE = 1 << 22


@breaks_graph
def from_mask_mod(
    mask_mod: MaskMod,
    batch: int | None,
    heads: int | None,
    rows: int,
    columns: int,
    *,
    device: str | torch.device = "cpu",
) -> Mask:
    """Makes a mask from a predicate mask_mod(b, h, q_idx, kv_idx) of torch.nn.attention.flex_attention; True = visible.

    It is called for some rows at a time, with int64 tensors on `device` that broadcast to [batch, heads, these rows,
    columns], and returns booleans that broadcast to the same shape. Memory: rows * columns / 8 bytes for each batch
    entry and head that the predicate tells apart. `batch` and `heads` None: 1. Dong et al. 2024 (FlexAttention).
    """
    if not callable(mask_mod):
        raise TypeError(f"mask_mod is {described(mask_mod)}; expected a function (b, h, q_idx, kv_idx) -> bool tensor")
    batch = 1 if batch is None else integer("batch", batch, minimum=1)
    heads = 1 if heads is None else integer("heads", heads, minimum=1)
    bits = _evaluated(mask_mod, (batch, heads, length("rows", rows), length("columns", columns)), device)
    mask = from_packed(bits, columns)
    if bits.shape[0] < batch:
        mask = stack_batch([mask] * batch)
    return stack_heads([mask] * heads) if bits.shape[1] < heads else mask


def _evaluated(mask_mod: MaskMod, shape: tuple[int, int, int, int], device: Any) -> AnyArray:
    """Returns bits, uint8 [batch or 1, heads or 1, rows, bytes]; 1 where the predicate ignores batch entry or head."""
    import torch

    batch, heads, rows, columns = shape
    b = torch.arange(batch, device=device).reshape(-1, 1, 1, 1)
    h = torch.arange(heads, device=device).reshape(1, -1, 1, 1)
    kv_idx = torch.arange(columns, device=device).reshape(1, 1, 1, -1)
    step = max(1, _SCORES_AT_ONCE // max(1, batch * heads * columns))
    chunks: list[AnyArray] = []
    for begin in range(0, max(rows, 1), step):
        q_idx = torch.arange(begin, min(begin + step, rows), device=device).reshape(1, 1, -1, 1)
        chunks.append(_packed(mask_mod(b, h, q_idx, kv_idx), (batch, heads, q_idx.shape[2], columns)))
    extent = np.broadcast_shapes(*(chunk.shape[:2] for chunk in chunks))
    return np.concatenate([np.broadcast_to(chunk, extent + chunk.shape[2:]) for chunk in chunks], axis=2)


def _packed(visible: Any, shape: tuple[int, int, int, int]) -> AnyArray:
    """Packs what a predicate returned into bits [batch or 1, heads or 1, rows, bytes]."""
    import torch

    if not isinstance(visible, torch.Tensor) or visible.dtype != torch.bool:
        raise TypeError(f"mask_mod returned {described(visible)}; expected a bool tensor")
    sizes = (1,) * (4 - visible.ndim) + tuple(visible.shape)
    if len(sizes) != 4 or any(size not in (1, most) for size, most in zip(sizes, shape, strict=True)):
        raise ValueError(
            f"mask_mod returned shape {list(visible.shape)}; expected one that broadcasts to {list(shape)}"
        )
    visible = visible.reshape(sizes).expand(*sizes[:2], *shape[2:])
    return np.packbits(visible.detach().cpu().numpy(), axis=-1, bitorder="little")
