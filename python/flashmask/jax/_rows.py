# SPDX-License-Identifier: Apache-2.0
"""RowIndices: a mask held as row indices in an array of JAX."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax

from flashmask._arguments import integer, length
from flashmask._rows import check_row_indices


@jax.tree_util.register_pytree_node_class
@dataclass(frozen=True, eq=False)
class RowIndices:
    """A mask as `startend_row_indices`, int32 [batch, heads, columns, n]: a pytree whose values may be traced.

    flashmask.jax.from_cu_seqlens and its kin make them inside jit. The format is that of
    flashmask.masks.from_startend_row_indices; values outside [0, rows] are legal and are clipped. `rows` is the query
    length, None: as many as columns.

    `most_documents`, which invariant=True needs on a GPU: at most how many documents a batch entry has, each stretch of
    padding between them counted as one. Memory and tiles are set aside for so many; if there are more, the GPU prints a
    line that says so and stops, and so does the program. It is a part of the program, as `causal` is.
    from_cu_seqlens() says it inside jit; for others, `dataclasses.replace(indices, most_documents=32)`.
    """

    startend_row_indices: jax.Array
    causal: bool
    rows: int | None = None
    most_documents: int | None = None

    def __post_init__(self) -> None:
        check_row_indices("startend_row_indices", self.startend_row_indices, self.causal)
        if self.rows is not None:
            length("rows", self.rows)
        if self.most_documents is not None:
            integer("most_documents", self.most_documents, minimum=1)

    def tree_flatten(self) -> tuple[tuple[jax.Array], tuple[bool, int | None, int | None]]:
        """Returns the values, and what is known while tracing."""
        return (self.startend_row_indices,), (self.causal, self.rows, self.most_documents)

    @classmethod
    def tree_unflatten(cls, known: tuple[bool, int | None, int | None], values: tuple[Any]) -> RowIndices:
        """Wraps, unchecked, whatever JAX puts in place of the values while it transforms a pytree."""
        indices = cls.__new__(cls)
        names = "startend_row_indices", "causal", "rows", "most_documents"
        for name, value in zip(names, (*values, *known), strict=True):
            object.__setattr__(indices, name, value)
        return indices
