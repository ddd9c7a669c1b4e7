# SPDX-License-Identifier: Apache-2.0
"""Shares out a batch over the ranks of a group, and computes attention in a layer that is called with a sharding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import cache, partial
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import masking_utils

from flashmask import Mask, RowIndices
from flashmask._arguments import described
from flashmask._options import CallOptions
from flashmask._torch.packing import check_ends
from flashmask.distributed import Sharding, attention
from flashmask.distributed import shard as shard_masks
from flashmask.transformers._given import dense_mask
from flashmask.transformers._indices import Indices
from flashmask.transformers._layer_mask import Call, layer_mask
from flashmask.transformers._mask import is_made, is_padded
from flashmask.transformers._name import CACHE
from flashmask.transformers._ours import is_ours
from flashmask.transformers._stateful import carriers_of, refuse_over_ranks

_IGNORED = -100
_MAIN = "mask"
_FULL, _SLIDING, _STATE = "full_attention", "sliding_attention", "linear_attention"
_ATTENDS = {"conv": _STATE, "hybrid": _FULL, "hybrid_sliding": _SLIDING}
"""Kinds of layers with a state, and of those with attention beside it, by the mask that they take."""
_SAYS_THE_MASK = (
    *("attention_mask", "startend_row_indices", "attn_mask_startend_row_indices"),
    *("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k"),
)
_POSITIONS = "position_ids"
_OF_TOKENS = ("input_ids", "inputs_embeds", _POSITIONS, "token_type_ids", "labels", "shift_labels")


def shard(model: torch.nn.Module, batch: Mapping[str, Any], group_or_mesh: Any, **options: Any) -> dict[str, Any]:
    """Returns this rank's part of a batch for a model with attn_implementation="flashmask".

    A collective: every rank calls it once per batch. `batch` is the whole batch, the same on every rank: input_ids or
    inputs_embeds [B, S, ...], labels [B, S], and whatever gives its mask on a single device: attention_mask,
    position_ids or cu_seq_lens_q of packed documents, startend_row_indices. Returns the arguments for the model: this
    rank's tokens of these, `shift_labels`, shifted before the split (-100 where the next token begins another
    document), and `sharding`, which is passed on to every layer. `options` are those of flashmask.distributed.shard().

    Layers with a state, beside attention or alone, are served where docs/recurrent.md says so.

    Raises ValueError for tensors that it does not know, for layers of other kinds, for a model with another attention,
    which would see only this rank's tokens, and, on every rank, if some rank would get no tokens. Raises RuntimeError
    on every rank if the batch of any rank is wrong.
    """
    config = _config_of(model)
    refuse_over_ranks(model)
    first = _tokens(batch)
    has_states = bool(carriers_of(model))
    layers = _layers(config, has_states)
    main = _FULL if _FULL in layers else _SLIDING
    made = cache(partial(_masks_of, model, batch, first, layers))  # called in shard(), which tells all ranks of errors
    others = {_window_name(config.sliding_window): lambda: made()[_SLIDING]} if len(layers) > 1 else {}
    sharding = shard_masks(
        lambda: made()[main],
        group_or_mesh,
        masks=others,
        weights={_MAIN: layers[main], **dict.fromkeys(others, layers[_SLIDING])},
        **{**_heads_of(config), **options},
    )
    if has_states:
        sharding.nodes()  # of a mask that has none, raises here rather than in a layer
    _check_shares(sharding)
    return _local(batch, first, sharding)


def _config_of(model: Any) -> Any:
    """Returns the configuration of the model's text."""
    config: Any = getattr(model, "config", None)
    if not hasattr(config, "get_text_config"):
        raise TypeError(f"model is a {type(model).__name__}; expected a model of Transformers: pass what it wraps")
    if getattr(config, "is_encoder_decoder", False):
        raise ValueError(
            f"the model is a {type(model).__name__}, of an encoder and a decoder, whose attention across sequences is "
            "not sharded; train it on one device"
        )
    config = config.get_text_config()
    if not is_ours(config._attn_implementation):
        raise ValueError(
            f"the model has attn_implementation={config._attn_implementation!r}, which would attend to this rank's "
            'tokens alone; expected "flashmask", or another name that was given to flashmask.transformers.register()'
        )
    return config


