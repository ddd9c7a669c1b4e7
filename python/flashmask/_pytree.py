"""Makes Mask and RowIndices pytrees, so that torch transforms see the tensors inside. Imported with torch only."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch.utils._pytree as pytree

from flashmask._mask import Mask
from flashmask._rows import RowIndices

_registered = False


def register() -> None:
    """Registers both, once."""
    global _registered  # noqa: PLW0603
    if _registered:
        return
    _registered = True
    pytree.register_pytree_node(
        Mask,
        _flatten_mask,
        _unflatten_mask,
        serialized_type_name="flashmask.Mask",
        flatten_with_keys_fn=_flatten_mask_with_keys,
    )
    pytree.register_pytree_node(
        RowIndices,
        _flatten_rows,
        _unflatten_rows,
        serialized_type_name="flashmask.RowIndices",
        flatten_with_keys_fn=_flatten_rows_with_keys,
    )


def _flatten_mask(mask: Mask) -> tuple[list[Any], None]:
    return [mask.tensor], None


def _flatten_mask_with_keys(mask: Mask) -> tuple[list[Any], None]:
    return [(pytree.GetAttrKey("tensor"), mask.tensor)], None


def _unflatten_mask(leaves: Iterable[Any], context: None) -> Mask:
    (tensor,) = leaves
    return Mask._from_tensor(tensor)


def _flatten_rows(indices: RowIndices) -> tuple[list[Any], tuple[bool, int | None]]:
    return [indices.startend_row_indices], (indices.causal, indices.rows)


def _flatten_rows_with_keys(indices: RowIndices) -> tuple[list[Any], tuple[bool, int | None]]:
    leaf = (pytree.GetAttrKey("startend_row_indices"), indices.startend_row_indices)
    return [leaf], (indices.causal, indices.rows)


def _unflatten_rows(leaves: Iterable[Any], context: tuple[bool, int | None]) -> RowIndices:
    (values,) = leaves
    return RowIndices._unchecked(values, *context)
