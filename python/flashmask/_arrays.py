# SPDX-License-Identifier: Apache-2.0
"""attention() for NumPy arrays and others that support DLPack, on the CPU and without torch."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from flashmask._abi.header import HEADER_BYTES, Options, header
from flashmask._abi.problem import DTYPES, F64, Problem, check_mask, make_problem
from flashmask._arguments import described, sink_dtypes
from flashmask._graph_break import breaks_graph
from flashmask._options import CallOptions
from flashmask._plans.cache import plans
from flashmask._plans.call import Call, key_on_cpu
from flashmask._plans.live_plan import Alibi, AnyBias, AnyPlan, Bias, View, make_plan
from flashmask._plans.plan import Plan, as_mask, dtype_name
from flashmask.scores import OPERANDS, ScoreChange, check_shape

Array = np.ndarray[Any, np.dtype[Any]]


@breaks_graph
def attention_of_arrays(
    q: Any, k: Any, v: Any, mask: Any, plan: Plan | None, options: CallOptions, with_max_scores: bool = False
) -> tuple[Array, ...]:
    """Returns o and lse as NumPy arrays, perhaps with the largest score of each row."""
    if options.dropout:
        raise NotImplementedError(
            f"dropout is {options.dropout}, and q is {described(q)}: torch's generator says what is dropped; pass "
            "torch tensors, or see flashmask.jax.attention"
        )
    arrays = [_array(name, values) for name, values in (("q", q), ("k", k), ("v", v))]
    dtypes = [dtype_name(name, array) for name, array in zip("qkv", arrays, strict=True)]
    if len(set(dtypes)) > 1:
        raise TypeError(f"q, k and v have dtypes {', '.join(dtypes)}; expected one dtype")
    if options.heads_first:
        _check_rank(arrays)
        arrays = [array.swapaxes(1, 2) for array in arrays]
    score = options.score
    if score.reads:
        raise NotImplementedError(f"score is {score!r}, whose operands are for torch tensors, and q is {described(q)}")
    problem = make_problem([array.shape for array in arrays], dtypes[0], options.scale or None, 0.0)
    problem = problem._replace(change=score.text)
    given = None if options.sinks is None else _sinks(_array("sinks", options.sinks), problem)
    invariant = options.invariant
    live = _live_plan(mask, problem, invariant) if plan is None else _live_plan_of(plan, problem, invariant)
    operands = _operands(score, problem)
    o, *of_rows = _run(live, arrays, problem, given, _described_operands(operands, score), with_max_scores)
    return (o.swapaxes(1, 2) if options.heads_first else o), *of_rows


def _array(name: str, values: Any) -> Array:
    """Returns a NumPy view of an array; values that DLPack cannot pass, such as bfloat16, go through __array__."""
    if isinstance(values, np.ndarray):
        return values
    if not hasattr(values, "__dlpack__"):
        raise TypeError(f"{name} is {described(values)}; expected a torch tensor, or an array that says DLPack")
    try:
        return np.from_dlpack(values)
    except (BufferError, RuntimeError, TypeError) as reason:
        if not hasattr(values, "__array__"):
            raise TypeError(f"{name} is {described(values)}, which NumPy cannot read: {reason}") from reason
    try:
        return np.asarray(values)
    except TypeError as reason:
        raise TypeError(
            f"{name} is {described(values)}, which has no values, as inside jax.jit, jax.grad and jax.vmap; call "
            "flashmask.jax.attention there, which takes the same arguments"
        ) from reason


def _sinks(sinks: Array, problem: Problem) -> Array:
    """Returns the sinks without gaps, [query heads] or [batch, query heads, rows], float32 or the problem's dtype."""
    if sinks.ndim == 4 and sinks.shape[3] == 1:
        sinks = sinks[..., 0]
    heads, of_rows = problem.query_heads, (problem.batch, problem.query_heads, problem.query_length)
    if sinks.shape not in ((heads,), of_rows):
        raise ValueError(f"sinks has shape {list(sinks.shape)}; expected [{heads}], the heads of q, or {list(of_rows)}")
    dtype = dtype_name("sinks", sinks)
    if dtype not in ("float32", problem.dtype):
        expected = sink_dtypes("float32", problem.dtype)
        raise TypeError(f"sinks has dtype {dtype}; expected {expected}, that of q")
    return np.array(sinks, np.float64 if problem.code == F64 else sinks.dtype, order="C")