def _heads_of(config: Any) -> dict[str, Any]:
    """Returns the heads of attention; a model without attention has one, and runs of tokens, which are equal work."""
    heads = getattr(config, "num_attention_heads", None)
    if heads is None:
        return {"query_heads": 1, "kv_heads": 1, "head_dim": 64, "partition": "contiguous"}
    return {
        "query_heads": heads,
        "kv_heads": getattr(config, "num_key_value_heads", None) or heads,
        "head_dim": getattr(config, "head_dim", None) or config.hidden_size // heads,
    }


def _check_shares(sharding: Sharding) -> None:
    """Raises on all ranks if one has no tokens: models index the first and the last token of their input."""
    if 0 in sharding.lengths:
        raise ValueError(
            f"the batch has {sharding.tokens} tokens, of which rank {sharding.lengths.index(0)} of {sharding.ranks} "
            "would hold none, which models do not take; spread batches rather than sequences over the ranks, or make "
            'the sequence longer, or give partition="contiguous" or one of your own'
        )


def _tokens(batch: Mapping[str, Any]) -> Tensor:
    """Returns input_ids or inputs_embeds; raises ValueError for tensors in the batch that are not known."""
    for name, value in batch.items():
        if isinstance(value, Tensor) and value.ndim and name not in (*_SAYS_THE_MASK, *_OF_TOKENS):
            raise ValueError(
                f"the batch has {name!r}, a tensor {list(value.shape)} of which flashmask does not know whether it is "
                f"to be shared out; take it out, or shard it with sharding.shard(). Known: {', '.join(_OF_TOKENS)}"
            )
    first = batch.get("input_ids", batch.get("inputs_embeds"))
    if not isinstance(first, Tensor) or first.ndim < 2:
        raise ValueError(f"input_ids is {described(first)}; expected the whole batch, integers [B, S]")
    return first


# ---- masks ----


def _layers(config: Any, has_states: bool) -> Counter[str]:
    """Counts the layers of attention of each kind; one full one where layers with a state have no other mask."""
    only = _SLIDING if getattr(config, "sliding_window", None) is not None else _FULL
    kinds = getattr(config, "layer_types", None) or [only] * config.num_hidden_layers
    layers = Counter(_ATTENDS.get(kind, kind) if has_states else kind for kind in kinds)
    if has_states:
        del layers[_STATE]
        layers[_FULL] = max(layers[_FULL], 1)
    chunked = getattr(config, "attention_chunk_size", None) is not None
    unknown = sorted(set(layers) - {_FULL, _SLIDING}) + ["chunked_attention"] * chunked
    if unknown:
        raise ValueError(
            f"the model has layers of {', '.join(unknown)}; flashmask.transformers.shard() knows {_FULL} and {_SLIDING}"
        )
    return layers


def _window_name(window: int) -> str:
    return f"window of {window}"


def _masks_of(model: Any, batch: Mapping[str, Any], first: Tensor, layers: Mapping[str, int]) -> dict[str, Mask]:
    """Makes the mask of each kind of layers on the host, as for a single device."""
    _check_shapes(batch, first)
    given = {name: batch[name].cpu() for name in batch if isinstance(batch[name], Tensor)}
    positions = given.get("position_ids")
    said = given.get("attention_mask", batch.get("attention_mask"))
    made = said
    if said is None or (isinstance(said, Tensor) and said.ndim == 2):
        create = getattr(model, "create_masks_for_generate", masking_utils.create_masks_for_generate)
        known = {name: given[name] for name in ("token_type_ids",) if name in given}
        no_cache = {name: None for name in CACHE if name in signature(create).parameters}
        shape = torch.empty(*first.shape[:2], 1)
        made = create(model.config, shape, said, position_ids=positions, **no_cache, **known)
        if isinstance(made, dict) and _FULL in layers and _FULL not in made:  # every layer carries a state
            made[_FULL] = masking_utils.create_causal_mask(
                model.config, shape, said, position_ids=positions, **no_cache, **known
            )
    return {
        kind: _mask_of(made[kind] if isinstance(made, dict) else made, given, first, model.config, kind)
        for kind in layers
    }


