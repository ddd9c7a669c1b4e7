# SPDX-License-Identifier: Apache-2.0
"""Makes the mask of a layer from the arguments that it is called with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flashmask import Mask, RowIndices
from flashmask._torch.shared import shared
from flashmask.transformers._given import check_row_indices, dense_mask, given_mask
from flashmask.transformers._indices import Indices, read
from flashmask.transformers._mask import is_made, is_made_of_function
from flashmask.transformers._visible import (
    VisibleRows,
    causal,
    cumulative,
    documents,
    every_row,
    last_keys,
    unpacked,
)


@dataclass(frozen=True)
class Call:
    """The arguments of one layer's call that decide its mask."""

    batch: int
    rows: int
    columns: int
    device: torch.device
    causal: bool
    window: int | None
    attention_mask: Any  # a tensor, a BlockMask or None
    row_indices: Tensor | None
    position_ids: Tensor | None
    cu_seq_lens_q: Tensor | None
    cu_seq_lens_k: Tensor | None

    def __post_init__(self) -> None:
        positions = self.position_ids
        if positions is not None and positions.ndim < 2:
            raise ValueError(
                f"position_ids has shape {list(positions.shape)}; expected [1 or {self.batch}, {self.rows}]: pass "
                "position_ids[None]"
            )


def layer_mask(call: Call) -> Indices | Mask | Tensor:
    """Returns the mask of a call; all layers that are called with the same tensors get the same one.

    Booleans on a GPU stay a tensor, since kernels read them there.
    """
    mask = call.attention_mask
    if mask is not None and not isinstance(mask, Tensor):
        return _of_block_mask(call, mask)
    if mask is not None and is_made_of_function(mask):
        return _of_function(call, mask)
    if mask is not None and mask.ndim == 4:
        return _handed_as_attention_mask(call, mask)
    if call.row_indices is not None:
        check_row_indices(call.row_indices, "startend_row_indices", call.batch, call.columns)
        padding = _visible(call) if mask is not None else None
        return _given(call, call.row_indices, padding)
    visible = _visible(call)
    within = _documents(call)
    if not within:
        return shared(_row_indices, (visible,))
    return shared(_row_indices_within, (visible, *within), rows=call.rows)


def _of_block_mask(call: Call, block_mask: Any) -> Indices | Mask:
    from flashmask._flex.with_functions import mask_of_blocks

    if tuple(block_mask.shape[-2:]) != (call.rows, call.columns):
        raise ValueError(
            f"attention_mask is a BlockMask of shape {tuple(block_mask.shape)}; the layer has {call.rows} queries and "
            f"{call.columns} keys"
        )
    _refuse_row_indices(call, "a BlockMask as attention_mask")
    made: Mask | RowIndices = mask_of_blocks(block_mask)
    return Indices(made.startend_row_indices, causal=False) if isinstance(made, RowIndices) else made


def _of_function(call: Call, mask: Tensor) -> Indices:
    _refuse_row_indices(call, "a mask function of the model that flashmask does not know")
    return shared(_flat, (mask,))


def _flat(ranges: Tensor) -> Indices:
    return Indices(ranges.flatten(3).clone(), causal=False)


def _refuse_row_indices(call: Call, beside: str) -> None:
    if call.row_indices is not None:
        raise ValueError(
            f"{beside} and startend_row_indices {list(call.row_indices.shape)} came together; hand over one of them"
        )


def _handed_as_attention_mask(call: Call, mask: Tensor) -> Indices | Mask | Tensor:
    _refuse_row_indices(call, f"a 4-D attention_mask {list(mask.shape)}")
    if mask.dtype is torch.bool:
        return mask if mask.is_cuda else shared(dense_mask, (mask,))
    if mask.is_floating_point():
        raise ValueError(
            f"attention_mask is a 4-D tensor of {mask.dtype}, numbers to add to the scores; flashmask takes what is "
            "visible: booleans [B, heads, Sq, Sk], or row indices [B, heads, Sk, n]"
        )
    check_row_indices(mask, "the 4-D attention_mask", call.batch, call.columns)
    return _given(call, mask, None)


