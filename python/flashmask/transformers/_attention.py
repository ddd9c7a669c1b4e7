# SPDX-License-Identifier: Apache-2.0
"""The attention function in Transformers' registry."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NoReturn

import torch
from torch import Tensor
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

import flashmask
from flashmask import Mask, RowIndices, scores
from flashmask._abi.problem import check_scale
from flashmask._backends import OURS, Backend, cudnn_of
from flashmask._options import CallOptions
from flashmask._rows import one_name_of
from flashmask._torch.attention import attention_of_tensors, call_of, drawn_seed, sinks_tensor
from flashmask._torch.operators import forward
from flashmask._torch.shared import shared
from flashmask.transformers._calls import refuse_unmasked
from flashmask.transformers._dtype import in_kernels_dtype, refuse_float32
from flashmask.transformers._few_rows import few_rows
from flashmask.transformers._given import dense_mask
from flashmask.transformers._heads import is_wide
from flashmask.transformers._indices import Indices
from flashmask.transformers._keywords import refuse_keywords
from flashmask.transformers._layer_mask import Call, layer_mask
from flashmask.transformers._mask import flashmask_mask
from flashmask.transformers._once import warn_once
from flashmask.transformers._over_layers import attention_over_layers, is_over_layers
from flashmask.transformers._pairs import block_size, chosen_blocks, chosen_keys, pairs, refuse_restarts
from flashmask.transformers._shard import sharded_attention
from flashmask.transformers._stateful import is_untold, refuse_untold
from flashmask.transformers._tables import is_table
from flashmask.transformers._wide import wide_attention


@cache
def attention_function(
    visit: str, backend: Backend = None, invariant: bool = False
) -> Callable[..., tuple[Tensor, None]]:
    """Returns flashmask_attention_forward() with plans that visit "active" or "all" tiles, with a backend and with a
    document's own bits; always the same object."""
    if visit == "active" and backend is None and not invariant:
        return flashmask_attention_forward
    return partial(flashmask_attention_forward, visit=visit, backend=backend, invariant=invariant)


