# SPDX-License-Identifier: Apache-2.0
"""varlen_attention(): sequences of different lengths, one after another without padding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, overload

from flashmask._arguments import boolean, check_dense, described, is_tensor
from flashmask._attention import chosen
from flashmask._options import SharedArguments, options_of
from flashmask._row_index_attention import window_sides
from flashmask.scores import ScoreChange, check_shape, from_function

if TYPE_CHECKING:
    from torch import Tensor
    from typing_extensions import Unpack

    class _ByName(SharedArguments, total=False):
        max_seqlen_q: int | None
        max_seqlen_k: int | None
        dropout_p: float
        softmax_scale: float | None
        causal: bool
        window_size: tuple[int, int]
        deterministic: bool


FLASH_NAMES = {"scale": "softmax_scale", "dropout": "dropout_p"}
"""FlashAttention's names of options."""


@overload
def varlen_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    *,
    return_attn_probs: Literal[False] = False,
    return_lse: Literal[True],
    return_max_scores: Literal[False] = False,
    **options: Unpack[_ByName],
) -> tuple[Tensor, Tensor]: ...
@overload
def varlen_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    *,
    return_attn_probs: Literal[True],
    return_lse: bool = False,
    return_max_scores: Literal[False] = False,
    **options: Unpack[_ByName],
) -> tuple[Tensor, Tensor, None]: ...
@overload
def varlen_attention(
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
    deterministic: bool = False,
    return_attn_probs: Literal[False] = False,
    *,
    return_lse: Literal[False] = False,
    return_max_scores: Literal[False] = False,
    **options: Unpack[SharedArguments],
) -> Tensor: ...
@overload
def varlen_attention(
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
    deterministic: bool = False,
    return_attn_probs: bool = False,
    *,
    return_lse: bool = False,
    return_max_scores: bool = False,
    **options: Unpack[SharedArguments],
) -> Any: ...
def varlen_attention(
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
    deterministic: bool = False,
    return_attn_probs: bool = False,
    *,
    return_lse: bool = False,
    return_max_scores: bool = False,
    **options: Any,
) -> Any:
    """Computes attention within each sequence, with flash_attn_varlen_func's arguments and attention()'s kernels.

    Sequence i has the queries [cu_seqlens_q[i], cu_seqlens_q[i + 1]) and the keys [cu_seqlens_k[i], cu_seqlens_k[i +
    1]). Row indices are made from them by tensor operations, on their device. Tensors must be finite, even past the
    last sequence: a NaN reaches other sequences that share a tile with it.

    Args:
        q: (total queries, query heads, head dim), a torch tensor as attention() takes it.
        k: (total keys, kv heads, head dim).
        v: (total keys, kv heads, value dim).
        cu_seqlens_q: int32 or int64 [sequences + 1], ascending from 0. Queries past the last sequence see nothing.
            Values on the CPU are checked; values on a GPU are not, and wrong ones give wrong results.
        cu_seqlens_k: int32 or int64 [sequences + 1], ascending from 0. Keys past the last sequence are never seen.
        max_seqlen_q, max_seqlen_k: accepted and ignored.
        dropout_p: probability with which an attention probability is dropped, in [0, 1), seeded from torch's generator.
        softmax_scale: factor on the scores; None: 1 / sqrt(head dim).
        causal: each sequence is causal, its last query aligned with its last key.
        window_size: how many keys before and after its aligned key a query sees; -1: no limit.
        deterministic: make gradients bitwise the same in every run, as for attention().
        return_attn_probs: also return lse, and None in place of the probabilities, which are never computed.
        return_lse: also return lse, (query heads, total queries) float32.
        return_max_scores: also return, last, the largest score of each row, as for flashmask.attention(): (query heads,
            total queries) float32.
        sinks: logits that take probability and have no value, [query heads] or [query heads, total queries], as
            flashmask.attention() takes them.
        score: a change of scores, or its parts by keyword, as for flashmask.attention(). ALiBi counts the distance of a
            sequence's last query and its last key as 0. A bias has no batch: (1 or query heads, 1 or total queries,
            total keys), of which values between sequences are not used; so has a table by distance, which needs queries
            and keys with the same lengths: one tensor for both cu_seqlens. A function counts queries and keys through
            all sequences, and its b is 0.
        invariant: give every sequence the bits that it has alone, as flashmask.attention() does. With dropout,
            sequences begin at multiples of 8.
        backend: "flashmask" or "cudnn", as for flashmask.attention(); None: automatic.

    Returns:
        o (total queries, query heads, value dim), or (o, lse), or (o, lse, None) with `return_attn_probs`; with
        `return_max_scores` these behind them.

    Raises:
        ValueError, TypeError: an argument is not as described, or the arguments do not fit each other.
    """
    _check_tensors(q, k, v, cu_seqlens_q, cu_seqlens_k)
    boolean("causal", causal)
    is_function = callable(options.get("score"))
    if is_function:
        options["score"] = from_function(options["score"], q, k)
    bound = {"deterministic": deterministic, "scale": softmax_scale, "dropout": dropout_p}
    given = options_of(varlen_attention, options, SharedArguments, FLASH_NAMES, **bound)

    from flashmask._torch.attention import call_of, drawn_seed
    from flashmask._torch.operators import forward, forward_with_max_scores
    from flashmask._torch.shared import shared

    sides = window_sides(window_size)
    rows = shared(_row_indices, (cu_seqlens_q, cu_seqlens_k), keys=k.shape[0], causal=causal, window_size=sides)
    # A sequence, and before it rows and keys that see and are seen by nothing.
    documents = 2 * cu_seqlens_q.shape[0] if given.invariant else 0
    score = given.score if is_function else _score(given.score, q, k, cu_seqlens_q, cu_seqlens_k)
    call = call_of(given, rows, score, seed_offset=drawn_seed(given, q.device), most_documents=documents)
    if call.sinks is not None and call.sinks.ndim == 2:
        call = call._replace(sinks=call.sinks[None])
    run: Callable[..., tuple[Tensor, ...]] = forward_with_max_scores if return_max_scores else forward
    o, lse, *max_scores = [each[0] for each in run(q[None], k[None], v[None], call)]
    if return_attn_probs:
        return o, lse, None, *max_scores
    return chosen((o, lse, *max_scores), return_lse)


