# SPDX-License-Identifier: Apache-2.0
"""What the tests of flashmask.jax share. Imported before JAX is used: it asks XLA for four devices."""

import os

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # on a GPU, PyTorch needs memory too

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flashmask.jax as fm

N = 70
DOCUMENTS = [31, 0, 20, 19]


def inputs(batch=2, rows=N, columns=N, heads=4, kv_heads=2, dim=16, value_dim=24, dtype=jnp.float32):
    """q, k, v. What needs no program of XLA's is made by NumPy: each takes a tenth of a second to compile."""
    random = np.random.default_rng(0)
    shapes = (batch, rows, heads, dim), (batch, columns, kv_heads, dim), (batch, columns, kv_heads, value_dim)
    return tuple(jnp.asarray(random.standard_normal(shape).astype(dtype)) for shape in shapes)


def sinks_of(heads=4):
    return jnp.asarray(np.linspace(-1, 2, heads, dtype=np.float32))


def bias_of(batch=1, heads=4, rows=N, columns=N):
    """A bias of each score."""
    return np.random.default_rng(1).standard_normal((batch, heads, rows, columns)).astype(np.float32)


def weights(shape, dtype):
    """Numbers to weigh a result with, so that its gradient is not the same everywhere."""
    return np.cos(np.arange(np.prod(shape), dtype=np.float32)).reshape(shape).astype(dtype)


def results(call, *arrays):
    """o, lse, and the gradients of all arrays, of a function that returns o and lse."""
    outputs, pull = jax.vjp(call, *arrays)
    o, lse = outputs
    of_lse = jnp.where(jnp.isfinite(lse), weights(lse.shape, lse.dtype), 0)
    return [o, lse, *pull((weights(o.shape, o.dtype), of_lse))]


@functools.partial(jax.jit, static_argnames=("layout", "scale", "deterministic"))
def results_under(mask, arrays, sinks=None, **options):
    """The same of attention under row indices or booleans, compiled once for all masks of one shape."""
    extra = () if sinks is None else (sinks,)
    return results(
        lambda q, k, v, s=None: fm.attention(q, k, v, mask, sinks=s, return_lse=True, **options), *arrays, *extra
    )


def gradients_of(call, argnums=(0, 1, 2)):
    """The compiled gradients of a loss of what `call` returns."""

    def loss(*arrays):
        return sum((each * jnp.cos(each)).sum() for each in jax.tree.leaves(call(*arrays)))

    return jax.jit(jax.grad(loss, argnums))


def assert_same_bits(found, expected):
    for each, other in zip(found, expected, strict=True):
        numbers = other.float().numpy() if hasattr(other, "numpy") else np.asarray(other, np.float32)
        np.testing.assert_array_equal(np.asarray(each, np.float32), numbers)


def assert_close(found, expected, atol=2e-5):
    for each, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(each), np.asarray(other), rtol=2e-5, atol=atol)


def packed(**options):
    return fm.from_cu_seqlens(jnp.cumsum(jnp.array([0, *DOCUMENTS])), N, **options)


def refused(error, message, call, *arguments):
    with pytest.raises(error, match=re.escape(message)):
        call(*arguments)
