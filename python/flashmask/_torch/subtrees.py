# SPDX-License-Identifier: Apache-2.0
"""Sums over the subtrees of forests. Imported only where torch is."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad


def subtree_sums(parents: Tensor, values: Tensor) -> Tensor:
    """Sums integers [batch, nodes] over each node and all nodes below it; int64 [batch, nodes].

    `parents` are as in flashmask.masks.from_tree(). In a round every node holds the sum over the nodes that are fewer
    than `reach` steps below it, and adds it to the node `reach` steps above. `reach` doubles from 1 up to `nodes`, so a
    compiled graph serves all trees with the same number of doublings.
    """
    batch, nodes = parents.shape
    top = torch.arange(nodes + 1, device=parents.device)[-1:]  # a node above all roots; a number would be compiled in
    above = torch.where(parents < 0, top, parents.long()).minimum(top)
    above = torch.cat([above, top.expand(batch, 1)], 1)
    sums = pad(values.long(), (0, 1))
    reach = 1
    while reach < nodes:
        sums = sums.scatter_add(1, above, sums)
        above = above.gather(1, above)
        reach *= 2
    return sums[:, :-1]
