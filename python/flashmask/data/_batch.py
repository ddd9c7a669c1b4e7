# SPDX-License-Identifier: Apache-2.0
"""The batches that the packers return."""

from __future__ import annotations

from torch import Tensor

from flashmask._rows import RowIndices


class Batch(dict[str, Tensor]):
    """Tensors by the names under which a model takes them, and others that belong to the batch."""

    @property
    def mask(self) -> RowIndices:
        """The mask, for flashmask.attention(); its to_mask() draws and explains it."""
        return RowIndices(self["startend_row_indices"], causal=True)
