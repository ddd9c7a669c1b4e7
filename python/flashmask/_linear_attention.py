# SPDX-License-Identifier: Apache-2.0
"""linear_attention(): linear attention with a decay under masks that are trees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from flashmask._abi import structs as s
from flashmask._abi.header import Options, header
from flashmask._abi.merge import ABSENT, Placed, layout
from flashmask._abi.problem import DTYPES, F64, check_scale
from flashmask._arguments import AnyArray, boolean, described, is_tensor
from flashmask._arrays import _array as array_of
from flashmask._graph_break import breaks_graph
from flashmask._mask import Mask
from flashmask._plans.linear_plan import LinearPlan, LinearProblem, linear_plans
from flashmask._plans.plan import dtype_name
from flashmask._rows import RowIndices


class LinearState(NamedTuple):
    """States of a recurrence, float32: one per root node going in, one per node coming out, as flashmask.nodes orders.

    A state stands for exp(log_scale) times what it holds, and so does its normaliser. Where no log_input exceeds 0,
    log_scale is 0. Gradients of state and normalizer are those of what they hold; log_scale has none.
    """

    state: Any
    """(states, heads, key dim, value dim): the sum of weights times k vᵀ."""
    normalizer: Any
    """(states, heads, key dim): the sum of weights times k; None unless normalize is True."""
    log_scale: Any
    """(states, heads); None among what goes in: 0."""


def linear_attention(
    q: Any,
    k: Any,
    v: Any,
    log_forget: Any = None,
    log_input: Any = None,
    mask: Mask | RowIndices | Any = None,
    *,
    normalize: bool = False,
    scale: float | None = None,
    initial_state: LinearState | tuple[Any, Any, Any] | None = None,
    output_final_state: bool = False,
) -> Any:
    """Computes linear attention with a decay, whose state begins, ends and forks where the mask says.

    o[i] = sum over j that i sees of W[i, j] scale (q[i] · k[j]) v[j]. W[i, j] is the exponential of log_input[j] plus
    the log_forget of the tokens behind j up to i that i sees. Time and memory grow with the tokens, not with their
    square. Without gates this is plain linear attention; one log_forget per head is RetNet's and Lightning Attention's;
    log_forget = -delta A, with v times delta and scale 1, is Mamba-2's (Dao and Gu 2024); both gates and normalize are
    mLSTM's (Beck et al. 2024). Differentiable once in all tensors; gradients are the same bits in every run.

    Args:
        q, k: (batch, length, key heads, key dim), torch tensors or NumPy arrays (forward only); float32, bfloat16 or
            float16, with dims of at most 512. On a CPU also float64 tensors, which a slow reference computes. On a GPU:
            bfloat16 or float16, with dims that are multiples of 8, of keys up to 256 and of values up to 512.
        v: (batch, length, heads, value dim), where heads is a multiple of key heads. Or, as in grouped-query attention,
            q alone has more heads, a multiple of those of k and v, which are then repeated: heads are those of q.
        log_forget: the natural logarithm of the forget gates, at most 0; (batch, length, heads), or (heads) for a decay
            that is the same everywhere; float32 or the dtype of q. None: 0. Below -2 ** 20 it counts as that, which
            forgets everything.
        log_input: the logarithm of the input gates, (batch, length, heads). None: 0.
        mask: a flashmask.Mask or RowIndices under which a token sees itself and all that its predecessor sees: causal,
            packed documents, shared prompts, trees, each with padding, which gets 0. None: causal.
        normalize: divide by max(|sum of W[i, j] scale (q[i] · k[j])|, 1), as mLSTM does.
        scale: factor on q · k; None: 1 / sqrt(key dim).
        initial_state: states for the nodes without a parent, in their order, as this function returns them:
            (state, normalizer or None, log_scale or None).
        output_final_state: return (o, LinearState of every node) rather than o.

    Returns:
        o (batch, length, heads, value dim) in the dtype of q; autocast casts q, k and v, as for attention(). A document
        has the bits that it has alone, and NaN stays in its document.

    Raises:
        ValueError: the mask is no tree; the error names the first column that does not fit. Or shapes do not fit.
        TypeError, NotImplementedError: an argument is of another kind; tensors on a GPU are of another dtype
            or other dims.
    """
    factor = check_scale("scale", scale)
    boolean("normalize", normalize)
    boolean("output_final_state", output_final_state)
    k, v = for_each_query_head(q, k, v, _repeat_heads)
    state, normalizer, log_scale = _checked_state(initial_state, normalize)
    arguments = q, k, v, log_forget, log_input, state, normalizer, log_scale
    if is_tensor(q):
        from flashmask._torch.linear import linear_attention_of_tensors

        outputs: Any = linear_attention_of_tensors(arguments, mask, factor, normalize, output_final_state)
    else:
        outputs = _of_arrays(arguments, mask, factor, normalize, output_final_state)
    o, state, normalizer, log_scale = outputs
    return (o, LinearState(state, normalizer if normalize else None, log_scale)) if output_final_state else o


def for_each_query_head(q: Any, k: Any, v: Any, repeat: Callable[[Any, int], Any]) -> tuple[Any, Any]:
    """Returns k and v, repeated where groups of query heads share their heads; what does not fit is refused later.

    `repeat`(tensor, times) repeats each head.
    """
    if not all(getattr(each, "ndim", None) == 4 for each in (q, k, v)):
        return k, v
    heads, shared = q.shape[2], k.shape[2]
    if shared in (heads, 0) or heads % shared or v.shape[2] != shared:
        return k, v
    return repeat(k, heads // shared), repeat(v, heads // shared)


def _repeat_heads(given: Any, times: int) -> Any:
    return given.repeat_interleave(times, 2) if is_tensor(given) else np.repeat(given, times, 2)


def _checked_state(given: Any, normalize: bool) -> tuple[Any, Any, Any]:
    if given is None:
        return None, None, None
    if not isinstance(given, tuple) or len(given) != 3:
        raise TypeError(
            f"initial_state is {described(given)}; expected (state, normalizer or None, log_scale or None), as "
            "output_final_state=True returns it"
        )
    if (given[1] is not None) != normalize:
        raise ValueError(
            f"initial_state has {'a' if given[1] is not None else 'no'} normalizer and normalize is {normalize}; "
            "expected one exactly where normalize is True"
        )
    return given[0], given[1], given[2]


def problem_of(q: Any, k: Any, v: Any, scale: float, normalize: bool, dtypes: tuple[str, str, str]) -> LinearProblem:
    """Returns the problem of tensors or arrays; raises where they do not fit each other."""
    for name, each in (("q", q), ("k", k), ("v", v)):
        if each.ndim != 4:
            raise ValueError(f"{name} has shape {list(each.shape)}; expected (batch, length, heads, dim)")
    if tuple(k.shape) != tuple(q.shape):
        raise ValueError(
            f"k has shape {list(k.shape)}; expected {list(q.shape)}, that of q, or fewer heads that divide those of q, "
            f"of k and v alike; v has shape {list(v.shape)}"
        )
    if tuple(v.shape[:2]) != tuple(q.shape[:2]):
        raise ValueError(f"v has shape {list(v.shape)}; expected the batch and length of q, {list(q.shape[:2])}")
    if len(set(dtypes)) > 1:
        raise TypeError(f"q, k and v have dtypes {', '.join(dtypes)}; expected one dtype")
    code = DTYPES.index(dtypes[0])
    batch, length, key_heads, key_dim = q.shape
    return LinearProblem(batch, length, v.shape[2], key_heads, key_dim, v.shape[3], code, scale, normalize)


def check_gate(name: str, gate: Any, shape: tuple[int, int, int]) -> None:
    """Refuses gates that are neither (batch, length, heads) nor, for log_forget, (heads)."""
    if tuple(gate.shape) == shape or (name == "log_forget" and tuple(gate.shape) == shape[2:]):
        return
    alternative = f", or [{shape[2]}]" if name == "log_forget" else ""
    raise ValueError(f"{name} has shape {list(gate.shape)}; expected {list(shape)}{alternative}")


@breaks_graph
def _of_arrays(arguments: Any, mask: Any, scale: float, normalize: bool, output_final_state: bool) -> list[AnyArray]:
    names = "q", "k", "v", "log_forget", "log_input", "state", "normalizer", "log_scale"
    given = [None if each is None else array_of(name, each) for name, each in zip(names, arguments, strict=True)]
    q, k, v = (
        np.require(array_of(name, each), requirements=["C", "A"])
        for name, each in zip("qkv", arguments[:3], strict=True)
    )
    problem = problem_of(q, k, v, scale, normalize, (dtype_name("q", q), dtype_name("k", k), dtype_name("v", v)))
    if problem.code == F64:
        raise NotImplementedError(
            "linear_attention computes NumPy arrays of float32 and float16; float64: torch tensors"
        )
    plan = _plan_of(mask, problem)
    shape = problem.batch, problem.length, problem.heads
    gates = [
        None if gate is None else _gate(name, gate, shape) for name, gate in zip(names[3:5], given[3:5], strict=True)
    ]
    state = given[5:]
    if state[0] is not None and state[2] is None:
        state[2] = np.zeros((plan.roots, problem.heads), np.float32)
    inputs = [q, k, v, *gates, *(None if each is None else np.ascontiguousarray(each, np.float32) for each in state)]
    o = np.empty((*shape, problem.value_dim), q.dtype)
    final = [np.empty(sizes, np.float32) for sizes in problem.states(plan.nodes if output_final_state else 0)]
    written = [
        each if output_final_state and (normalize or name != "normalizer") else None
        for name, each in zip(names[5:], final, strict=True)
    ]
    plan.forward([_placed(each, problem.code) for each in (*inputs, o, *written)])
    return [o, *final]


def _gate(name: str, gate: AnyArray, shape: tuple[int, int, int]) -> AnyArray:
    check_gate(name, gate, shape)
    return np.ascontiguousarray(np.broadcast_to(gate, shape), np.float32)


def _placed(array: AnyArray | None, code: int) -> Placed:
    """Describes an array without gaps; what is not of the call's dtype is float32."""
    if array is None:
        return ABSENT
    own = code if array.ndim == 4 and dtype_name("array", array) == DTYPES[code] else s.F32
    strides = tuple(stride // array.itemsize for stride in array.strides)
    return array.ctypes.data, layout(own, (s.CPU, 0), array.shape, strides)


def _plan_of(mask: Any, problem: LinearProblem) -> LinearPlan:
    if isinstance(mask, RowIndices):
        mask = mask.to_mask()
    if mask is not None and not isinstance(mask, Mask):
        raise TypeError(f"mask is {described(mask)}; expected flashmask.Mask, flashmask.RowIndices or None for causal")
    key = (None if mask is None else header(mask._id, Options()), problem)
    found = linear_plans.find(key)
    if found is None:
        from flashmask import masks

        made = masks.causal(problem.length) if mask is None else mask
        found = linear_plans.keep(key, LinearPlan(made, problem), 40 * problem.length)
    return found
