# SPDX-License-Identifier: Apache-2.0
"""Runs layers whose heads are too wide for every kernel of their device on torch's attention."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from flashmask._torch.shared import shared
from flashmask.transformers._heads import noted_lengths
from flashmask.transformers._indices import Indices
from flashmask.transformers._layer_mask import Call, layer_mask
from flashmask.transformers._once import warn_once
from flashmask.transformers._pairs import pairs


def wide_attention(
    query: Tensor, key: Tensor, value: Tensor, call: Call, *, dropout: float, scaling: float | None
) -> Tensor:
    """Returns torch's attention [B, Sq, Hq, Dv] of query [B, Hq, Sq, D], key [B, Hkv, Sk, D], value [B, Hkv, Sk, Dv].

    Causal documents whose lengths are known run one by one, everything else under booleans for every pair.
    """
    group = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    lengths = _documents(call)
    heads = f"flashmask has no kernel for heads of {query.shape[-1]} on this device; such layers run on torch's"
    if lengths is not None:
        warn_once(f"{heads} scaled_dot_product_attention, a document at a time")
        out = _each_alone(query, key, value, lengths, dropout, scaling)
    else:
        warn_once(f"{heads} scaled_dot_product_attention, under booleans for every query and key")
        out = _under_booleans(query, key, value, call, dropout, scaling)
    return out.transpose(1, 2)


def _documents(call: Call) -> Sequence[Sequence[int]] | None:
    """Returns the lengths of a call's causal documents, one list per batch entry, or None for any other mask."""
    lengths = noted_lengths(call.attention_mask)
    if lengths is None or call.row_indices is not None or call.window is not None or call.rows != call.columns:
        return None
    if len(lengths) == 1:
        lengths = lengths * call.batch
    return lengths if call.cu_seq_lens_q is None else _as_said_twice(call.cu_seq_lens_q, lengths)


def _as_said_twice(bounds: Tensor, lengths: list[list[int]]) -> list[list[int]] | None:
    """Returns the lengths if bounds [documents + 1] agree; on a GPU the host compares only how many there are."""
    if len(lengths) != 1 or len(bounds) != len(lengths[0]) + 1:
        return None
    expected = torch.tensor([0, *lengths[0]], device=bounds.device).cumsum(0)
    if bounds.device.type == "cpu":
        return lengths if torch.equal(bounds.long(), expected) else None
    torch._assert_async((bounds == expected).all(), "cu_seq_lens_q and position_ids say different documents")
    return lengths


def _each_alone(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lengths: Sequence[Sequence[int]],
    dropout: float,
    scaling: float | None,
) -> Tensor:
    entries = []
    for entry, cuts in enumerate(lengths):
        parts = [torch.split(each[entry : entry + 1], list(cuts), 2) for each in (query, key, value)]
        alone = [
            scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True, scale=scaling)
            for q, k, v in zip(*parts, strict=True)
        ]
        entries.append(torch.cat(alone, 2))
    return torch.cat(entries)


def _under_booleans(
    query: Tensor, key: Tensor, value: Tensor, call: Call, dropout: float, scaling: float | None
) -> Tensor:
    """Attends under booleans. Rows that see nothing attend to every key; their output and gradient are then zeroed."""
    mask = layer_mask(call)
    if isinstance(mask, Indices):
        visible, seen = shared(_visible, (mask.vectors,), causal=mask.causal, rows=call.rows)
    else:
        visible, seen = _with_rows_that_see(pairs(mask, call.rows, call.device))
    if visible.shape[1] not in (1, query.shape[1]):
        repeats = query.shape[1] // visible.shape[1]
        visible, seen = visible.repeat_interleave(repeats, 1), seen.repeat_interleave(repeats, 1)
    return scaled_dot_product_attention(query, key, value, visible, dropout_p=dropout, scale=scaling) * seen


def _visible(vectors: Tensor, *, causal: bool, rows: int) -> tuple[Tensor, Tensor]:
    return _with_rows_that_see(pairs(Indices(vectors, causal), rows, vectors.device))


def _with_rows_that_see(visible: Tensor) -> tuple[Tensor, Tensor]:
    """Lets rows that see nothing see everything; also returns which rows [..., 1] saw something before."""
    seen = visible.any(-1, keepdim=True)
    return visible | ~seen, seen