def _check_shapes(batch: Mapping[str, Any], first: Tensor) -> None:
    rows, tokens = first.shape[:2]
    for name in _OF_TOKENS:
        value = batch.get(name)
        if value is None:
            continue
        shape = value.shape if isinstance(value, Tensor) else ()
        if len(shape) < 2 or shape[0] not in (1, rows) or shape[1] != tokens or (name == _POSITIONS and len(shape) > 2):
            raise ValueError(f"{name} is {described(value)}; expected a tensor [{rows}, {tokens}], the whole batch")
    for name in ("cu_seq_lens_q", "cu_seq_lens_k"):
        if isinstance(ends := batch.get(name), Tensor):
            check_ends(name, ends.cpu(), tokens)


def _mask_of(made: Any, given: Mapping[str, Tensor], first: Tensor, config: Any, kind: str) -> Mask:
    text = config.get_text_config()
    indices = given.get("startend_row_indices", given.get("attn_mask_startend_row_indices"))
    call = Call(
        batch=first.shape[0],
        rows=first.shape[1],
        columns=first.shape[1],
        device=torch.device("cpu"),
        causal=getattr(text, "is_causal", True),
        window=text.sliding_window if kind == _SLIDING else None,
        attention_mask=made,
        row_indices=indices,
        position_ids=given.get("position_ids"),
        cu_seq_lens_q=given.get("cu_seq_lens_q"),
        cu_seq_lens_k=given.get("cu_seq_lens_k"),
    )
    found = layer_mask(call)
    if isinstance(found, Indices):
        return RowIndices(*found, call.rows).to_mask()
    return dense_mask(found) if isinstance(found, Tensor) else found


# ---- tokens ----


def _local(batch: Mapping[str, Any], first: Tensor, sharding: Sharding) -> dict[str, Any]:
    whole = {name: value for name, value in batch.items() if name not in _SAYS_THE_MASK}
    if whole.get("position_ids") is None:
        whole["position_ids"] = torch.arange(first.shape[1], device=first.device).expand(first.shape[0], -1)
    if whole.get("labels") is not None and whole.get("shift_labels") is None:
        whole["shift_labels"] = _shifted(whole["labels"], batch)
    shared = {name: sharding.shard(value) for name, value in whole.items() if name in _OF_TOKENS and value is not None}
    return {**whole, **shared, "sharding": sharding}


def _shifted(labels: Tensor, batch: Mapping[str, Any]) -> Tensor:
    """Returns each next token's label, [B, S]; -100 where that begins another document or there is none."""
    begins = torch.zeros_like(labels, dtype=torch.bool)
    positions, ends = batch.get("position_ids"), batch.get("cu_seq_lens_q")
    if positions is not None:
        begins[:, 1:] = positions.diff() != 1
    if ends is not None:
        begins[:, ends[ends < labels.shape[1]].long()] = True
    return pad(labels.masked_fill(begins, _IGNORED)[:, 1:], (0, 1), value=_IGNORED)


# ---- a layer ----


def sharded_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sharding: Sharding,
    options: CallOptions,
    *,
    window: int | None,
    attention_mask: Tensor | None,
    **others: Any,
) -> Tensor:
    """Returns [B, held, Hq, Dv] for query, key, value [B, heads, held, D], held tokens; refuses any of `others`."""
    if attention_mask is not None and (not is_made(attention_mask) or is_padded(attention_mask)):
        raise ValueError(
            "an attention_mask came beside a sharding, which holds the masks of the whole sequence; give it to "
            "flashmask.transformers.shard() and leave it out of the call"
        )
    for name, given in others.items():
        if given is not None:
            raise ValueError(f"{name} came beside a sharding, under which flashmask does not serve it; leave it out")
    masks = sharding.masks
    name = _MAIN if window is None or len(masks) == 1 else _window_name(window)
    q, k, v = (each.transpose(1, 2) for each in (query, key, value))
    found: Tensor = attention(
        *(q, k, v, sharding),
        mask=name,
        scale=options.scale or None,
        dropout_p=options.dropout,
        sinks=options.sinks,
        score=options.score,
        invariant=options.invariant,
    )
    return found