def _row_indices(
    cu_q: Tensor, cu_k: Tensor, *, keys: int, causal: bool, window_size: tuple[int | None, int | None]
) -> Tensor:
    """Returns int32 [1, 1, keys, 2]: which rows of a key's own sequence its window and causality leave visible."""
    import torch

    from flashmask._torch.packing import document_of

    left, right = window_size
    right = 0 if causal else right
    key = torch.arange(keys, device=cu_k.device)
    sequence = document_of(cu_k, keys)  # the number of sequences for keys past the last
    first_row, end_row = _bounds(cu_q, sequence)
    _, end_key = _bounds(cu_k, sequence)
    aligned = end_row - (end_key - key)  # the row that is aligned with each key
    begin = first_row if right is None else torch.maximum(first_row, aligned - right)
    end = end_row if left is None else torch.minimum(end_row, aligned + left + 1)
    # Rows from `end` on and rows before `begin` are masked; where end <= begin that is every row.
    return torch.stack([end, begin], dim=-1).to(torch.int32)[None, None]


def _positions(cu_q: Tensor, cu_k: Tensor, *, queries: int, keys: int) -> tuple[Tensor, Tensor]:
    """Returns float32 [1, queries] and [1, keys]: each token's distance to the end of its sequence, below 0."""
    import torch

    from flashmask._torch.packing import document_of

    found = []
    for cu, tokens in ((cu_q, queries), (cu_k, keys)):
        _, end = _bounds(cu, document_of(cu, tokens))
        found.append((torch.arange(tokens, device=cu.device) - end).float()[None])
    return found[0], found[1]


def _bounds(cu_seqlens: Tensor, sequence: Tensor) -> tuple[Tensor, Tensor]:
    """Returns begin and end of the sequences, int64 [keys]; a sequence past the last is empty."""
    import torch

    bounds = torch.cat([cu_seqlens, cu_seqlens[-1:]]).long()  # a window near 2^31 is added to them
    return bounds[sequence], bounds[sequence + 1]


def _check_tensors(q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any) -> None:
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        _check_torch(name, tensor)
        check_dense(name, tensor)
        if tensor.ndim != 3:
            raise ValueError(f"{name} has shape {list(tensor.shape)}; expected (total, heads, head dim)")
    for name, tensor in (("cu_seqlens_q", cu_seqlens_q), ("cu_seqlens_k", cu_seqlens_k)):
        _check_torch(name, tensor)
        if str(tensor.dtype) not in ("torch.int32", "torch.int64"):
            raise TypeError(f"{name} holds {tensor.dtype} values; expected int32 or int64")
        if tensor.ndim != 1 or tensor.shape[0] < 1:
            raise ValueError(f"{name} has shape {list(tensor.shape)}; expected [sequences + 1]")
    if cu_seqlens_q.shape != cu_seqlens_k.shape:
        raise ValueError(
            f"cu_seqlens_q has {cu_seqlens_q.shape[0]} values and cu_seqlens_k {cu_seqlens_k.shape[0]}; expected as "
            "many, sequences + 1"
        )
    from flashmask._torch.packing import check_ends

    check_ends("cu_seqlens_q", cu_seqlens_q, q.shape[0])
    check_ends("cu_seqlens_k", cu_seqlens_k, k.shape[0])


def _score(score: ScoreChange, q: Tensor, k: Tensor, cu_q: Tensor, cu_k: Tensor) -> ScoreChange:
    """Returns a change of scores for one batch entry that holds all sequences."""
    from flashmask._torch.shared import shared

    if score.kind == "alibi":
        if score.operands[1] is None and cu_q is not cu_k:
            positions = shared(_positions, (cu_q, cu_k), queries=q.shape[0], keys=k.shape[0])
            return ScoreChange(score.text, (score.operands[0], *positions))
    elif score.kind:
        (values,) = score.operands
        _check_torch(score.kind, values)
        if score.kind == "distance_bias" and cu_q is not cu_k:
            raise NotImplementedError(
                "scores change by distance, and cu_seqlens_q and cu_seqlens_k are two tensors: distances are counted "
                "in the whole call, as if each had as many queries as keys; where they do, pass one tensor for both"
            )
        check_shape(score.kind, values.shape, (None, q.shape[1], q.shape[0], k.shape[0]))
        return replace(score, operands=(values[None],))
    return score


def _check_torch(name: str, tensor: object) -> None:
    if not is_tensor(tensor):
        raise TypeError(f"{name} is {described(tensor)}; expected a torch tensor")
