# SPDX-License-Identifier: Apache-2.0
"""Registers masks and RowIndices with torch: transforms see the tensors inside, and torch.load takes them as safe.

Nodes and LinearState are safe to load too.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.utils._pytree as pytree
from torch.fx._pytree import register_pytree_flatten_spec

from flashmask._linear_attention import LinearState
from flashmask._mask import Mask, _unpickle
from flashmask._nodes import _unpickle as _unpickle_nodes
from flashmask._rows import RowIndices
from flashmask.masks._trees import TreeMask, _unpickle_tree


@cache
def register() -> None:
    """Registers them, once."""
    pytree.register_pytree_node(
        Mask,
        lambda mask: ([mask.tensor], None),
        _unflatten_mask,
        serialized_type_name="flashmask.Mask",
        flatten_with_keys_fn=lambda mask: ([(pytree.GetAttrKey("tensor"), mask.tensor)], None),
    )
    pytree.register_pytree_node(
        TreeMask,
        lambda tree: ([tree.tensor], _positions(tree)),
        _unflatten_tree,
        serialized_type_name="flashmask.TreeMask",
        to_dumpable_context=list,
        from_dumpable_context=tuple,
        flatten_with_keys_fn=lambda tree: ([(pytree.GetAttrKey("tensor"), tree.tensor)], _positions(tree)),
    )
    pytree.register_pytree_node(
        RowIndices,
        lambda rows: ([rows.startend_row_indices], _context(rows)),
        _unflatten_rows,
        serialized_type_name="flashmask.RowIndices",
        to_dumpable_context=list,
        from_dumpable_context=tuple,
        flatten_with_keys_fn=_flatten_rows_with_keys,
    )
    register_pytree_flatten_spec(Mask, lambda mask, spec: [mask.tensor])
    register_pytree_flatten_spec(TreeMask, lambda mask, spec: [mask.tensor])
    register_pytree_flatten_spec(RowIndices, lambda rows, spec: [rows.startend_row_indices])
    # Bytes of masks may come from anywhere.
    torch.serialization.add_safe_globals([_unpickle, _unpickle_tree, RowIndices, _unpickle_nodes, LinearState])


def _unflatten_mask(leaves: Iterable[Any], context: None) -> Mask:
    (tensor,) = leaves
    return Mask._from_tensor(tensor)


def _positions(tree: TreeMask) -> tuple[int, ...]:
    return tuple(tree.positions.tolist())


def _unflatten_tree(leaves: Iterable[Any], context: tuple[int, ...]) -> TreeMask:
    (tensor,) = leaves
    tree = TreeMask._from_tensor(tensor)
    tree.positions = np.array(context, np.int64)
    return tree


_Context: TypeAlias = tuple[bool, int | None, int | None]


def _context(rows: RowIndices) -> _Context:
    return rows.causal, rows.rows, rows.most_documents


def _flatten_rows_with_keys(rows: RowIndices) -> tuple[list[Any], _Context]:
    leaf = (pytree.GetAttrKey("startend_row_indices"), rows.startend_row_indices)
    return [leaf], _context(rows)


def _unflatten_rows(leaves: Iterable[Any], context: _Context) -> RowIndices:
    (values,) = leaves
    return RowIndices._unchecked(values, *context)
