# SPDX-License-Identifier: Apache-2.0
"""Registers masks and RowIndices with torch: transforms see the tensors inside, and torch.load takes them as safe.

Nodes and LinearState are safe to load too.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from torch import Tensor

from flashmask._linear_attention import LinearState
from flashmask._mask import Mask, _unpickle
from flashmask._nodes import _unpickle as _unpickle_nodes
from flashmask._rows import RowIndices
from flashmask._torch.leaf import register_leaf
from flashmask.masks._trees import TreeMask, _unpickle_tree


@cache
def register() -> None:
    """Registers them, once."""
    register_leaf(Mask, "tensor", lambda mask: None, lambda tensor, context: Mask._from_tensor(tensor))
    register_leaf(TreeMask, "tensor", lambda tree: tuple(tree.positions.tolist()), _tree_of, tuple)
    register_leaf(
        RowIndices,
        "startend_row_indices",
        lambda rows: (rows.causal, rows.rows, rows.most_documents),
        lambda values, context: RowIndices._unchecked(values, *context),
        tuple,
    )
    # Bytes of masks may come from anywhere.
    torch.serialization.add_safe_globals([_unpickle, _unpickle_tree, RowIndices, _unpickle_nodes, LinearState])


def _tree_of(tensor: Tensor, positions: tuple[int, ...]) -> TreeMask:
    tree = TreeMask._from_tensor(tensor)
    tree.positions = np.array(positions, np.int64)
    return tree
