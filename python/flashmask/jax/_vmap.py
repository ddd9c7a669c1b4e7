# SPDX-License-Identifier: Apache-2.0
"""jax.vmap: the mapped axis becomes part of the batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax.custom_batching import custom_vmap

from flashmask.jax._site import READS, SHARED, Arrays, Site


def with_vmap(site: Site, function: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
    """Returns `function`(site, *arrays) of the arrays alone, with a rule for jax.vmap."""

    def rule(count: int, mapped: list[bool], *arrays: Any) -> tuple[tuple[Any, ...], tuple[bool, ...]]:
        if "words" in site.names:
            raise NotImplementedError(
                "flashmask.jax.attention: jax.vmap of a call with dropout, which would drop the same probabilities in "
                "every mapped entry; make the mapped axis a part of the batch"
            )
        site.check_unsplit("b", "jax.vmap makes the mapped axis a part of the batch")
        if any(is_mapped for name, is_mapped in zip(site.names, mapped, strict=True) if name in READS):
            raise NotImplementedError(
                "flashmask.jax.attention: jax.vmap over an operand of a function of scores, which all mapped entries "
                "share; make the mapped axis a part of the batch, and index the operand by b"
            )
        single = [array[0] if is_mapped else array for array, is_mapped in zip(arrays, mapped, strict=True)]
        batch, heads, rows = site.sizes(single)
        folded, merged = site.without_plan(), []
        for name, one, array, is_mapped in zip(site.names, single, arrays, mapped, strict=True):
            if name == "plan":
                continue
            if name == "mask" and (is_mapped or one.shape[0] > 1):
                folded = folded.without_mask_name()
            if name in site.results and name in SHARED:  # each entry has a gradient of its own
                merged.append(_fold_shared(array if is_mapped else _of_each(array, count), count, True, batch))
            elif name in READS:
                merged.append(array)
            elif name in SHARED:
                merged.append(_fold_shared(array, count, is_mapped, batch))
            elif name == "alibi_slopes" and one.ndim == 1:
                merged.append(jnp.repeat(array, batch, axis=0) if is_mapped else array)
            elif name == "sinks" and one.ndim == 1 and not is_mapped and name not in site.wanted:
                merged.append(array)
            elif name == "sinks" and one.ndim == 1:
                of_each = array if is_mapped else _of_each(array, count)
                of_rows = jnp.broadcast_to(of_each[:, None, :, None], (count, batch, heads, rows))
                merged.append(of_rows.reshape(count * batch, heads, rows))
            else:
                merged.append(_fold(array, count, is_mapped))
        results = with_vmap(folded, function)(*merged)
        split = [result.reshape(count, -1, *result.shape[1:]) for result in results]
        return _own(site, single, split), (True,) * len(split)

    mappable: Callable[..., tuple[Any, ...]] = custom_vmap(lambda *arrays: function(site, *arrays))
    mappable.def_vmap(rule)  # type: ignore[attr-defined]
    return mappable


def _of_each(array: Any, count: int) -> Any:
    """Gives every mapped entry the array."""
    return jnp.broadcast_to(array, (count, *array.shape))


def _fold(array: Any, count: int, is_mapped: bool) -> Any:
    """Joins the mapped axis and the batch."""
    each = array if is_mapped else _of_each(array, count)
    return each.reshape(count * each.shape[1], *each.shape[2:])


def _fold_shared(array: Any, count: int, is_mapped: bool, batch: int) -> Any:
    """Joins the mapped axis and the batch of an operand in SHARED; one that all share stays one."""
    if not is_mapped and array.shape[0] == 1:
        return array
    each = array if is_mapped else array[None]
    return _fold(jnp.broadcast_to(each, (count, batch, *each.shape[2:])), count, True)


def _own(site: Site, single: Arrays, results: list[Any]) -> tuple[Any, ...]:
    """Sums the gradients of sinks and of a bias over what shares one."""
    given, found = site.given(single), dict(zip(site.results, results, strict=True))
    if "sinks" in found and given["sinks"].ndim == 1:
        found["sinks"] = found["sinks"].sum((1, 3)).astype(given["sinks"].dtype)
    if "bias" in found and given["bias"].shape[0] == 1:
        found["bias"] = found["bias"].sum(1, keepdims=True).astype(given["bias"].dtype)
    return tuple(found.values())
