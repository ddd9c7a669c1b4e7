# SPDX-License-Identifier: Apache-2.0
"""RowIndices: a mask held as row indices in an array of JAX."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax

from flashmask._arguments import length
from flashmask._rows import check_row_indices


@jax.tree_util.register_pytree_node_class
@dataclass(frozen=True, eq=False)
class RowIndices:
    """A mask as `startend_row_indices`, int32 [batch, heads, columns, n]: a pytree whose values may be traced.

    flashmask.jax.from_cu_seqlens and its kin make them inside jit. The format is that of
    flashmask.masks.from_startend_row_indices; values outside [0, rows] are legal and are clipped. `rows` is the query
    length, None: as many as columns.
    """

    startend_row_indices: jax.Array
    causal: bool
    rows: int | None = None

    def __post_init__(self) -> None:
        check_row_indices("startend_row_indices", self.startend_row_indices, self.causal)
        if self.rows is not None:
            length("rows", self.rows)

    def tree_flatten(self) -> tuple[tuple[jax.Array], tuple[bool, int | None]]:
        """Returns the values, and what is known while tracing."""
        return (self.startend_row_indices,), (self.causal, self.rows)

    @classmethod
    def tree_unflatten(cls, known: tuple[bool, int | None], values: tuple[Any]) -> RowIndices:
        """Wraps, unchecked, whatever JAX puts in place of the values while it transforms a pytree."""
        indices = cls.__new__(cls)
        object.__setattr__(indices, "startend_row_indices", values[0])
        object.__setattr__(indices, "causal", known[0])
        object.__setattr__(indices, "rows", known[1])
        return indices
