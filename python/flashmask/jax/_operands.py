# SPDX-License-Identifier: Apache-2.0
"""Checks of what calls are given; all of them while tracing."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flashmask._abi.problem import DTYPES, Problem, make_problem
from flashmask._arguments import described
from flashmask._plans.plan import dtype_name
from flashmask.scores import MOST_READS, OPERANDS, UNCHANGED, ScoreChange, check_shape

_PLATFORMS = ("cpu", "gpu", "cuda")


def check_platform() -> None:
    """Refuses processors that there are no kernels for."""
    chosen = jax.config.jax_default_device
    platform = getattr(chosen, "platform", chosen) or jax.default_backend()
    if platform not in _PLATFORMS:
        raise NotImplementedError(
            f"flashmask.jax: this program is for {platform}; flashmask computes on CPUs and on NVIDIA's "
            "GPUs: run it under jax.default_device(jax.devices('cpu')[0])"
        )


def array(name: str, given: Any) -> Any:
    """Returns an array of JAX; refuses whatever is neither that nor NumPy's."""
    if not isinstance(given, (jax.Array, np.ndarray)):
        raise TypeError(f"{name} is {described(given)}; expected an array of JAX or NumPy")
    return jnp.asarray(given)


def problem_of(tensors: list[Any], heads_first: bool, dropout: float, score: ScoreChange = UNCHANGED) -> Problem:
    """Returns the problem of q, k and v, of which shapes and dtypes are read."""
    dtypes = [dtype_name(name, tensor) for name, tensor in zip("qkv", tensors, strict=True)]
    if len(set(dtypes)) > 1:
        raise TypeError(f"q, k and v have dtypes {', '.join(dtypes)}; expected one dtype")
    shapes = [tensor.shape for tensor in tensors]
    for name, shape in zip("qkv", shapes, strict=True):
        if not all(isinstance(size, int) for size in shape):
            raise NotImplementedError(
                f"flashmask.jax: {name} has shape ({', '.join(map(str, shape))}), whose sizes are symbolic; export one "
                "program for each size"
            )
        if heads_first and len(shape) != 4:
            raise ValueError(f"{name} has shape {list(shape)}; expected (batch, heads, sequence, head dim)")
    if heads_first:
        shapes = [(batch, tokens, heads, dim) for batch, heads, tokens, dim in shapes]
    return make_problem(shapes, dtypes[0], None, dropout)._replace(change=score.text)


def score_operands(score: ScoreChange, problem: Problem) -> tuple[Any, ...]:
    """Returns ALiBi's slopes and positions of queries and of keys, a bias or a table by distance, and what is read.

    That is MOST_READS operands, None where there is none. Numbers are float64 where q is: the reference computes them.
    """
    sizes = problem.batch, problem.query_heads, problem.query_length, problem.key_length
    found: list[Any] = [None] * 3
    for place, name in enumerate(OPERANDS.get(score.kind, ())):
        if score.operands[place] is not None:
            found[place] = _ready(name, score.operands[place], sizes, problem.dtype)
    reads = [_read(i, each, problem.dtype) for i, each in enumerate(score.reads)]
    reads += [None] * (MOST_READS - len(reads))
    return (*found, None, *reads) if score.kind == "alibi" else (None, None, None, found[0], *reads)


def _read(number: int, given: Any, of_q: str) -> Any:
    """Returns an operand of a function, in a dtype that kernels read."""
    operand = array(f"operand {number}", given)
    if not 1 <= operand.ndim <= 4:
        raise ValueError(f"operand {number} has {operand.ndim} dimensions; expected 1 to 4")
    if of_q == "float64":
        return operand.astype(jnp.float64)
    if str(operand.dtype) not in DTYPES[:3]:
        raise TypeError(f"operand {number} has dtype {operand.dtype}; expected {' or '.join(DTYPES[:3])}")
    return operand


def _ready(name: str, given: Any, sizes: tuple[int, int, int, int], of_q: str) -> Any:
    """Returns an operand, checked, in the dtype that kernels read."""
    operand = array(name, given)
    check_shape(name, operand.shape, sizes)
    if of_q == "float64":
        return operand.astype(jnp.float64)
    if name.endswith("positions"):
        return operand.astype(jnp.float32)
    dtype, expected = str(operand.dtype), DTYPES[:1] if name == "alibi_slopes" else DTYPES[:3]
    if dtype not in expected:
        raise TypeError(f"{name} has dtype {dtype}; expected {' or '.join(expected)}")
    return operand