def _given(call: Call, indices: Tensor, visible: Tensor | None) -> Indices | Mask:
    window = call.window if call.window is not None and call.window < call.columns else None
    if visible is None and window is None:
        return read(indices, call.causal)
    tensors: tuple[Tensor, ...] = (indices,) if visible is None else (indices, visible)
    if window is not None:
        tensors += _whole_positions(call)
    said = {"has_visible": visible is not None, "rows": call.rows, "causal": call.causal, "window": window}
    return shared(given_mask, tensors, **said)


def _visible(call: Call) -> Tensor:
    """Returns int32 [B or 1, Sk, 2] as flashmask_mask() makes it, also for models that do not call it."""
    mask: Tensor | None = call.attention_mask
    if mask is not None and is_made(mask):
        if mask.shape[0] not in (1, call.batch) or mask.shape[1] != call.columns:
            raise ValueError(f"the model's mask is for {mask.shape[1]} keys, the layer has {call.columns}")
        return mask
    rows = _plain(call)
    if mask is not None:
        if list(mask.shape) != [call.batch, call.columns]:
            raise ValueError(
                f"attention_mask has shape {list(mask.shape)}; expected [{call.batch}, {call.columns}], False or 0 for "
                f"padding, or booleans [{call.batch}, 1, {call.rows}, {call.columns}], True = visible"
            )
        rows = rows.where(mask.bool())
    return rows.packed(call.rows)


def _plain(call: Call) -> VisibleRows:
    """Returns the rows that a layer's causality and window leave visible, for a model that made no mask."""
    shift = call.columns - call.rows
    if call.causal and shift != 0 and call.rows != 1:
        raise ValueError(
            f"{call.rows} queries and {call.columns} keys in a causal layer without a mask: which keys come before the "
            "first query is unknown; let the model make its mask"
        )
    columns = torch.arange(call.columns, device=call.device)[None] - shift
    rows = causal(columns) if call.causal else every_row(columns)
    if call.window is None or call.window >= call.columns:
        return rows
    if not call.causal:
        raise ValueError(
            f"sliding_window={call.window} in a layer that is neither causal nor has a mask: what such a window means "
            "differs between models; let the model make its mask"
        )
    return rows & last_keys(columns, call.window)


def _documents(call: Call) -> tuple[Tensor, ...]:
    """Returns the tensors that say where documents begin; an empty tuple if there are none."""
    if call.cu_seq_lens_q is not None:
        return _check_lengths(call, call.cu_seq_lens_q, call.cu_seq_lens_k)
    return _whole_positions(call)


def _whole_positions(call: Call) -> tuple[Tensor, ...]:
    """Returns the position ids [B or 1, S] if they cover every key, else an empty tuple."""
    positions = call.position_ids
    if positions is None or call.rows == 1 or positions.ndim != 2:
        return ()
    whole = call.rows == call.columns == positions.shape[1] and positions.shape[0] in (1, call.batch)
    return (positions,) if whole else ()


def _check_lengths(call: Call, queries: Tensor, keys: Tensor | None) -> tuple[Tensor, Tensor]:
    keys = queries if keys is None else keys
    if call.batch != 1:
        raise ValueError(
            f"cu_seq_lens_q with a batch of {call.batch}; expected one sequence that holds all documents: [1, tokens]"
        )
    if queries.ndim != 1 or queries.shape != keys.shape:
        raise ValueError(
            f"cu_seq_lens_q {list(queries.shape)} and cu_seq_lens_k {list(keys.shape)}; expected both [documents + 1]"
        )
    differ = queries is not keys and queries.device.type == "cpu" and not torch.equal(queries, keys)
    if call.causal and (call.rows != call.columns or differ):
        raise ValueError(
            "cu_seq_lens_q and cu_seq_lens_k differ in a causal layer; flashmask.varlen_attention() does that"
        )
    return queries, keys


def _row_indices(visible: Tensor) -> Indices:
    return Indices(visible[:, None].clone(), causal=False)


def _row_indices_within(visible: Tensor, *said: Tensor, rows: int) -> Indices:
    """Restricts visible [B or 1, Sk, 2] to documents, given by position_ids or by two tensors of cumulative lengths."""
    seen = unpacked(visible)
    if len(said) == 1:
        within = documents(said[0], seen.end <= seen.first)
    else:
        within = cumulative(said[0], said[1], visible.shape[1])
    return Indices((seen & within).packed(rows)[:, None], causal=False)
