# SPDX-License-Identifier: Apache-2.0
"""The mask function in Transformers' registry: turns a model's mask into the visible rows of each key."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import masking_utils

from flashmask.transformers._calls import documents_of_call
from flashmask.transformers._functions import mask_of_function, of_all_keys
from flashmask.transformers._heads import note_lengths
from flashmask.transformers._once import warn_once
from flashmask.transformers._recognise import Keys, MaskFunction, recognise, recognise_traced, within_documents
from flashmask.transformers._visible import VisibleRows

_PADDED = "flashmask_padded"  # attribute of a mask in which an attention_mask hides keys
#: Fields of a configuration that say how many keys the model chooses for each query, reading a mask of pairs.
_CHOOSING = ("index_topk", "indexer_budget")
_CHOOSES = "this model chooses keys for each query, and flashmask makes its masks for that"


def flashmask_mask(
    *,
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: MaskFunction = masking_utils.causal_mask_function,
    attention_mask: Tensor | None = None,
    device: torch.device | str = "cpu",
    use_vmap: bool = False,
    **others: Any,
) -> Tensor:
    """Makes the mask of one kind of layers, once per forward; Transformers calls this, users do not.

    The mask has q_length rows, the first being number q_offset, and kv_length columns from number kv_offset on;
    attention_mask is bool [batch_size, keys], False = padding. Returns int32 [batch_size or 1, kv_length, 2]: key j is
    seen by the rows [r_j1, r_j0). A mask_function that is not made of the parts of transformers.masking_utils runs once
    on symbols: int32 [batch_size or 1, 1, kv_length, 2, 2], two ranges of masked rows, or with a warning booleans where
    a key has more. Any mask of a model that chooses keys for each query is evaluated for every pair, with a warning:
    bool [batch_size, 1, q_length, kv_length]. An attention_mask [batch_size, q_length, kv_length], booleans or 0 and 1,
    decides every pair.
    """
    if attention_mask is not None and attention_mask.ndim != 2:
        # generate() makes masks in advance, with this function
        made = is_made(attention_mask) or is_made_of_function(attention_mask)
        return attention_mask if made else _of_pairs(attention_mask)
    both_ways = "allow_is_bidirectional_skip" in others
    plain = _is_plain(mask_function, use_vmap, others)
    mask_function = within_documents(
        mask_function,
        documents_of_call(
            batch=batch_size,
            rows=q_length,
            columns=kv_length + kv_offset,
            first_row=q_offset,
            both_ways=both_ways,
            attention_mask=attention_mask,
            device=device,
        ),
    )
    keys = Keys(kv_length, kv_offset, device)
    config = others.get("config")
    chooses = any(getattr(config, name, None) is not None for name in _CHOOSING)
    if chooses:
        rows = None
    elif torch.compiler.is_compiling() and plain:
        window = others.get("local_size")
        rows = recognise_traced(mask_function, keys, batch=batch_size, window=window, both_ways=both_ways)
    else:
        rows = _recognised(mask_function, keys)
    if rows is None and not chooses:
        return mask_of_function(
            *(mask_function, keys),
            batch=batch_size,
            rows=q_length,
            first_row=q_offset,
            attention_mask=attention_mask,
        )
    if rows is None:
        return _evaluated(
            batch_size=batch_size,
            q_length=q_length,
            kv_length=kv_length,
            q_offset=q_offset,
            kv_offset=kv_offset,
            mask_function=mask_function,
            attention_mask=attention_mask,
            use_vmap=use_vmap,
            device=device,
        )
    rows = rows.starting_at(q_offset)
    whole = attention_mask is None and q_length == kv_length and isinstance(q_offset, int) and q_offset == kv_offset
    if attention_mask is not None:
        held = of_all_keys(attention_mask, kv_offset + kv_length)
        rows = rows.where(held[:, kv_offset : kv_offset + kv_length])
    visible = rows.packed(q_length)
    if torch.compiler.is_compiling():
        return visible
    if attention_mask is not None:
        setattr(visible, _PADDED, True)
    if whole:
        note_lengths(visible, mask_function, config)
    return visible


def is_made(mask: Tensor) -> bool:
    """Whether flashmask_mask() made a mask: int32 [B or 1, Sk, 2], which no user's mask is."""
    return mask.ndim == 3 and mask.dtype is torch.int32 and mask.shape[2] == 2


def is_made_of_function(mask: Tensor) -> bool:
    """Whether flashmask_mask() made a mask of an unknown function: int32 [B or 1, 1, Sk, 2, 2], which no user's is."""
    return mask.ndim == 5 and mask.dtype is torch.int32


def is_padded(mask: Tensor) -> bool:
    """Whether an attention_mask hides keys in a mask that flashmask_mask() made."""
    return hasattr(mask, _PADDED)


def _of_pairs(mask: Tensor) -> Tensor:
    if mask.is_floating_point():
        raise ValueError(
            f"attention_mask is {mask.dtype} {list(mask.shape)}, numbers to add to the scores; flashmask takes what is "
            "visible: booleans or 0 and 1, [B, tokens] or [B, Sq, Sk]"
        )
    return mask.bool()[:, None]


def _is_plain(function: MaskFunction, use_vmap: bool, others: dict[str, Any]) -> bool:
    """Whether a function has no image blocks, no parts from the user and no chunks."""
    chunked = getattr(others.get("config"), "attention_chunk_size", None) is not None
    return not use_vmap and not chunked and function.__name__ != "or_mask"


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _recognised(function: MaskFunction, keys: Keys) -> VisibleRows | None:
    return recognise(function, keys)


def _evaluated(**arguments: Any) -> Tensor:
    warn_once(f"{_CHOOSES}: in booleans for every query and key, here and from now on.")
    dense = masking_utils.sdpa_mask(**arguments, allow_is_causal_skip=False)
    assert isinstance(dense, Tensor)
    return dense
