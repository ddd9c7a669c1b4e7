# SPDX-License-Identifier: Apache-2.0
"""Attention as JAX transforms it: differentiable once, mappable, partitionable, compiled."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero

from flashmask.jax._foreign import foreign
from flashmask.jax._once import once
from flashmask.jax._partition import with_partitioning
from flashmask.jax._site import Options, Site
from flashmask.jax._vmap import with_vmap

_BIAS = ("alibi_slopes", "query_positions", "key_positions", "bias")
NAMES = ("q", "k", "v", "mask", "words", "sinks", *_BIAS, "plan")
"""The operands, of which all but q, k and v may be None; words are the seed and the offset of dropout."""
_partitioned = with_partitioning(foreign)


def _library(site: Site, *arrays: Any) -> tuple[Any, ...]:
    return with_vmap(site, _partitioned)(*arrays)


_compiled = once("attention", _library)


def _call(options: Options, backward: bool, bias_gradient: bool, arrays: dict[str, Any]) -> dict[str, Any]:
    """Returns the results by the names of what they look like."""
    given = {name: array for name, array in arrays.items() if array is not None}
    site = Site(options, backward, tuple(given), bias_gradient)
    return dict(zip(site.results, _compiled(site, *given.values()), strict=True))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def attend(options: Options, *operands: Any) -> tuple[Any, Any]:
    """Returns o and lse. `operands`: NAMES, in that order."""
    return _attend(options, *operands)


def _attend(options: Options, *operands: Any) -> tuple[Any, Any]:
    results = _call(options, False, False, dict(zip(NAMES, operands, strict=True)))
    return results["o"], results["lse"]


def _forward(options: Options, *given: Any) -> tuple[tuple[Any, Any], tuple[Any, ...]]:
    named = dict(zip(NAMES, given, strict=True))
    for name in _BIAS[:3]:
        if named[name] is not None and named[name].perturbed:
            raise NotImplementedError(
                f"flashmask.jax.attention: a gradient of {name} was asked for, and it has none; pass "
                f"jax.lax.stop_gradient({name}), or the bias as a tensor"
            )
    wants_bias = named["bias"] is not None and named["bias"].perturbed
    operands = tuple(None if each is None else each.value for each in given)
    o, lse = _attend(options, *operands)
    return (o, lse), (() if wants_bias else None, *operands, o, lse)  # saved are pytrees, which have no booleans


def _backward(options: Options, saved: tuple[Any, ...], gradients: tuple[Any, Any]) -> tuple[Any, ...]:
    wants_bias, *operands, o, lse = saved
    grad_o, grad_lse = gradients
    if isinstance(grad_o, SymbolicZero):
        grad_o = jnp.zeros_like(o)
    if isinstance(grad_lse, SymbolicZero):
        grad_lse = None
    named = dict(zip(NAMES, operands, strict=True))
    named |= {"o": o, "lse": lse, "grad_o": grad_o, "grad_lse": grad_lse}
    found = _call(options, True, wants_bias is not None, named)
    return tuple(found.get(name) for name in NAMES)


attend.defvjp(_forward, _backward, symbolic_zeros=True)
