# SPDX-License-Identifier: Apache-2.0
"""Row indices on their way through a layer."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Indices(NamedTuple):
    """Row indices int32 [B or 1, heads, Sk, n] and how to read them; without RowIndices' checks, to save time."""

    vectors: Tensor
    causal: bool


def read(indices: Tensor, causal: bool) -> Indices:
    """Wraps a layer's row indices; four vectors describe the whole mask, so they are never read causally."""
    return Indices(indices, causal and indices.shape[-1] != 4)
