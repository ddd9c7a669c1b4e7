# SPDX-License-Identifier: Apache-2.0
"""flashmask.jax.attention(): exact attention under any mask, for arrays of JAX."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from flashmask._abi.problem import Problem, check_dropout, check_scale
from flashmask._arguments import boolean, choice, described, sink_dtypes
from flashmask._mask import Mask
from flashmask._options import LAYOUTS, ScoreArguments, options_of
from flashmask._plans.plan import dtype_name
from flashmask.jax._functions import change_of
from flashmask.jax._masks import mask_operand
from flashmask.jax._operands import array, check_platform, problem_of, score_operands
from flashmask.jax._operators import attend
from flashmask.jax._plan import Plan, check_plan
from flashmask.jax._rows import RowIndices
from flashmask.jax._site import Options
from flashmask.jax._versions import vary_alike

if TYPE_CHECKING:
    from typing_extensions import Unpack


def attention(
    q: Any,
    k: Any,
    v: Any,
    mask: Mask | RowIndices | Any = None,
    *,
    scale: float | None = None,
    layout: Literal["bshd", "bhsd"] = "bshd",
    return_lse: bool = False,
    deterministic: bool = False,
    invariant: bool = False,
    plan: Plan | None = None,
    sinks: Any = None,
    dropout: float = 0.0,
    key: Any = None,
    **change: Unpack[ScoreArguments],
) -> Any:
    """Computes softmax(scale · q kᵀ under the mask) v; differentiable once in q, k, v and sinks, through o and lse.

    Runs inside and outside of jit, grad, vmap, checkpoint, scan, shard_map and export. Under jit over sharded arrays
    batch and kv heads stay split; sequences are gathered.

    Args:
        q: (batch, query length, query heads, head dim): float32, bfloat16, float16, or float64, which the dense
            reference computes, on a CPU; bfloat16 or float16 on a GPU.
        k: (batch, key length, kv heads, head dim), where query heads is a multiple of kv heads.
        v: (batch, key length, kv heads, value dim).
        mask: None: every query sees every key. A Mask of flashmask.masks, which becomes a constant; RowIndices of
            flashmask.jax, whose values may be traced; or booleans, True = visible, [rows, columns], optionally with
            heads, or batch and heads, in front, which are read anew in every call. A row that sees nothing gets o = 0,
            lse = -inf (with a sink, the lse of the sink alone) and no gradient. What a row does not see must be finite
            all the same: 0 times NaN is NaN where they share a tile.
        scale: factor on the scores; None: 1 / sqrt(head dim).
        layout: "bshd" as above, or "bhsd": q, k, v and o are (batch, heads, sequence, head dim).
        return_lse: return (o, lse) rather than o.
        deterministic: make gradients bitwise the same in every run; on a CPU they always are.
        invariant: give every document the bits that it has alone: o, lse and the gradients of q, k and v, whatever it
            is packed with. Not with gradients of sinks or of a bias; on a GPU not with dropout, ALiBi or a bias, and
            traced row indices need `most_documents` there.
        plan: from flashmask.jax.plan(), instead of a mask; it must have been made for these shapes.
        sinks: logits that take probability from the keys and have no value: exp(sink) is added to the sum that every
            row is divided by. [query heads], or [batch, query heads, query length] with or without a last dimension of
            1, float32 or the dtype of q. Differentiable.
        dropout: probability with which each attention probability is dropped, rounded to 1/65536; what is kept is
            scaled up.
        key: a key of jax.random, which decides what is dropped; needed with dropout.
        change: score=, a flashmask.scores.ScoreChange whose operands are arrays, or in its place softcap, alibi_slopes
            with query_positions and key_positions, bias, or distance_bias with distance_origin, as
            flashmask.attention() takes them. A bias or a table by distance is differentiable, slopes and positions are
            not. Or score= is a function f(score, b, h, q_idx, kv_idx) of jax.numpy, which is traced once, of one score
            and its place; arrays that it captures have no gradient.

    Returns:
        o (batch, query length, query heads, value dim), or as layout "bhsd" orders it, in the dtype of q. With
        `return_lse` also lse (batch, query heads, query length): the natural logarithm of the sum of exponentials of
        the scaled scores that a row sees, and of its sink; float32, or float64 where q is.

    Raises:
        ValueError, TypeError: an argument is not as described, or the arguments do not fit each other; while tracing.
        NotImplementedError: a transform or platform that is not served.
    """
    if callable(function := change.get("score")):
        change["score"] = change_of(function, str(getattr(q, "dtype", "")))
    score = options_of(attention, change, ScoreArguments).score
    check_platform()
    heads_first = choice("layout", layout, LAYOUTS) == 1
    arrays = [array(name, given) for name, given in (("q", q), ("k", k), ("v", v))]
    problem = problem_of(arrays, heads_first, check_dropout("dropout", dropout), score)
    if plan is None:
        operand, memory = mask_operand(mask, problem), None
    elif mask is not None:
        raise ValueError("mask and plan are both given; pass one of them")
    else:
        check_plan(plan).check_fits(problem, deterministic, invariant)
        operand, memory = plan.mask, plan.memory
    options = Options(
        causal=operand.causal,
        scale=check_scale("scale", scale),
        dropout=problem.dropout,
        deterministic=boolean("deterministic", deterministic),
        invariant=boolean("invariant", invariant),
        heads_first=heads_first and problem.dtype != "float64",
        mask_name=operand.name,
        change=score.text,
        distance_origin=score.origin,
        most_documents=operand.most_documents if invariant else 0,
    )
    words = _words(key) if problem.dropout else None
    sinks = None if sinks is None else _sinks(sinks, problem)
    given = [*arrays, operand.array, words, sinks, *score_operands(score, problem), memory]
    swap = heads_first and not options.heads_first  # the reference reads tensors in one order
    if swap:
        given[:3] = [tensor.swapaxes(1, 2) for tensor in arrays]
    o, lse = attend(options, *vary_alike(given))
    o = o.swapaxes(1, 2) if swap else o
    return (o, lse) if boolean("return_lse", return_lse) else o


def _sinks(given: Any, problem: Problem) -> Any:
    """Returns sinks as [query heads] or [batch, query heads, rows]."""
    sinks = array("sinks", given)
    if sinks.ndim == 4 and sinks.shape[3] == 1:
        sinks = sinks[..., 0]
    heads, of_rows = problem.query_heads, (problem.batch, problem.query_heads, problem.query_length)
    if sinks.shape not in ((heads,), of_rows):
        raise ValueError(f"sinks has shape {list(sinks.shape)}; expected [{heads}], the heads of q, or {list(of_rows)}")
    dtype = dtype_name("sinks", sinks)
    if dtype not in ("float32", problem.dtype):
        raise TypeError(f"sinks has dtype {dtype}; expected {sink_dtypes('float32', problem.dtype)}, that of q")
    return sinks.astype(jnp.float64) if problem.dtype == "float64" else sinks


def _words(key: Any) -> Any:
    """Returns the seed and the offset of dropout, low word first, as uint32 [4]."""
    if key is None:
        raise ValueError("dropout is given and key is None; pass key=jax.random.key(...), another one for each call")
    if not isinstance(key, (jax.Array, np.ndarray)):
        raise TypeError(f"key is {described(key)}; expected a key of jax.random")
    typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    words = jax.random.key_data(key) if typed else jnp.asarray(key)
    if words.dtype != jnp.uint32 or words.ndim != 1 or words.size not in (2, 4):
        raise ValueError(f"key is {described(key)}; expected one key of jax.random, of two or four 32-bit words")
    # The fourth word of an rbg key repeats the second.
    return jnp.concatenate([words[:3], jnp.zeros(4 - min(words.size, 3), jnp.uint32)])
