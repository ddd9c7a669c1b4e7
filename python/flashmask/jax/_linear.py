# SPDX-License-Identifier: Apache-2.0
"""flashmask.jax.linear_attention(): linear attention with a decay under masks that are trees, for arrays of JAX."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap

from flashmask._abi.problem import DTYPES, check_scale
from flashmask._arguments import boolean, described
from flashmask._linear_attention import check_gate, for_each_query_head, problem_of
from flashmask._mask import Mask
from flashmask._plans.plan import dtype_name
from flashmask.jax._masks import constant
from flashmask.jax._once import once
from flashmask.jax._operands import array, check_platform
from flashmask.jax._versions import result_like, vary_alike

_GATES = ("log_forget", "log_input")


class _Mask(NamedTuple):
    """A mask as an attribute of a program: row indices, int32 [batch, length, vectors]; no bytes where it is causal."""

    values: bytes = b""
    batch: int = 1
    vectors: int = 0
    causal: bool = False


class _Site(NamedTuple):
    """What a call says besides arrays."""

    mask: _Mask
    scale: float
    normalize: bool
    gates: tuple[str, ...]
    """Which of _GATES are given, in that order."""
    backward: bool = False


def linear_attention(
    q: Any,
    k: Any,
    v: Any,
    log_forget: Any = None,
    log_input: Any = None,
    mask: Mask | None = None,
    *,
    normalize: bool = False,
    scale: float | None = None,
) -> Any:
    """Computes linear attention with a decay, whose state begins and forks where the mask says.

    flashmask.linear_attention() says what is computed: RetNet, Mamba-2's and mLSTM's recurrences, in time linear in the
    tokens. Differentiable once in all arrays. Runs inside and outside of jit, grad, vmap, checkpoint, scan and export;
    under jit over sharded arrays it is computed whole on every device. States are neither taken nor returned.

    Args:
        q, k: (batch, length, key heads, key dim): float32, bfloat16 or float16, with dims of at most 512. On a GPU
            bfloat16 or float16, with dims that are multiples of 8, of keys up to 256 and of values up to 512.
        v: (batch, length, heads, value dim), where heads is a multiple of key heads. Or q alone has more heads, a
            multiple of those of k and v.
        log_forget: the natural logarithm of the forget gates, at most 0: (batch, length, heads), or (heads). None: 0.
        log_input: the logarithm of the input gates, (batch, length, heads). None: 0.
        mask: a Mask of flashmask.masks, which becomes a constant of the program, under which a token sees itself and
            all that its predecessor sees: causal, packed documents, shared prompts, trees, with padding, which gets 0.
            None: causal.
        normalize: divide by max(|sum of weights times scaled q · k|, 1), as mLSTM does.
        scale: factor on q · k; None: 1 / sqrt(key dim).

    Returns:
        o (batch, length, heads, value dim) in the dtype of q.

    Raises:
        ValueError: shapes do not fit, or, when the program runs, the mask is no tree.
        TypeError, NotImplementedError: an argument is of another kind, or a transform or platform is not served.
    """
    check_platform()
    q, k, v = (array(name, given) for name, given in (("q", q), ("k", k), ("v", v)))
    k, v = for_each_query_head(q, k, v, lambda each, times: jnp.repeat(each, times, 2))
    factor = check_scale("scale", scale)
    dtypes = dtype_name("q", q), dtype_name("k", k), dtype_name("v", v)
    if "float64" in dtypes:
        raise NotImplementedError(
            "flashmask.jax.linear_attention: q, k and v are float64; expected float32, bfloat16 or float16"
        )
    problem = problem_of(q, k, v, factor, boolean("normalize", normalize), dtypes)
    shape = problem.batch, problem.length, problem.heads
    given = dict(zip(_GATES, (log_forget, log_input), strict=True))
    named = {name: _gate(name, gate, shape) for name, gate in given.items() if gate is not None}
    site = _Site(_mask(mask, problem.batch, problem.length), factor, normalize, tuple(named))
    return _attend(site, *vary_alike([q, k, v, *named.values()]))


def _gate(name: str, given: Any, shape: tuple[int, int, int]) -> Any:
    gate = array(name, given)
    check_gate(name, gate, shape)
    return jnp.broadcast_to(gate.astype(jnp.float32), shape)


def _mask(mask: Any, batch: int, length: int) -> _Mask:
    if mask is None:
        return _Mask()
    if not isinstance(mask, Mask):
        raise TypeError(
            f"mask is {described(mask)}; expected a Mask of flashmask.masks, whose nodes are found on the host, or "
            "None for causal"
        )
    if mask.shape[:3] not in ((1, 1, length), (batch, 1, length)) or mask.shape[3] != length:
        raise ValueError(f"mask has shape {tuple(mask.shape)}; expected (1 or {batch}, 1, {length}, {length})")
    operand = constant(mask)
    if operand.array.dtype != np.int32:
        raise NotImplementedError(
            "flashmask.jax.linear_attention: mask has more than two ranges of masked rows per key column; expected one "
            "that row indices can express, as documents, shared prompts and trees are"
        )
    return _Mask(operand.array.tobytes(), operand.array.shape[0], operand.array.shape[3], operand.causal)


def _attributes(site: _Site, dtype: Any) -> dict[str, Any]:
    """What XLA hands to a handler beside arrays."""
    integers = {
        "dtype": DTYPES.index(str(dtype)),
        "normalize": site.normalize,
        "has_mask": bool(site.mask.values),
        "mask_batch": site.mask.batch,
        "vectors": site.mask.vectors,
        "causal": site.mask.causal,
    }
    integers |= {f"has_{name}": name in site.gates for name in _GATES}
    values = np.frombuffer(site.mask.values or bytes(4), np.int32)
    return {"mask": values, "scale": np.float64(site.scale)} | {name: np.int64(n) for name, n in integers.items()}


def _call(site: _Site, arrays: Any) -> tuple[Any, ...]:
    """Calls the library; the results of a backward look like q, k, v and the gates."""
    q, _, v = arrays[:3]
    like = arrays[: 3 + len(site.gates)] if site.backward else [v]
    target = "flashmask_linear_backward" if site.backward else "flashmask_linear_forward"
    call = jax.ffi.ffi_call(target, [result_like(x.shape, x.dtype, arrays) for x in like])
    return tuple(call(*arrays, **_attributes(site, q.dtype)))


def _mapped(site: _Site, *arrays: Any) -> tuple[Any, ...]:
    """_call(), of which jax.vmap makes the mapped axis a part of the batch."""

    def rule(count: int, mapped: list[bool], *given: Any) -> tuple[tuple[Any, ...], tuple[bool, ...]]:
        each = [x if own else jnp.broadcast_to(x, (count, *x.shape)) for x, own in zip(given, mapped, strict=True)]
        batch = each[0].shape[1]
        mask = site.mask
        if mask.batch > 1:
            mask = mask._replace(values=mask.values * count, batch=mask.batch * count)
        merged = [x.reshape(count * batch, *x.shape[2:]) for x in each]
        results = _mapped(site._replace(mask=mask), *merged)
        return tuple(x.reshape(count, batch, *x.shape[1:]) for x in results), (True,) * len(results)

    mappable = custom_vmap(lambda *given: _call(site, given))
    mappable.def_vmap(rule)
    return tuple(mappable(*arrays))


_compiled = once("linear_attention", _mapped)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(site: _Site, *arrays: Any) -> Any:
    return _compiled(site, *arrays)[0]


def _forward(site: _Site, *arrays: Any) -> tuple[Any, tuple[Any, ...]]:
    o = _attend(site, *arrays)
    return o, (*arrays, o)


def _backward(site: _Site, saved: tuple[Any, ...], grad_o: Any) -> tuple[Any, ...]:
    return _compiled(site._replace(backward=True), *saved, grad_o)


_attend.defvjp(_forward, _backward)
