# SPDX-License-Identifier: Apache-2.0
"""Masks of mask functions with parts that are not of transformers.masking_utils: users' own, and unions of parts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import masking_utils

from flashmask import RowIndices, masks
from flashmask._graph_break import breaks_graph
from flashmask.transformers._once import warn_once
from flashmask.transformers._recognise import Keys, MaskFunction

_BOOLEANS = (
    "a mask function of this model masks more than two ranges of queries for some key; where startend_row_indices can "
    "say the same, hand them to the model instead, for its mask is held in booleans for every query and key, here and "
    "from now on."
)


@breaks_graph
def mask_of_function(
    function: MaskFunction, keys: Keys, *, batch: int, rows: int, first_row: Any, attention_mask: Tensor | None
) -> Tensor:
    """Makes a mask as masks.from_mask_mod() does; the queries are `rows` from number first_row on.

    attention_mask is bool [batch, keys], False = padding. Returns int32 [batch or 1, 1, keys, 2, 2], two ranges
    [begin, end) of masked rows per key; with a warning booleans [batch or 1, 1, rows, keys] where there are more.
    """
    if attention_mask is not None:
        padding = masking_utils.padding_mask_function(of_all_keys(attention_mask, keys.offset + keys.count))
        function = masking_utils.and_masks(function, padding)
    function = masking_utils.add_offsets_to_mask_function(function, first_row, keys.offset)
    mask = masks.from_mask_mod(function, batch, 1, rows, keys.count, device=keys.device)
    if isinstance(mask, RowIndices):
        return _of_ranges(mask.startend_row_indices)
    if mask.form == "intervals":
        values, causal = mask.to_startend_row_indices()
        return _two_ranges(torch.from_numpy(values), causal, rows).to(keys.device)
    warn_once(_BOOLEANS)
    return torch.as_tensor(mask.to_dense()).to(keys.device)


def of_all_keys(attention_mask: Tensor, keys: int) -> Tensor:
    """Returns attention_mask [batch, any] with False for the unused slots of a static cache, [batch, keys or more]."""
    return torch.nn.functional.pad(attention_mask, (0, max(0, keys - attention_mask.shape[-1])))


def _two_ranges(values: Tensor, causal: bool, rows: int) -> Tensor:
    """Returns int32 [batch, heads, keys, 2, 2] of row indices of any number of vectors."""
    if values.shape[3] == 4:
        return _of_ranges(values)
    columns = values.shape[2]
    before = (torch.arange(columns, dtype=torch.int32) + rows - columns).clamp(0, rows).expand(values.shape[:3])
    first, last = values[..., 0], values[..., -1]
    no_end, no_begin = torch.full_like(first, rows), torch.zeros_like(first)
    if causal:
        bounds = first, (last if values.shape[3] == 2 else no_end), no_begin, before
    else:
        bounds = first, no_end, no_begin, last
    return _of_ranges(torch.stack(bounds, 3))


def _of_ranges(vectors: Tensor) -> Tensor:
    return vectors.reshape(*vectors.shape[:3], 2, 2)