def _operands(score: ScoreChange, problem: Problem) -> list[Array]:
    """Returns the operands of a change of scores as kernels take them."""
    sizes = problem.batch, problem.query_heads, problem.query_length, problem.key_length
    numbers, made = np.float64 if problem.code == F64 else np.float32, []
    for name, values in zip(OPERANDS.get(score.kind, ()), score.operands, strict=True):
        if values is None:
            continue
        array = _array(name, values)
        check_shape(name, array.shape, sizes)
        if score.kind != "alibi" and dtype_name(name, array) == "float64" and problem.code != F64:
            raise TypeError(f"{name} has dtype float64; expected float32, bfloat16 or float16")
        as_given = score.kind != "alibi" and problem.code != F64
        made.append(_ready(array, False) if as_given else np.array(array, numbers, order="C"))
    return made


def _described_operands(operands: list[Array], score: ScoreChange) -> AnyBias | None:
    if not operands:
        return None
    first = operands[0]
    if score.kind == "alibi":
        positions = [number for each in operands[1:] for number in (each.ctypes.data, len(each))]
        return Alibi(first.ctypes.data, first.ndim, *positions)
    address, strides = _view(first)
    return Bias(address, DTYPES.index(dtype_name("bias", first)), first.shape, strides, score.origin)


def _check_rank(arrays: list[Array]) -> None:
    for name, array in zip("qkv", arrays, strict=True):
        if array.ndim != 4:
            raise ValueError(f"{name} has shape {list(array.shape)}; expected (batch, heads, sequence, head dim)")


def _live_plan(mask: Any, problem: Problem, invariant: bool) -> AnyPlan:
    made = as_mask(mask, problem)
    check_mask("mask", made.shape, problem)
    options = Options(invariant=int(invariant))
    source = header(made._id, Options()) if mask is not None else None
    call = Call.of(problem)._replace(invariant=invariant)
    key = key_on_cpu(source, problem.shapes, problem.code, call)
    found = plans.find(key)
    if found is None:
        found = plans.keep(key, make_plan("mask", made, problem, options), HEADER_BYTES + 8 * problem.key_length)
    return found


def _live_plan_of(plan: Plan, problem: Problem, invariant: bool) -> AnyPlan:
    plan.check_fits(*problem.shapes)
    if invariant and not plan.invariant:
        raise ValueError(
            "invariant=True came beside a plan that is not invariant; make it by flashmask.plan(..., invariant=True)"
        )
    if plan.problem.device != "cpu":
        raise ValueError(f"plan was made for {plan.problem.device}; arrays take one for the CPU")
    return cast(AnyPlan, plan._live)


def _run(
    plan: AnyPlan,
    arrays: list[Array],
    problem: Problem,
    sinks: Array | None,
    bias: AnyBias | None,
    with_max_scores: bool,
) -> tuple[Array, ...]:
    batch, rows, heads, _ = problem.shapes[0]
    ready = [_ready(array, plan.contiguous) for array in arrays]
    o = np.empty((batch, rows, heads, problem.value_dim), arrays[0].dtype)
    lse = np.empty((batch, heads, rows), np.float64 if problem.code == F64 else np.float32)
    q, k, v = map(_view, ready)
    given = None
    if sinks is not None:
        given = sinks.ctypes.data, DTYPES.index(dtype_name("sinks", sinks)), sinks.ndim
    max_scores = np.empty_like(lse) if with_max_scores else None
    address = 0 if max_scores is None else max_scores.ctypes.data
    plan.forward(q, k, v, o.ctypes.data, lse.ctypes.data, None, given, bias, address)
    return (o, lse) if max_scores is None else (o, lse, max_scores)


def _ready(array: Array, contiguous: bool) -> Array:
    """Returns the array, or an aligned copy with strides that kernels accept."""
    usable = array.flags.aligned and array.strides[3] == array.itemsize
    gaps = contiguous and not array.flags.c_contiguous
    whole = all(stride >= 0 and stride % array.itemsize == 0 for stride in array.strides)
    if usable and whole and not gaps:
        return array
    return np.array(array, order="C")


def _view(array: Array) -> View:
    return array.ctypes.data, tuple(stride // array.itemsize for stride in array.strides)
