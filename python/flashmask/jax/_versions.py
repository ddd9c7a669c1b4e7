# SPDX-License-Identifier: Apache-2.0
"""What differs between the supported versions of JAX, 0.6.2 to 0.10.2."""

from __future__ import annotations

import inspect
from typing import Any

import jax
from jax.experimental.custom_partitioning import SdyShardingRule

from flashmask.jax._site import Arrays

_SAYS_WHAT_IS_WHOLE = "need_replication_factors" in inspect.signature(SdyShardingRule.__init__).parameters


def _manual_axis_type(array: Any) -> Any:
    return getattr(jax.typeof(array), "manual_axis_type", None)  # from jax 0.10 on; vma before


def varying_axes(array: Any) -> frozenset[Any]:
    """The axes of a shard_map that an array differs along; empty outside of one and with check_vma=False."""
    kind = _manual_axis_type(array)
    return frozenset(getattr(jax.typeof(array), "vma", ()) if kind is None else kind.varying)


def vary_along(array: Any, axes: frozenset[Any]) -> Any:
    """Says that an array differs along more axes of a shard_map; its gradient is then summed along them."""
    missing = tuple(axes - varying_axes(array))
    if not missing:
        return array
    if hasattr(jax.lax, "pcast"):
        return jax.lax.pcast(array, missing, to="varying")
    return jax.lax.pvary(array, missing)


def vary_alike(arrays: list[Any]) -> list[Any]:
    """Lets all arrays differ along the axes of a shard_map that any does: gradients of shared ones are then summed."""
    axes = frozenset[Any]().union(*(varying_axes(each) for each in arrays if each is not None))
    return [None if each is None else vary_along(each, axes) for each in arrays]


def result_like(shape: tuple[int, ...], dtype: Any, arrays: Arrays) -> jax.ShapeDtypeStruct:
    """The type of a result that differs along every axis of a shard_map that an operand differs along."""
    axes = frozenset[Any]().union(*map(varying_axes, arrays))
    if not axes:
        return jax.ShapeDtypeStruct(shape, dtype)
    varying = next(array for array in arrays if varying_axes(array))
    kind = _manual_axis_type(varying)
    if kind is None:
        return jax.ShapeDtypeStruct(shape, dtype, vma=axes)
    everywhere = jax.sharding.PartitionSpec(*[None] * len(shape))
    return jax.ShapeDtypeStruct(
        shape,
        dtype,
        manual_axis_type=type(kind)(varying=axes),
        sharding=jax.sharding.NamedSharding(jax.typeof(varying).sharding.mesh, everywhere),
    )


def sharding_rule(operands: Any, results: Any, replicated: tuple[str, ...], **sizes: int) -> SdyShardingRule:
    """A rule of Shardy's. Older ones cannot say what is not split; the partition asks for it all the same."""
    if _SAYS_WHAT_IS_WHOLE:
        return SdyShardingRule(operands, results, need_replication_factors=replicated, **sizes)
    return SdyShardingRule(operands, results, **sizes)
