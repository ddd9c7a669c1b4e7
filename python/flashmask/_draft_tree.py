# SPDX-License-Identifier: Apache-2.0
"""Trees of drafted tokens, as decode_attention() takes them."""

from __future__ import annotations

import functools
from operator import index
from typing import Any, NamedTuple

from flashmask._arguments import described, integers, is_tensor
from flashmask._mask import Mask


class DraftTree(NamedTuple):
    """Positions of nodes in depth-first order, where each node's descendants directly follow it."""

    position: tuple[int, ...]
    """Position of each node."""
    end: tuple[int, ...]
    """One past the position of each node's last descendant."""
    depth: tuple[int, ...]
    """How many ancestors each node has."""

    @property
    def is_in_order(self) -> bool:
        """Whether the nodes were given in depth-first order."""
        return self.position == tuple(range(len(self.position)))


def draft_tree(tree: Any, nodes: int) -> DraftTree:
    """Makes a tree from parents [nodes], or a Mask [nodes, nodes] in which each node sees its ancestors and itself."""
    import torch

    if isinstance(tree, Mask):
        return _known(_parents_of_mask(tree, nodes))
    if isinstance(tree, (list, tuple)) and all(type(parent) is int for parent in tree):
        parents = tuple(tree)  # torch.compile can trace this
    elif is_tensor(tree) and tree.device.type != "cpu":
        raise TypeError(f"tree is {described(tree)} on {tree.device}; its order is found on the CPU: pass tree.cpu()")
    else:
        parents = tuple(integers("tree", tree).tolist())
    if len(parents) != nodes:
        raise ValueError(f"tree has {len(parents)} nodes; expected {nodes}, one for each row of q")
    return _laid_out(parents) if torch.compiler.is_compiling() else _known(parents)


def _laid_out(parents: tuple[int, ...]) -> DraftTree:
    parents = tuple([index(parent) for parent in parents])  # constants of the graph that torch.compile traces
    sizes = [1] * len(parents)
    for node in range(len(parents) - 1, -1, -1):
        parent = parents[node]
        if not -1 <= parent < node:
            raise ValueError(
                f"tree[{node}] is {parent}; expected a parent that comes before the node, or -1 for a root"
            )
        if parent >= 0:
            sizes[parent] += sizes[node]
    position: list[int] = []
    depth: list[int] = []
    free = [0] * (len(parents) + 1)  # where each node's next child goes; the last entry is for the roots
    for node, parent in enumerate(parents):
        position.append(free[parent])
        free[parent] += sizes[node]
        free[node] = position[node] + 1
        depth.append(depth[parent] + 1 if parent >= 0 else 0)
    ends = tuple(first + size for first, size in zip(position, sizes, strict=True))
    return DraftTree(tuple(position), ends, tuple(depth))


_known = functools.lru_cache(maxsize=64)(_laid_out)


@functools.lru_cache(maxsize=64)
def _parents_of_mask(mask: Mask, nodes: int) -> tuple[int, ...]:
    shape = mask.shape
    if (shape.batch, shape.heads, shape.rows, shape.columns) != (1, 1, nodes, nodes):
        raise ValueError(
            f"tree is a mask of {list(shape)}; expected [1, 1, {nodes}, {nodes}]: drafted tokens alone, with no "
            "prefix, one for each row of q"
        )
    visible = mask.to_dense().reshape(nodes, nodes)
    seen = [{int(column) for column in row.nonzero()[0]} for row in visible]
    parents = []
    for node, own in enumerate(seen):
        above = own - {node}
        parent = max(above, key=lambda other: len(seen[other]), default=-1)
        if node not in own or above != (seen[parent] if parent >= 0 else set()):
            raise ValueError(
                f"tree is a mask in which row {node} does not see itself, one earlier token and what that one sees; "
                "expected a tree's, such as masks.medusa_tree() and masks.tree_in_order() make"
            )
        parents.append(parent)
    return tuple(parents)
