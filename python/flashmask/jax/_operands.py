# SPDX-License-Identifier: Apache-2.0
"""Checks of what calls are given; all of them while tracing."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flashmask._abi.problem import Problem, make_problem
from flashmask._arguments import described
from flashmask._plans.plan import dtype_name


def array(name: str, given: Any) -> Any:
    """Returns an array of JAX; refuses whatever is neither that nor NumPy's."""
    if not isinstance(given, (jax.Array, np.ndarray)):
        raise TypeError(f"{name} is {described(given)}; expected an array of JAX or NumPy")
    return jnp.asarray(given)


def problem_of(tensors: list[Any], heads_first: bool, dropout: float) -> Problem:
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
    return make_problem(shapes, dtypes[0], None, dropout)
