# SPDX-License-Identifier: Apache-2.0
"""jit over sharded arrays: batch and kv heads are split over devices, and nothing is gathered for that.

Sequences, dims and the query heads of one kv head lie whole on each device.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax.experimental.custom_partitioning import CompoundFactor, custom_partitioning
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from flashmask.jax._site import SHARED, Site
from flashmask.jax._versions import sharding_rule


class _Split(NamedTuple):
    """The axes of a mesh that batch and heads are split over."""

    batch: tuple[str, ...]
    heads: tuple[str, ...]


def with_partitioning(function: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
    """Returns `function`(site, *arrays), which XLA may run on the parts of sharded arrays."""

    def partitioned(site: Site, *arrays: Any) -> tuple[Any, ...]:
        split_call = custom_partitioning(lambda *own: function(site, *own))
        split_call.def_partition(
            partition=lambda mesh, operands, results: _partition(site, function, mesh, operands, results),
            infer_sharding_from_operands=lambda mesh, operands, results: _result_shardings(
                site, mesh, operands, results, _split_of(site, operands)
            ),
            sharding_rule=_rule(site, arrays),
        )
        return tuple(split_call(*arrays))

    return partitioned


def _split_of(site: Site, operands: Any) -> _Split:
    """How q, k and v are split; where they differ, as the first that is."""
    given = site.given(operands)
    sizes = dict(zip(site.axes("k", 4), given["k"].shape, strict=True))
    split: dict[str, tuple[str, ...]] = {"b": (), "h": ()}
    for name in ("k", "v", "q"):
        sharding = given[name].sharding
        if not isinstance(sharding, NamedSharding):
            continue
        for axis, over in zip(site.axes(name, 4), sharding.spec, strict=False):
            names = over if isinstance(over, tuple) else () if over is None else (over,)
            taken = set(split["b"] + split["h"])  # an axis of the mesh splits one of them
            if axis not in split or split[axis] or taken & set(names):
                continue
            if sizes[axis] % math.prod(sharding.mesh.shape[each] for each in names) == 0:
                split[axis] = names
    return _Split(split["b"], split["h"])


def _sharding(site: Site, mesh: Mesh, name: str, shape: tuple[int, ...], split: _Split) -> NamedSharding:
    """Returns the sharding of an operand, or of the result of that name. Axes of size 1 that serve all stay whole."""
    over = {"b": split.batch or None, "h": split.heads or None}
    axes = site.axes(name, len(shape))
    spec = [over.get(axis) for axis in axes]
    if name in SHARED:
        spec = [each if size > 1 else None for each, size in zip(spec, shape, strict=True)]
    return NamedSharding(mesh, PartitionSpec(*spec))


def _result_shardings(site: Site, mesh: Mesh, operands: Any, results: Any, split: _Split) -> tuple[NamedSharding, ...]:
    return tuple(
        _sharding(site, mesh, name, result.shape, split) for name, result in zip(site.results, results, strict=True)
    )


def _partition(site: Site, function: Any, mesh: Mesh, operands: Any, results: Any) -> tuple[Any, ...]:
    split = _split_of(site, operands)
    if "words" in site.names and (split.batch or split.heads):
        raise NotImplementedError(
            "flashmask.jax.attention: dropout over arrays that jit splits, each part of which would drop the same "
            "probabilities; call it inside jax.shard_map with jax.random.fold_in(key, jax.lax.axis_index(...))"
        )
    for place, over in (("b", split.batch), ("h", split.heads)):
        if over:
            site.check_unsplit(place, f"jit splits the arrays over {', '.join(over)}")
    given = site.given(operands)
    own = site.without_plan() if split.batch or split.heads else site
    mask = given.get("mask")
    if mask is not None and ((split.batch and mask.shape[0] > 1) or (split.heads and mask.shape[1] > 1)):
        own = own.without_mask_name()

    def local(*arrays: Any) -> tuple[Any, ...]:
        local_arrays = site.given(arrays)
        computed: tuple[Any, ...] = function(own, *(local_arrays[name] for name in own.names))
        if not site.backward:
            return computed
        return tuple(
            jax.lax.psum(result, over) if (over := _summed_over(site, name, given[name].shape, split)) else result
            for name, result in zip(site.results, computed, strict=True)
        )

    shardings = tuple(_sharding(site, mesh, name, array.shape, split) for name, array in given.items())
    return mesh, local, _result_shardings(site, mesh, operands, results, split), shardings


def _summed_over(site: Site, name: str, shape: tuple[int, ...], split: _Split) -> tuple[str, ...]:
    """Returns the axes of the mesh over which gradients of one operand add up: those that split what shares it."""
    axes = site.axes(name, len(shape))
    own = {axis for axis, size in zip(axes, shape, strict=True) if name not in SHARED or size > 1}
    return split.batch * ("b" not in own) + split.heads * ("h" not in own)


def _rule(site: Site, arrays: Any) -> Any:
    """Shardy's rule for a site: factors b, k (kv heads), and g (query heads of a kv head), which is not split."""
    given = site.given(arrays)
    heads = site.axes("k", 4).index("h")
    batch, query_heads, kv_heads = given["q"].shape[0], given["q"].shape[heads], given["k"].shape[heads]
    grouped = CompoundFactor("k", "g")
    whole: list[str] = []  # factors that are not split, in the order in which they come up

    def factor(axis: str, size: int, shared: bool) -> Any:
        """The factor of an axis; `shared`: one that is 1 long serves all."""
        if axis == "b" and not (shared and size == 1):
            return "b"
        if axis == "h" and size == kv_heads:
            return "k"
        if axis == "h" and not (shared and size == 1):
            whole.extend(["g"] * ("g" not in whole))
            return grouped
        whole.append(f"w{len(whole)}")
        return whole[-1]

    def factors(name: str, shape: tuple[int, ...]) -> tuple[Any, ...]:
        axes = site.axes(name, len(shape))
        return tuple(factor(axis, size, name in SHARED) for axis, size in zip(axes, shape, strict=True))

    operands = tuple(factors(name, array.shape) for name, array in given.items())
    shapes = {name: array.shape for name, array in given.items()}
    if not site.backward:
        shapes |= {"o": given["q"].shape, "lse": (batch, query_heads, 1)}
    results = tuple(factors(name, shapes[name]) for name in site.results)
    group = {"g": query_heads // kv_heads} if "g" in whole else {}
    return sharding_rule(operands, results, tuple(whole), **group)
