# SPDX-License-Identifier: Apache-2.0
"""Attention as JAX transforms it: differentiable once, mappable, partitionable, compiled."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero

from flashmask.jax._foreign import foreign
from flashmask.jax._once import once
from flashmask.jax._partition import with_partitioning
from flashmask.jax._site import READS, Options, Site
from flashmask.jax._vmap import with_vmap

_BIAS = ("alibi_slopes", "query_positions", "key_positions", "bias")
NAMES = ("q", "k", "v", "mask", "words", "sinks", *_BIAS, *READS, "plan")
"""The operands, of which all but q, k and v may be None; words are the seed and the offset of dropout."""
_partitioned = with_partitioning(foreign)


def _library(site: Site, *arrays: Any) -> tuple[Any, ...]:
    return with_vmap(site, _partitioned)(*arrays)


_compiled = once("attention", _library)


def _call(options: Options, arrays: dict[str, Any], backward: bool, wanted: Iterable[str] = ()) -> dict[str, Any]:
    """Returns the results by the names of what they look like."""
    given = {name: array for name, array in arrays.items() if array is not None}
    site = Site(options, backward, tuple(given), tuple(wanted))
    return dict(zip(site.results, _compiled(site, *given.values()), strict=True))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def attend(options: Options, *operands: Any) -> tuple[Any, Any]:
    """Returns o and lse. `operands`: NAMES, in that order."""
    return _attend(options, *operands)


def _attend(options: Options, *operands: Any) -> tuple[Any, Any]:
    results = _call(options, dict(zip(NAMES, operands, strict=True)), backward=False)
    return results["o"], results["lse"]


def _forward(options: Options, *given: Any) -> tuple[tuple[Any, Any], tuple[Any, ...]]:
    perturbed = [name for name, each in zip(NAMES, given, strict=True) if each is not None and each.perturbed]
    for name in perturbed:
        _check_differentiable(name, options.invariant)
    # Keys of a dict are a part of what a pytree is, where a string or a boolean cannot be a leaf.
    wanted = {name: () for name in ("sinks", "bias") if name in perturbed}
    operands = tuple(None if each is None else each.value for each in given)
    o, lse = _attend(options, *operands)
    return (o, lse), (wanted, *operands, o, lse)


def _check_differentiable(name: str, invariant: bool) -> None:
    """Refuses the gradient of an operand that has none."""
    if name in READS:
        raise NotImplementedError(
            f"flashmask.jax.attention: a gradient of {name} of a function of scores was asked for, and it has none; "
            "pass jax.lax.stop_gradient of it, or give it as the function's bias"
        )
    if name in _BIAS[:3]:
        raise NotImplementedError(
            f"flashmask.jax.attention: a gradient of {name} was asked for, and it has none; pass "
            f"jax.lax.stop_gradient({name}), or the bias as a tensor"
        )
    if invariant and name in ("sinks", "bias"):
        raise NotImplementedError(
            f"flashmask.jax.attention: a gradient of {name} was asked for beside invariant=True, and it is a sum over "
            f"the whole call, which no document has alone; pass jax.lax.stop_gradient({name}), or leave invariant out"
        )


def _backward(options: Options, saved: tuple[Any, ...], gradients: tuple[Any, Any]) -> tuple[Any, ...]:
    wanted, *operands, o, lse = saved
    grad_o, grad_lse = gradients
    if isinstance(grad_o, SymbolicZero):
        grad_o = jnp.zeros_like(o)
    if isinstance(grad_lse, SymbolicZero):
        grad_lse = None
    named = dict(zip(NAMES, operands, strict=True))
    named |= {"o": o, "lse": lse, "grad_o": grad_o, "grad_lse": grad_lse}
    found = _call(options, named, backward=True, wanted=sorted(wanted, key=NAMES.index))
    return tuple(found.get(name) for name in NAMES)


attend.defvjp(_forward, _backward, symbolic_zeros=True)
