# SPDX-License-Identifier: Apache-2.0
"""A batch of sequences and its nodes: the check that they fit, and arrays on the device of the tensors."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from flashmask._arguments import AnyArray, described
from flashmask._nodes import Nodes


def nodes_of_batch(nodes: Nodes, name: str, tensor: Tensor) -> Nodes:
    """Returns the nodes of all tokens of a tensor (batch, sequence, ...); those of one entry count for each."""
    if not isinstance(nodes, Nodes):
        raise TypeError(f"nodes is {described(nodes)}; expected flashmask.Nodes, as flashmask.nodes(mask) returns them")
    if tensor.ndim < 2:
        raise ValueError(f"{name} has shape {list(tensor.shape)}; expected (batch, sequence, ...)")
    batch, length = tensor.shape[:2]
    if nodes.tokens == batch * length:
        return nodes
    if nodes.tokens == length:
        return nodes.repeated(batch)
    raise ValueError(
        f"{name} has shape {list(tensor.shape)}, and the nodes have {nodes.tokens:,} tokens; expected a sequence of "
        "that many, or a batch with that many in all"
    )


def on_device(values: AnyArray, device: torch.device) -> Tensor:
    """Returns an array as a tensor on a device."""
    return torch.from_numpy(np.ascontiguousarray(values)).to(device)
