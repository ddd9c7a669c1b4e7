# SPDX-License-Identifier: Apache-2.0
"""Masks of prefix trees from tensors: built on the tensors' device, without a host synchronisation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flashmask._arguments import traced_length
from flashmask._rows import RowIndices
from flashmask.masks._tensors import check_integers

if TYPE_CHECKING:
    import torch


def from_tree(parents: torch.Tensor, lengths: torch.Tensor, tokens: int | None = None) -> RowIndices:
    """A forest, such as rollouts that share prefixes: each node sees its ancestors and itself, causally.

    Node k holds lengths[k] tokens, which follow those of node k - 1; its parent is node parents[k], -1 for a root.
    Nodes come depth-first: parents before children, every subtree in one piece. Both tensors are int32 or int64,
    [nodes] or [batch, nodes]; an entry with fewer nodes than another is filled up with roots of no tokens. `tokens`
    past the sum of the lengths are padding: they see nothing and no row sees them.

    The result is [batch or 1, 1, tokens, 1]: a key is seen from its own row to the end of its node's subtree. Values
    are not checked on a device or inside torch.compile. On the host, ValueError names a parent that is not an earlier
    node (every cycle has one) and a subtree that is not in one piece. `tokens` = None stands for the largest sum of
    lengths in the batch, for which the host waits.
    """
    import torch

    check_integers("parents", parents, (1, 2))
    check_integers("lengths", lengths, (1, 2))
    if parents.shape != lengths.shape or parents.device != lengths.device:
        raise ValueError(
            f"parents is {list(parents.shape)} on {parents.device}, lengths {list(lengths.shape)} on "
            f"{lengths.device}; expected one value of both for each node, on one device"
        )
    from flashmask._torch.packing import can_be_read, ends_passed
    from flashmask._torch.subtrees import subtree_sums

    above, sizes = (each.long() if each.ndim == 2 else each.long()[None] for each in (parents, lengths))
    total = int(sizes.sum(1).max()) if tokens is None else traced_length("tokens", tokens)
    if can_be_read(parents):
        _check_values(above, sizes, total)
    ends = sizes.cumsum(1)
    node = ends_passed(ends, total)  # in padding: the number of nodes
    subtree_ends = ends - sizes + subtree_sums(above, sizes)
    lower = torch.nn.functional.pad(subtree_ends, (0, 1)).gather(1, node)
    return RowIndices(lower.clamp(0, total).to(torch.int32)[:, None, :, None], causal=True)


def _check_values(parents: torch.Tensor, lengths: torch.Tensor, tokens: int) -> None:
    """Checks parents and lengths [batch, nodes] on the host."""
    import torch

    from flashmask._torch.subtrees import subtree_sums

    if (lengths < 0).any():
        raise ValueError(f"lengths holds {int(lengths.min())}; expected 0 tokens or more in each node")
    if (sums := lengths.sum(1)).gt(tokens).any():
        raise ValueError(f"lengths sum to {int(sums.max())}; expected at most tokens = {tokens}")
    nodes = torch.arange(parents.shape[1])
    if (wrong := (parents < -1) | (parents >= nodes)).any():
        raise ValueError(
            f"{_first(wrong, parents)}; expected an earlier node, or -1 for a root: nodes come depth-first, never "
            "in a circle"
        )
    behind = nodes + subtree_sums(parents, torch.ones_like(parents))  # one past the last node below each
    if (torn := (parents >= 0) & (behind > behind.gather(1, parents.clamp(min=0)))).any():
        raise ValueError(
            f"{_first(torn, parents)}, but another subtree lies between the two; expected nodes depth-first, every "
            "subtree in one piece"
        )


def _first(wrong: torch.Tensor, parents: torch.Tensor) -> str:
    entry, node = wrong.nonzero()[0].tolist()
    name = f"parents[{node}]" if len(parents) == 1 else f"parents[{entry}, {node}]"
    return f"{name} is {int(parents[entry, node])}"
