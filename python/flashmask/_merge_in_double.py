# SPDX-License-Identifier: Apache-2.0
"""merge() for float64 arrays, which the compiled library does not have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


def merge_in_double(o: Sequence[Array], lse: Sequence[Array]) -> tuple[Array, Array]:
    """Merges o (batch, rows, heads, dim) and lse (batch, heads, rows) of all parts."""
    lse = [np.where(np.isinf(each), -np.inf, each) for each in lse]  # FlashAttention writes +inf for rows of nothing
    with np.errstate(divide="ignore", invalid="ignore"):
        largest = np.max(lse, axis=0)
        shift = np.where(np.isinf(largest), 0.0, largest)
        merged_lse = np.log(np.sum([np.exp(each - shift) for each in lse], axis=0)) + shift
    merged = np.zeros_like(o[0])
    for values, each in zip(o, lse, strict=True):
        weights = _beside_o(_weight(each, merged_lse))
        merged += np.where(weights == 0, 0.0, weights * values)
    return merged, merged_lse


def merge_backward_in_double(
    o: Sequence[Array], lse: Sequence[Array], merged: tuple[Array, Array], grad_o: Array, grad_lse: Array | None
) -> tuple[list[Array], list[Array]]:
    """Returns the gradients of o and lse of all parts."""
    grads_o, grads_lse = [], []
    for values, each in zip(o, lse, strict=True):
        weights = _weight(each, merged[1])
        grads_o.append(np.where(_beside_o(weights) == 0, 0.0, _beside_o(weights) * grad_o))
        moved = (grad_o * (values - merged[0])).sum(-1).swapaxes(1, 2)
        grads_lse.append(np.where(weights == 0, 0.0, weights * (moved if grad_lse is None else moved + grad_lse)))
    return grads_o, grads_lse


def _weight(part: Array, lse: Array) -> Array:
    with np.errstate(invalid="ignore"):
        return np.where(np.isinf(part), 0.0, np.exp(part - lse))


def _beside_o(weights: Array) -> Array:
    """Reshapes (batch, heads, rows) to (batch, rows, heads, 1)."""
    return weights.swapaxes(1, 2)[..., None]
