# SPDX-License-Identifier: Apache-2.0
"""attention(): exact attention under any mask, for torch tensors and for NumPy and other arrays on the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, overload

from flashmask._abi.problem import check_scale, check_softcap
from flashmask._arguments import Kind, boolean, check_one_bias, check_positions, choice, described, integer, is_tensor
from flashmask._backends import BY_NAME, OURS, Backend, cudnn_of
from flashmask._mask import Mask
from flashmask._plans.call import DISTANCES, NO_BIAS, TENSOR, Call
from flashmask._plans.plan import LAYOUTS, Layout, Plan
from flashmask._rows import RowIndices

if TYPE_CHECKING:
    from typing import TypedDict

    from typing_extensions import Unpack

    class _Options(TypedDict, total=False):
        scale: float | None
        layout: Layout
        deterministic: bool
        invariant: bool
        plan: Plan | None
        sinks: Any
        softcap: float | None
        alibi_slopes: Any
        query_positions: Any
        key_positions: Any
        backend: Backend
        bias: Any
        distance_bias: Any
        distance_origin: int


_MASK = "pass mask=flashmask.masks.causal(query length, key length)"
_DROPOUT = "flashmask.flashmask_attention(dropout=...) and flashmask.varlen_attention(dropout_p=...) drop probabilities"
# Arguments of similar functions elsewhere, and what to pass to this one instead.
_ELSEWHERE = {
    "causal": _MASK,
    "is_causal": _MASK,
    "attn_mask": "pass it as mask: a Mask, RowIndices, or booleans, True = visible",
    "block_mask": "pass mask=flashmask.masks.from_block_mask(block_mask), or call flashmask.flex_attention",
    "score_mod": "call flashmask.flex_attention, or pass what it computes: softcap, alibi_slopes, bias, distance_bias",
    "dropout": _DROPOUT,
    "dropout_p": _DROPOUT,
    "enable_gqa": "leave it out: query heads may be any multiple of those of k",
    "softmax_scale": "pass it as scale",
    "startend_row_indices": "pass mask=flashmask.RowIndices(startend_row_indices, causal)",
    "window_size": "pass mask=flashmask.masks.sliding_window(...) or flashmask.masks.window(...)",
}


@overload
def attention(
    q: Kind, k: Kind, v: Kind, mask: Any = None, *, return_lse: Literal[False] = False, **options: Unpack[_Options]
) -> Kind: ...
@overload
def attention(
    q: Kind, k: Kind, v: Kind, mask: Any = None, *, return_lse: Literal[True], **options: Unpack[_Options]
) -> tuple[Kind, Kind]: ...
@overload
def attention(
    q: Any, k: Any, v: Any, mask: Any = None, *, return_lse: bool = False, **options: Unpack[_Options]
) -> Any: ...
def attention(
    q: Any,
    k: Any,
    v: Any,
    mask: Mask | RowIndices | Any = None,
    *,
    scale: float | None = None,
    layout: Layout = "bshd",
    return_lse: bool = False,
    deterministic: bool = False,
    invariant: bool = False,
    plan: Plan | None = None,
    sinks: Any = None,
    softcap: float | None = None,
    alibi_slopes: Any = None,
    query_positions: Any = None,
    key_positions: Any = None,
    backend: Backend = None,
    bias: Any = None,
    distance_bias: Any = None,
    distance_origin: int = 0,
    **unknown: Any,
) -> Any:
    """Computes softmax(scale · q kᵀ under the mask) v; differentiable once in q, k, v and sinks, through o and lse.

    Args:
        q: (batch, query length, query heads, head dim). A torch tensor: float32, bfloat16, float16 or float64 (which
            the dense reference computes) on the CPU, bfloat16 or float16 on a GPU. Or, on the CPU, a NumPy array or
            another array that supports DLPack.
        k: (batch, key length, kv heads, head dim), where query heads is a multiple of kv heads.
        v: (batch, key length, kv heads, value dim). Head dims are at most 512; beyond 256 a GPU needs the shared memory
            of an A100, H100 or B200.
        mask: None: every query sees every key. A Mask of flashmask.masks; RowIndices; or booleans, True = visible,
            [rows, columns], optionally with heads, or batch and heads, in front. Booleans are read anew in every call,
            and the host waits for those on a GPU; masks.from_dense reads them once into a Mask. A row that sees nothing
            gets o = 0, lse = -inf (with a sink, the lse of the sink alone) and no gradient. What a row does
        not see must be finite all the same: 0 times NaN is NaN where they share a tile.
        scale: factor on the scores; None: 1 / sqrt(head dim).
        layout: "bshd" as above, or "bhsd": q, k, v and o are (batch, heads, sequence, head dim).
        return_lse: return (o, lse) rather than o.
        deterministic: make gradients bitwise the same in every run, as torch.use_deterministic_algorithms asks for.
            Gradients on the CPU always are, and so are o and lse on every device.
        invariant: give every document the bits that it has alone: o, lse and the gradients of q, k and v, whatever it
            is packed with and wherever it lies, for masks whose documents do not see each other. Not with a gradient of
            `sinks`, nor with `alibi_slopes` on a GPU, where row indices without `most_documents` are waited for once. A
            pack of short documents takes longer.
        plan: from flashmask.plan(), instead of a mask; it must have been made for these shapes.
        sinks: logits that take probability from the keys and have no value, as gpt-oss learns them: exp(sink) is added
            to the sum that every row is divided by. [query heads], or [batch, query heads, query length] with or
            without a last dimension of 1, float32 or the dtype of q. Differentiable.
        softcap: scores s become softcap · tanh(s / softcap), before any is masked, as Gemma 2 caps them: a number above
            0, or None (or 0, as FlashAttention says it) for no cap. Sinks are not capped.
        alibi_slopes: float32 [query heads] or [batch, query heads]: scores lose slope · |position of the query -
            position of the key| (ALiBi), behind the softcap and before any is masked. It has no gradient.
        query_positions: beside alibi_slopes, [1 or batch, query length], whole numbers between -2^24 and 2^24. Larger
            ones, which float32 would round, are refused on the CPU; on a GPU, where looking would mean waiting, they
            give wrong results. None: query i has position i + key length - query length and key j has j. Packed
            documents whose queries and keys are the same tokens need none, since only distances count; shared
            questions, trees and parts of a sequence do.
        key_positions: [1 or batch, key length], given together with query_positions.
        backend: whose kernels compute on a GPU: "flashmask", or "cudnn", NVIDIA's cudnn.flex_attention, which refuses
            what it has not. None: FLASHMASK_BACKEND decides, else ours, but on compute capability 10 cudnn's where they
            are installed and serve the call. A plan is of our kernels.
        bias: (1 or batch, 1 or query heads, 1 or query length, key length), float32, bfloat16 or float16, of any
            strides: what is added to the scores, behind the softcap and before any is masked; -inf hides a score. Its
            values where the mask hides scores are not used. Differentiable: a dimension of 1 gets the sum over all that
            it stands for. Tiles whose scores -inf hides are computed all the same; masks.from_bias(bias) skips them.
        distance_bias: (1 or batch, 1 or query heads, 1 or query length, entries), dtypes as for bias: the score of
            query i and key j gets entry (i + key length - query length) - j + distance_origin, and stays as it is where
            there is no such entry. Differentiable. At most one of alibi_slopes, bias and distance_bias is given.
        distance_origin: the entry of distance_bias for distance 0: 0 where keys lie at or before their query, key
            length - 1 where a table of query length + key length - 1 entries holds all distances.

    Returns:
        o (batch, query length, query heads, value dim), or as layout "bhsd" orders it, in the dtype of q. With
        `return_lse` also lse (batch, query heads, query length): the natural logarithm of the sum of exponentials of
        the scaled scores that a row sees, and of its sink; float32, or float64 where q is.

    Raises:
        ValueError, TypeError: an argument is not as described, or the arguments do not fit each other.
        NotImplementedError: no kernel serves the request.
    """
    if unknown:
        _refuse_keywords(unknown)
    heads_first = layout != "bshd" and choice("layout", layout, LAYOUTS) == 1
    of_bias = _bias(alibi_slopes, bias, distance_bias, distance_origin)
    if plan is not None:
        scale, softcap = _numbers_of(plan, mask, scale, softcap, alibi_slopes is not None, of_bias[0])
    if deterministic is not False:
        boolean("deterministic", deterministic)
    if invariant is not False:
        boolean("invariant", invariant)
    factor = 0.0 if scale is None else check_scale("scale", scale)
    cap = 0.0 if softcap is None else check_softcap("softcap", softcap)
    alibi = alibi_slopes, query_positions, key_positions
    cudnn = _cudnn_of(backend, plan)
    check_positions(*alibi)
    if is_tensor(q):
        from flashmask._torch.attention import attention_of_tensors

        o, lse = attention_of_tensors(
            *(q, k, v, mask, plan, factor, heads_first, deterministic, sinks, cap, alibi, invariant, cudnn, of_bias)
        )
        return (o, lse) if return_lse else o
    if cudnn == BY_NAME:
        raise TypeError(f'backend="cudnn" computes torch tensors on a GPU; q is {described(q)}')
    from flashmask._arrays import attention_of_arrays

    outputs = attention_of_arrays(q, k, v, mask, plan, factor, heads_first, sinks, cap, alibi, invariant, of_bias)
    return outputs if return_lse else outputs[0]


def _cudnn_of(backend: Backend, plan: object) -> int:
    """Returns what a call says about cudnn; refuses it beside a plan, which is of our kernels."""
    if plan is None:
        return cudnn_of(backend)
    if cudnn_of(backend) == BY_NAME:
        raise ValueError('backend="cudnn" came beside a plan, which is of our kernels; pass the mask instead')
    return OURS


def _refuse_keywords(unknown: dict[str, Any]) -> None:
    name, value = next(iter(unknown.items()))
    hint = _ELSEWHERE.get(
        name,
        "its arguments are q, k, v, mask, scale, layout, return_lse, deterministic, invariant, plan, sinks, "
        "softcap, alibi_slopes, query_positions, key_positions, bias, distance_bias, distance_origin, backend",
    )
    raise TypeError(f"attention() does not take {name}, which is {described(value)}; {hint}")


def _bias(alibi_slopes: Any, bias: Any, distance_bias: Any, origin: int) -> tuple[int, Any, int]:
    """Returns the kind of a bias, the tensor, and the entry of distance 0; refuses two of them."""
    check_one_bias(alibi_slopes=alibi_slopes, bias=bias, distance_bias=distance_bias)
    if origin != 0 and distance_bias is None:
        raise ValueError(f"distance_origin is {origin} without distance_bias, which it belongs to; leave it out")
    if bias is not None:
        return TENSOR, bias, 0
    return (
        (NO_BIAS, None, 0) if distance_bias is None else (DISTANCES, distance_bias, integer("distance_origin", origin))
    )


def _numbers_of(
    plan: object, mask: object, scale: float | None, softcap: float | None, alibi: bool, bias_kind: int
) -> tuple[float | None, float | None]:
    """Returns the scale and softcap that a plan was made for; refuses others."""
    if not isinstance(plan, Plan):
        raise TypeError(f"plan is {described(plan)}; expected what flashmask.plan() returns")
    if mask is not None and mask is not plan.mask:
        raise ValueError("mask and plan are both given, and the plan was made for another mask; pass one of them")
    if scale is not None and scale != plan.problem.scale:
        raise ValueError(f"scale is {scale}; the plan was made for {plan.problem.scale}: leave it out")
    if softcap is not None and softcap != plan.problem.softcap:
        raise ValueError(f"softcap is {softcap}; the plan was made for {plan.problem.softcap or None}: leave it out")
    if alibi != plan.problem.alibi:
        given, made = ("given", "without") if alibi else ("not given", "with")
        raise ValueError(f"alibi_slopes is {given}, and the plan was made {made} alibi=True")
    if bias_kind != (made_for := Call.of(plan.problem).bias_kind):
        names = "no bias", "bias=True", "distance_bias=True"
        raise ValueError(
            f"the call's bias fits a plan with {names[bias_kind]}; the plan was made with {names[made_for]}"
        )
    return plan.problem.scale, plan.problem.softcap