def flashmask_attention_forward(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    *,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    is_causal: bool | None = None,
    startend_row_indices: Tensor | None = None,
    position_ids: Tensor | None = None,
    cu_seq_lens_q: Tensor | None = None,
    cu_seq_lens_k: Tensor | None = None,
    attn_mask_startend_row_indices: Tensor | None = None,
    s_aux: Tensor | None = None,
    sinks: Tensor | None = None,
    indices: Tensor | None = None,
    block_indices: Tensor | None = None,
    deterministic: bool = False,
    invariant: bool = False,
    visit: str = "active",
    sharding: Any = None,
    softcap: float | None = None,
    backend: Backend = None,
    position_bias: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Computes the attention of one layer; Transformers calls this, users do not.

    query [B, Hq, Sq, D], key [B, Hkv, Sk, D], value [B, Hkv, Sk, Dv]; returns [B, Sq, Hq, Dv] and None. The mask is
    attention_mask as flashmask_mask() made it, or startend_row_indices, int32 [B or 1, heads, Sk, n], or in place of
    attention_mask a 4-D tensor of row indices or booleans, or a BlockMask. Documents come from cu_seq_lens_q, else from
    position_ids [B or 1, S]. If indices [B, Sq, n] or block_indices [B, Hkv, Sq, n] are given, a query sees only the
    keys, or the blocks of keys, that they name and the mask leaves visible. Attention sinks are s_aux [Hq], one per
    head, or sinks [B, Hq, Sq] or [B, Hq, Sq, 1], one per query. softcap: scores s become softcap · tanh(s / softcap).
    position_bias [1 or B, 1 or Hq, 1 or Sq, Sk] is added to the scores; it is differentiable. Layers of Inkling give a
    table by distance instead, [B, Hq, Sq, extent].
    deterministic: makes gradients the same bits on every run. invariant: gives every document the bits that it has
    alone. backend: "flashmask" or "cudnn", as for flashmask.attention(). sharding: the one from
    flashmask.transformers.shard(), which holds the masks when tokens are spread over ranks.
    Raises ValueError for arguments that it would have to ignore; docs/transformers.md lists them.
    """
    refuse_keywords(others)
    if is_over_layers(module):
        return attention_over_layers(query, key, value, scaling), None
    score = scores.softcap(softcap)
    if position_bias is not None:
        score = score | (scores.distance if is_table(module, query, key) else scores.bias)(position_bias)
    options = CallOptions(
        scale=check_scale("scaling", scaling),
        deterministic=deterministic,
        invariant=invariant,
        dropout=dropout if module.training else 0.0,
        sinks=_sinks(s_aux, sinks),
        score=score,
        cudnn=cudnn_of(backend),
    )
    if sharding is not None:
        if score.kind:
            _refuse_change("position_bias", "biased", "tokens spread over ranks")
        query, key, value = in_kernels_dtype(module, query, key, value)
        local = sharded_attention(
            *(query, key, value, sharding, options),
            window=sliding_window,
            attention_mask=attention_mask,
            startend_row_indices=one_name_of(startend_row_indices, attn_mask_startend_row_indices),
            cu_seq_lens_q=cu_seq_lens_q,
            indices=indices,
            block_indices=block_indices,
            visit=None if visit == "active" else visit,
        )
        return local, None
    if attention_mask is None:
        _check_registered(module)
        if position_ids is None:
            refuse_unmasked(module, query.shape[2], key.shape[2])
    call = Call(
        batch=query.shape[0],
        rows=query.shape[2],
        columns=key.shape[2],
        device=query.device,
        causal=getattr(module, "is_causal", True) if is_causal is None else is_causal,
        window=sliding_window,
        attention_mask=attention_mask,
        row_indices=one_name_of(startend_row_indices, attn_mask_startend_row_indices),
        position_ids=position_ids,
        cu_seq_lens_q=cu_seq_lens_q,
        cu_seq_lens_k=cu_seq_lens_k,
    )
    if is_untold(module, others):
        refuse_untold(module, call)
    query, key, value = in_kernels_dtype(module, query, key, value)
    if is_wide(query.device.type, query.shape[-1], value.shape[-1]):
        where = f"heads of {query.shape[-1]} on this device"
        if softcap:
            _refuse_change(f"softcap={softcap}", "capped", where)
        if score.kind:
            _refuse_change("position_bias", "biased", where)
        _refuse_beside_wide_heads(
            query,
            s_aux=s_aux,
            sinks=sinks,
            indices=indices,
            block_indices=block_indices,
            invariant=True if invariant else None,
        )
        return wide_attention(query, key, value, call, dropout=options.dropout, scaling=scaling), None
    mask = _chosen(module, call, layer_mask(call), indices, block_indices)
    changed = invariant or score.text or options.sinks is not None
    if query.shape[2] == 1 and not changed and isinstance(mask, Indices) and not mask.causal:
        return _single_token(query, key, value, mask, dropout=options.dropout, scaling=scaling), None
    refuse_float32(module, query)
    q, k, v = (each.transpose(1, 2) for each in (query, key, value))
    if visit != "active":
        return _attend_everywhere(q, k, v, mask, options), None
    few = few_rows(q, k, v, mask, options)
    return _attend(q, k, v, mask, options) if few is None else few, None


def _sinks(of_heads: Tensor | None, of_queries: Tensor | None) -> Tensor | None:
    if of_heads is not None and of_queries is not None:
        raise ValueError(
            "s_aux and sinks came to flashmask's attention, sinks of heads and of queries; a layer has one of them"
        )
    given = sinks_tensor(of_queries if of_heads is None else of_heads)
    return None if given is None else given.float()  # autocast and adapters may mix dtypes


def _refuse_beside_wide_heads(query: Tensor, **others: Tensor | bool | None) -> None:
    for name, value in others.items():
        if value is not None:
            raise ValueError(
                f"{name} came to a layer with heads of {query.shape[-1]}, for which flashmask has no kernel on this "
                'device; use another attn_implementation for this model, such as "eager"'
            )


def _refuse_change(given: str, changed: str, where: str) -> NoReturn:
    raise ValueError(
        f"{given} came to flashmask's attention with {where}, where scores cannot be {changed} yet, and leaving it out "
        'would change the result; use another attn_implementation for this model, such as "eager"'
    )


def _chosen(
    module: torch.nn.Module,
    call: Call,
    mask: Indices | Mask | Tensor,
    indices: Tensor | None,
    block_indices: Tensor | None,
) -> Indices | Mask | Tensor:
    """Returns the mask without the keys that the model did not choose."""
    if indices is None and block_indices is None:
        return mask
    visible = pairs(mask, call.rows, call.device)
    if indices is not None:
        visible = chosen_keys(visible, indices)
    if block_indices is not None:
        if call.cu_seq_lens_q is None and call.position_ids is not None and call.rows == call.columns:
            refuse_restarts(call.position_ids, visible)
        visible = chosen_blocks(visible, block_indices, block_size(module, block_indices))
    return visible


def _check_registered(module: torch.nn.Module) -> None:
    """Raises ValueError if no mask came because Transformers has none of our mask functions under this name."""
    name = getattr(getattr(module, "config", None), "_attn_implementation", None)
    if name is None:
        return
    if name not in ALL_MASK_ATTENTION_FUNCTIONS._global_mapping:
        found = "nothing, so that Transformers drops every mask"
    elif ALL_MASK_ATTENTION_FUNCTIONS[name] is not flashmask_mask:
        found = f"{ALL_MASK_ATTENTION_FUNCTIONS[name]!r}, which does not make flashmask's masks"
    else:
        return
    raise ValueError(
        f"attn_implementation={name!r} is registered for attention, but in the mask registry it is {found}; call "
        f"flashmask.transformers.register({name!r}) rather than AttentionInterface.register"
    )


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Indices | Mask | Tensor, options: CallOptions) -> Tensor:
    if not isinstance(mask, Indices):
        return attention_of_tensors(q, k, v, mask, None, options)[0]
    seed = drawn_seed(options, q.device)
    return forward(q, k, v, call_of(options, mask.vectors, causal=mask.causal, seed_offset=seed))[0]


def _attend_everywhere(q: Tensor, k: Tensor, v: Tensor, mask: Indices | Mask | Tensor, options: CallOptions) -> Tensor:
    """Returns the same bits as _attend(), but also computes tiles without visible scores."""
    if torch.compiler.is_compiling():
        raise ValueError('visit="all" makes a plan from the mask, which torch.compile cannot; run the model without it')
    if isinstance(mask, Indices):
        mask = shared(_to_mask, (mask.vectors,), causal=mask.causal, rows=q.shape[1])
    elif isinstance(mask, Tensor):
        mask = shared(dense_mask, (mask,))
    plan = flashmask.plan(
        *(mask, q, k, v),
        scale=options.scale or None,
        visit="all",
        deterministic=options.deterministic,
        invariant=options.invariant,
        score=options.score,
    )
    return attention_of_tensors(q, k, v, None, plan, options._replace(cudnn=OURS))[0]


def _to_mask(vectors: Tensor, *, causal: bool, rows: int) -> Mask:
    return RowIndices(vectors, causal, rows).to_mask()


def _single_token(
    query: Tensor, key: Tensor, value: Tensor, mask: Indices, *, dropout: float, scaling: float | None
) -> Tensor:
    """Returns [B, 1, Hq, Dv] for one query, which reads each visible key once: there is no tile to skip."""
    warn_once(
        "flashmask leaves queries of a single token (generation) to torch's scaled_dot_product_attention: one row of "
        "scores has nothing to skip. Prefill and training run on flashmask."
    )
    out = torch.nn.functional.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=pairs(mask, 1, query.device),  # [B or 1, 1, 1, Sk]
        dropout_p=dropout,
        scale=scaling,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return out.transpose(1, 2)
