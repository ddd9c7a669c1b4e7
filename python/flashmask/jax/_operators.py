# SPDX-License-Identifier: Apache-2.0
"""Attention as JAX transforms it: differentiable once, mappable, partitionable, compiled."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero

from flashmask.jax._foreign import foreign
from flashmask.jax._partition import with_partitioning
from flashmask.jax._site import Options, Site
from flashmask.jax._vmap import with_vmap

_NAMES = ("q", "k", "v", "mask", "words", "sinks", "plan")
_partitioned = with_partitioning(foreign)


def _refuse_tangents(site: Site, primals: Any, tangents: Any) -> Any:
    raise NotImplementedError(
        "flashmask.jax.attention: a gradient of a gradient was asked for, or a forward-mode derivative of a gradient; "
        "attention is differentiable once"
    )


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _once(site: Site, *arrays: Any) -> tuple[Any, ...]:
    """Calls the library where a gradient is under way; JAX differentiates this a second time, and is refused."""
    return with_vmap(site, _partitioned)(*arrays)


_once.defjvp(_refuse_tangents)


@functools.partial(jax.jit, static_argnums=0)
def _compiled(site: Site, *arrays: Any) -> tuple[Any, ...]:
    return tuple(_once(site, *arrays))


def _call(options: Options, backward: bool, **arrays: Any) -> tuple[Any, ...]:
    given = {name: array for name, array in arrays.items() if array is not None}
    return tuple(_compiled(Site(options, backward, tuple(given)), *given.values()))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def attend(options: Options, q: Any, k: Any, v: Any, mask: Any, words: Any, sinks: Any, plan: Any) -> tuple[Any, Any]:
    """Returns o and lse. mask, words (seed and offset of dropout), sinks and plan may each be None."""
    o, lse = _call(options, False, q=q, k=k, v=v, mask=mask, words=words, sinks=sinks, plan=plan)
    return o, lse


def _forward(options: Options, *given: Any) -> tuple[tuple[Any, Any], tuple[Any, ...]]:
    operands = tuple(None if each is None else each.value for each in given)
    o, lse = _call(options, False, **dict(zip(_NAMES, operands, strict=True)))
    return (o, lse), (*operands, o, lse)


def _backward(options: Options, saved: tuple[Any, ...], gradients: tuple[Any, Any]) -> tuple[Any, ...]:
    *operands, o, lse = saved
    grad_o, grad_lse = gradients
    if isinstance(grad_o, SymbolicZero):
        grad_o = jnp.zeros_like(o)
    if isinstance(grad_lse, SymbolicZero):
        grad_lse = None
    named = dict(zip(_NAMES, operands, strict=True))
    found = _call(options, True, **named, o=o, lse=lse, grad_o=grad_o, grad_lse=grad_lse)
    return *found[:3], None, None, found[3] if len(found) > 3 else None, None


attend.defvjp(_forward, _backward, symbolic_zeros=True)
