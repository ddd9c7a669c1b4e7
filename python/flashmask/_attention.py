# SPDX-License-Identifier: Apache-2.0
"""attention(): exact attention under any mask, for torch tensors and for NumPy and other arrays on the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, overload

from flashmask._arguments import Kind, described, is_tensor
from flashmask._backends import BY_NAME
from flashmask._mask import Mask
from flashmask._options import DEFAULTS, OF_A_PLAN, AttentionArguments, options_of, options_with_plan
from flashmask._plans.plan import Plan
from flashmask._rows import RowIndices

if TYPE_CHECKING:
    from typing_extensions import Unpack

    class _Arguments(AttentionArguments, total=False):
        plan: Plan | None


@overload
def attention(
    q: Kind,
    k: Kind,
    v: Kind,
    mask: Any = None,
    *,
    return_lse: Literal[False] = False,
    return_max_scores: Literal[False] = False,
    **options: Unpack[_Arguments],
) -> Kind: ...
@overload
def attention(
    q: Kind,
    k: Kind,
    v: Kind,
    mask: Any = None,
    *,
    return_lse: Literal[True],
    return_max_scores: Literal[False] = False,
    **options: Unpack[_Arguments],
) -> tuple[Kind, Kind]: ...
@overload
def attention(
    q: Kind,
    k: Kind,
    v: Kind,
    mask: Any = None,
    *,
    return_lse: Literal[False] = False,
    return_max_scores: Literal[True],
    **options: Unpack[_Arguments],
) -> tuple[Kind, Kind]: ...
@overload
def attention(
    q: Kind,
    k: Kind,
    v: Kind,
    mask: Any = None,
    *,
    return_lse: Literal[True],
    return_max_scores: Literal[True],
    **options: Unpack[_Arguments],
) -> tuple[Kind, Kind, Kind]: ...
@overload
def attention(
    q: Any,
    k: Any,
    v: Any,
    mask: Any = None,
    *,
    return_lse: bool = False,
    return_max_scores: bool = False,
    **options: Unpack[_Arguments],
) -> Any: ...
def attention(
    q: Any,
    k: Any,
    v: Any,
    mask: Mask | RowIndices | Any = None,
    *,
    return_lse: bool = False,
    return_max_scores: bool = False,
    plan: Plan | None = None,
    **options: Unpack[AttentionArguments],
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
        return_max_scores: also return, last, the largest score of each row.
        deterministic: make gradients bitwise the same in every run, as torch.use_deterministic_algorithms asks for.
            Gradients on the CPU always are, and so are o and lse on every device.
        dropout: probability with which an attention probability is dropped, in [0, 1), seeded from torch's generator;
            what is kept is scaled up. flashmask_attention() repeats the dropout of an earlier call. Not for arrays.
        invariant: give every document the bits that it has alone: o, lse and the gradients of q, k and v, whatever it
            is packed with and wherever it lies, for masks whose documents do not see each other. Not with a gradient of
            `sinks`, nor with ALiBi on a GPU, where row indices without `most_documents` are waited for once. A
            pack of short documents takes longer.
        plan: from flashmask.plan(), instead of a mask; it must have been made for these shapes.
        sinks: logits that take probability from the keys and have no value, as gpt-oss learns them: exp(sink) is added
            to the sum that every row is divided by. [query heads], or [batch, query heads, query length] with or
            without a last dimension of 1, float32 or the dtype of q. Differentiable.
        score: a change of scores of flashmask.scores, before any score is masked: a cap, a bias or both, such as
            scores.softcap(50.0) | scores.alibi(slopes). Or, for torch tensors, a function f(score, b, h, q_idx, kv_idx)
            of FlexAttention's form, which is run once on symbols in place of numbers: docs/scores.md. GPUs serve those
            that are factors, a cap and biases.
        softcap, alibi_slopes, query_positions, key_positions, bias, distance_bias, distance_origin: the parts of such a
            change by keyword, in place of `score`: softcap=c is scores.softcap(c), alibi_slopes=s with the positions is
            scores.alibi(s, ...), bias=b is scores.bias(b), and distance_bias=t is scores.distance(t, distance_origin).
        backend: whose kernels compute on a GPU: "flashmask", or "cudnn", NVIDIA's cudnn.flex_attention, which refuses
            what it has not. None: FLASHMASK_BACKEND decides, else ours, but on compute capability 10 cudnn's where they
            are installed and serve the call. A plan is of our kernels.

    Returns:
        o (batch, query length, query heads, value dim), or as layout "bhsd" orders it, in the dtype of q. With
        `return_lse` also lse (batch, query heads, query length): the natural logarithm of the sum of exponentials of
        the scaled scores that a row sees, and of its sink; float32, or float64 where q is. With `return_max_scores`
        also max_scores, with the shape and dtype of lse: the largest of the scores that a row sees, scaled and changed,
        without its sink and before dropout; -inf where it sees nothing. It has no gradient.

    Raises:
        ValueError, TypeError: an argument is not as described, or the arguments do not fit each other.
        NotImplementedError: no kernel serves the request.
    """
    if options and callable(options.get("score")):
        from flashmask._flex.with_functions import attention_with_function

        return attention_with_function(q, k, v, mask, plan, options, return_lse, return_max_scores)
    given = DEFAULTS if plan is None else OF_A_PLAN
    if options:
        given = options_of(attention, options, AttentionArguments)
    if plan is not None:
        if not isinstance(plan, Plan):
            raise TypeError(f"plan is {described(plan)}; expected what flashmask.plan() returns")
        given = options_with_plan(given, plan, mask)
    if is_tensor(q):
        from flashmask._torch.attention import attention_of_tensors

        return chosen(attention_of_tensors(q, k, v, mask, plan, given, return_max_scores), return_lse)
    if given.cudnn == BY_NAME:
        raise TypeError(f'backend="cudnn" computes torch tensors on a GPU; q is {described(q)}')
    from flashmask._arrays import attention_of_arrays

    return chosen(attention_of_arrays(q, k, v, mask, plan, given, return_max_scores), return_lse)


def chosen(outputs: tuple[Any, ...], return_lse: bool) -> Any:
    """Returns o, lse and perhaps max_scores without lse where it is not wanted; o alone is no tuple."""
    if return_lse:
        return outputs
    return outputs[0] if len(outputs) == 2 else outputs[::2]
