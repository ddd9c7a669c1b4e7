# SPDX-License-Identifier: Apache-2.0
"""RowIndices: a mask held as row indices in a torch tensor, on any device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flashmask._arguments import boolean, described, integer, traced_length
from flashmask._graph_break import breaks_graph

if TYPE_CHECKING:
    from os import PathLike

    import numpy as np
    import torch
    from matplotlib.figure import Figure

    from flashmask._explain import Explanation
    from flashmask._mask import Mask


@dataclass(frozen=True, eq=False, repr=False)
class RowIndices:
    """A mask as `startend_row_indices`, int32 [batch, heads, columns, n], on the device where it is used.

    flashmask.masks.from_cu_seqlens and similar builders make them without a host synchronisation, even inside
    torch.compile. The format is that of flashmask.masks.from_startend_row_indices; values outside [0, rows] are legal
    and are clipped. `rows` is the query length, None: as many as columns.

    `most_documents`, which from_cu_seqlens() knows, lets invariant=True do without the host too: at most how many
    documents a batch entry has, each stretch of padding between them counted as one. Memory and tiles are set aside for
    so many; if there are more, the GPU prints a line that says so and stops, and so does the program. None: the host
    counts them, for which it waits.
    """

    startend_row_indices: torch.Tensor
    causal: bool
    rows: int | None = None
    most_documents: int | None = None

    def __post_init__(self) -> None:
        check_row_indices("startend_row_indices", self.startend_row_indices, self.causal)
        if self.rows is not None:
            traced_length("rows", self.rows)
        if self.most_documents is not None:
            integer("most_documents", self.most_documents, minimum=1)
        _register_pytrees()

    @classmethod
    def _unchecked(cls, values: Any, causal: bool, rows: int | None, most_documents: int | None) -> RowIndices:
        """Wraps, unchecked, whatever torch puts in place of the tensor while it transforms a pytree."""
        indices = cls.__new__(cls)
        object.__setattr__(indices, "startend_row_indices", values)
        object.__setattr__(indices, "causal", causal)
        object.__setattr__(indices, "rows", rows)
        object.__setattr__(indices, "most_documents", most_documents)
        return indices

    def to(self, device: torch.device | str | int, *, non_blocking: bool = False) -> RowIndices:
        """Returns the same row indices on a device, as torch.Tensor.to(); themselves where they are there already."""
        moved = self.startend_row_indices.to(device, non_blocking=non_blocking)
        if moved is self.startend_row_indices:
            return self
        return RowIndices(moved, self.causal, self.rows, self.most_documents)

    @breaks_graph
    def to_mask(self) -> Mask:
        """Converts the row indices to a Mask on the host; waits for the device if the tensor is not on the CPU."""
        from flashmask.masks import from_startend_row_indices

        values = self.startend_row_indices.detach().cpu()
        return from_startend_row_indices(values, causal=self.causal, rows=self.rows)

    def to_dense(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Returns Mask.to_dense() of to_mask()."""
        return self.to_mask().to_dense()

    def explain(self, tile: tuple[int, int] = (128, 128)) -> Explanation:
        """Returns Mask.explain() of to_mask()."""
        return self.to_mask().explain(tile)

    def plot(self, path: str | PathLike[str] | None = None, **options: Any) -> Figure:
        """Returns Mask.plot() of to_mask(), with its options."""
        return self.to_mask().plot(path, **options)

    def __repr__(self) -> str:
        values = self.startend_row_indices
        rows = "" if self.rows is None else f", rows={self.rows}"
        return f"<flashmask.RowIndices {list(values.shape)} on {values.device}, causal={self.causal}{rows}>"

    def __str__(self) -> str:
        return str(self.to_mask())


def _register_pytrees() -> None:
    """Registers pytrees if torch was imported after this package; not while torch.compile traces."""
    import torch

    if not torch.compiler.is_compiling():
        from flashmask._torch.pytree import register

        register()


def one_name_of(startend_row_indices: Any, attn_mask_startend_row_indices: Any) -> Any:
    """Returns row indices passed under one of two names; raises ValueError if both are given."""
    if attn_mask_startend_row_indices is None:
        return startend_row_indices
    if startend_row_indices is not None:
        raise ValueError(
            "startend_row_indices and attn_mask_startend_row_indices are both given, two names of one thing; pass one"
        )
    return attn_mask_startend_row_indices


def check_row_indices(name: str, values: Any, causal: object) -> None:
    """Refuses all but int32 [batch, heads, columns, n] with an n that `causal` allows; reads no values."""
    boolean("causal", causal)
    if not (hasattr(values, "dtype") and hasattr(values, "shape")):
        raise TypeError(f"{name} is {described(values)}; expected an int32 tensor [batch, heads, columns, n]")
    if str(values.dtype).removeprefix("torch.") != "int32":
        raise TypeError(f"{name} holds {values.dtype} values; expected int32")
    if len(values.shape) != 4:
        raise ValueError(f"{name} has shape {list(values.shape)}; expected [batch, heads, columns, n]")
    allowed = (1, 2) if causal else (2, 4)
    if values.shape[3] not in allowed:
        raise ValueError(
            f"{name} has n = {values.shape[3]} vectors, shape {list(values.shape)}; with causal={causal} n is "
            f"{allowed[0]} or {allowed[1]}"
        )
