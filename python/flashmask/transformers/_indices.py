# SPDX-License-Identifier: Apache-2.0
"""Row indices on their way through a layer."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Indices(NamedTuple):
    """Row indices int32 [B or 1, heads, Sk, n] and how to read them; without RowIndices' checks, which cost a layer."""

    vectors: Tensor
    causal: bool


def read(indices: Tensor, causal: bool) -> Indices:
    """Row indices of a causal layer or of another; four vectors say everything themselves."""
    return Indices(indices, causal and indices.shape[-1] != 4)
