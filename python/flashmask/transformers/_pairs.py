# SPDX-License-Identifier: Apache-2.0
"""Masks as booleans for every pair of tokens, for models that choose keys for each query."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from flashmask import Mask
from flashmask.transformers._indices import Indices
from flashmask.transformers._visible import documents


def pairs(mask: Indices | Mask | Tensor, rows: int, device: torch.device) -> Tensor:
    """Returns which rows see which keys, bool [B or 1, heads, rows, Sk] on the device."""
    if isinstance(mask, Tensor):
        return mask
    if isinstance(mask, Mask):
        return torch.as_tensor(mask.to_dense()).to(device)
    columns = mask.vectors.shape[2]
    row = torch.arange(rows, device=device)[:, None]
    begins = [each[:, :, None] for each in mask.vectors.unbind(-1)]
    if mask.causal:
        visible = torch.arange(columns, device=device) <= row + columns - rows
        return visible & ((row < begins[0]) if len(begins) == 1 else ~((row >= begins[0]) & (row < begins[1])))
    if len(begins) == 2:
        return (row < begins[0]) & (row >= begins[1])
    return ~((row >= begins[0]) & (row < begins[1]) | (row >= begins[2]) & (row < begins[3]))


def chosen_keys(visible: Tensor, keys: Tensor) -> Tensor:
    """Keeps the pairs of visible [B or 1, heads, Sq, Sk] whose key's number is among keys [B, Sq, n]."""
    chosen = torch.zeros((*keys.shape[:2], visible.shape[-1]), dtype=torch.bool, device=keys.device)
    return visible & chosen.scatter_(-1, keys.long(), True)[:, None]


def chosen_blocks(visible: Tensor, blocks: Tensor, size: int) -> Tensor:
    """Keeps the visible pairs whose key lies in one of the blocks [B, heads, Sq, n] of `size` keys; -1: no block."""
    columns = visible.shape[-1]
    count = -(-columns // size)
    chosen = torch.zeros((*blocks.shape[:3], count + 1), dtype=torch.bool, device=blocks.device)
    chosen.scatter_(-1, blocks.where(blocks >= 0, count).long(), True)
    return visible & chosen[..., :count].repeat_interleave(size, -1)[..., :columns]


def block_size(module: Any, blocks: Tensor) -> int:
    """Returns how many keys a block has, from the configuration, since the layer's call does not say it."""
    size = getattr(getattr(module, "config", None), "index_block_size", None)
    if not isinstance(size, int):
        raise ValueError(
            f"block_indices {list(blocks.shape)} came to flashmask's attention from a model whose configuration has no "
            'index_block_size, so that nobody knows how many keys a block has; use attn_implementation="eager"'
        )
    return size


def refuse_restarts(position_ids: Tensor, visible: Tensor) -> None:
    """Raises if positions [B or 1, S] restart: models count blocks by position, from the start of the sequence.

    visible bool [B or 1, heads, S, S]; keys that no row sees are padding, whose positions are arbitrary.
    """
    begins = documents(position_ids, ~visible.any(1).any(-2)).first
    if bool((begins > 0).any()):
        raise ValueError(
            "position_ids restart in a model that chooses blocks of keys by position (block_indices), counted from "
            "where the sequence begins: later documents would get the first one's blocks and see nothing; hand over "
            "cu_seq_lens_q, and position_ids that go on, torch.arange(tokens)[None]"
        )
