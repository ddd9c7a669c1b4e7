# SPDX-License-Identifier: Apache-2.0
"""flex_attention(): the signature, semantics and results of torch.nn.attention.flex_attention over attention()."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

from flashmask._arguments import is_tensor
from flashmask._attention import attention
from flashmask._flex.checks import check_call
from flashmask._mask import Mask
from flashmask._rows import RowIndices

if TYPE_CHECKING:
    from torch import Tensor

    ScoreMod: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


@overload
def flex_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: ScoreMod | None = None,
    block_mask: Any = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: Literal[False] = False,
    kernel_options: Mapping[str, Any] | None = None,
    *,
    return_aux: None = None,
) -> Tensor: ...
@overload
def flex_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: ScoreMod | None = None,
    block_mask: Any = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: Mapping[str, Any] | None = None,
    *,
    return_aux: Any = None,
) -> Any: ...
def flex_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: ScoreMod | None = None,
    block_mask: Any = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: Mapping[str, Any] | None = None,
    *,
    return_aux: Any = None,
) -> Any:
    """Computes what torch.nn.attention.flex_attention.flex_attention does, forward and backward, on a CPU too.

    Args:
        query: (B, Hq, Q, D); dtypes and devices as for attention().
        key: (B, Hkv, KV, D); beside a block_mask, B may be 1.
        value: (B, Hkv, KV, Dv).
        score_mod: score_mod(score, b, h, q_idx, kv_idx), which is called once, on symbols in place of numbers. It may
            scale the score by factors of either token, cap it by tanh, add biases that do not depend on it, and hide it
            by -inf, whose tiles are then skipped; or be any other function of one score. Tensors that it captures get
            gradients, the same bits on every run, one of them where it is such a function; on a GPU those of factors,
            as those of q and k, only under torch.use_deterministic_algorithms(True).
        block_mask: a BlockMask, of which the lists of blocks count as in compiled kernels: what they leave out is
            hidden, full blocks are visible, in the others mask_mod decides. Or what attention() takes for a mask: a
            Mask, RowIndices or booleans. The mask of a BlockMask is kept while that lives and nothing is written in
            place to its tensors or to those that its mask_mod captures.
        scale: factor on the scores before score_mod; None: 1 / sqrt(D).
        enable_gqa: lets Hq be a multiple of Hkv; functions get the query head.
        return_lse: return (o, lse).
        kernel_options: tuning of FlexAttention's kernels; its names are accepted and change nothing.
        return_aux: an AuxRequest(lse=..., max_scores=...): return (o, AuxOutput).

    Returns:
        o (B, Hq, Q, Dv) in the dtype of query, a view of memory (B, Q, Hq, Dv); lse (B, Hq, Q), the natural logarithm
        of each row's sum, float32 or float64, differentiable; max_scores, of the same shape and dtype, the largest
        score of each row behind score_mod, which has no gradient. A row that sees nothing gets 0 and -inf. Dong et al.
        2024 (FlexAttention).

    Raises:
        NotImplementedError: nothing that attention() has computes the score_mod on this device, or it adds a bias of
            more than 1 GiB that it computes for each pair.
        ValueError, TypeError, RuntimeError: an argument is not as described, or arguments do not fit each other.
    """
    check_call(query, key, value, block_mask, enable_gqa, return_lse, kernel_options, return_aux)
    with_lse = return_lse or (return_aux is not None and return_aux.lse)
    with_max_scores = return_aux is not None and return_aux.max_scores
    batch = query.shape[0]
    if key.shape[0] != batch:
        key, value = key.expand(batch, -1, -1, -1), value.expand(batch, -1, -1, -1)
    if scale == 0:
        query, scale = query * 0.0, 1.0
    if score_mod is None and (
        isinstance(block_mask, (Mask, RowIndices)) or block_mask is None or is_tensor(block_mask)
    ):
        wanted: dict[str, Any] = {"layout": "bhsd", "return_lse": True, "return_max_scores": with_max_scores}
        o, lse, *max_scores = attention(query, key, value, block_mask, scale=scale, **wanted)
    else:
        from flashmask._flex.with_functions import with_functions

        o, lse, *max_scores = with_functions(query, key, value, score_mod, block_mask, scale, with_lse, with_max_scores)
    if return_aux is not None:
        from torch.nn.attention.flex_attention import AuxOutput

        return o, AuxOutput(lse=lse if with_lse else None, max_scores=max_scores[0] if max_scores else None)
    return (o, lse) if return_lse else o
