# SPDX-License-Identifier: Apache-2.0
"""flash_attn_func() and flash_attn_varlen_func(): FlashAttention's functions under the names that programs call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flashmask._arguments import boolean
from flashmask._options import ScoreArguments, options_of
from flashmask._row_index_attention import check_tensors, window_rows
from flashmask._varlen import FLASH_NAMES, varlen_attention

if TYPE_CHECKING:
    from torch import Tensor


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    *,
    s_aux: Tensor | None = None,
    invariant: bool = False,
) -> Any:
    """FlashAttention's function of this name: full, causal or window attention of every batch entry.

    q is (batch, query length, query heads, head dim), k and v are (batch, key length, kv heads, ...).
    varlen_attention() describes the other arguments; s_aux is its `sinks`. The last query is aligned with the last key.

    With alibi_slopes, float32 [heads] or [batch, heads], scores lose slope · |distance|, causal or not. Where
    FlashAttention's causal function adds slope · column instead, which differs by a number per row, o is the same and
    lse is not.

    Returns o (batch, query length, query heads, value dim), or with `return_attn_probs` (o, lse, None), lse (batch,
    query heads, query length).
    """
    boolean("causal", causal)
    given = options_of(
        *(flash_attn_func, {}, ScoreArguments, FLASH_NAMES),
        scale=softmax_scale,
        dropout=dropout_p,
        softcap=softcap,
        alibi_slopes=alibi_slopes,
        deterministic=deterministic,
        sinks=s_aux,
        invariant=invariant,
    )
    check_tensors(q, k, v, ("q", "k", "v"))

    from flashmask._torch.attention import call_of, drawn_seed
    from flashmask._torch.operators import forward

    rows = window_rows(window_size, q, k, causal)
    o, lse = forward(q, k, v, call_of(given, rows, causal=causal, seed_offset=drawn_seed(given, q.device)))
    return (o, lse, None) if return_attn_probs else o


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
    *,
    s_aux: Tensor | None = None,
    invariant: bool = False,
) -> Any:
    """FlashAttention's function of this name: varlen_attention(), with its arguments in FlashAttention's order.

    s_aux is varlen_attention()'s `sinks`. Raises ValueError for block_table: not supported.
    """
    if block_table is not None:
        raise ValueError(
            "block_table is given: pages of keys are not supported, and leaving it out would change the result"
        )
    return varlen_attention(
        q,
        k,
        v,
        cu_seqlens_q,
        cu_seqlens_k,
        dropout_p=dropout_p,
        softmax_scale=softmax_scale,
        causal=causal,
        window_size=window_size,
        deterministic=deterministic,
        return_attn_probs=return_attn_probs,
        sinks=s_aux,
        softcap=softcap,
        alibi_slopes=alibi_slopes,
        invariant=invariant,
    )
