# SPDX-License-Identifier: Apache-2.0
"""The scheme "heads": exchanges some tokens of all heads for all tokens of some heads, and back.

Jacobs et al. 2023 (DeepSpeed-Ulysses), section 3.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from flashmask.distributed._group import Group
from flashmask.distributed._local import Local
from flashmask.distributed._parcels import Parcels, kinds_of, swapped
from flashmask.distributed._runs import tokens


def to_heads(tensors: Sequence[Tensor], local: Local, group: Group) -> list[Tensor]:
    """Turns tensors (batch, tokens held, heads, ...) into (batch, all tokens, heads / ranks, ...)."""
    shares = list(zip(*(each.chunk(local.ranks, 2) for each in tensors), strict=True))
    sent = Parcels((local.held,) * local.ranks, kinds_of(shares[0]), tensors[0].device)
    for rank, of_rank in enumerate(shares):
        sent.pack(rank, [[share] for share in of_rank])
    received = sent.sent(group, tuple(map(tokens, local.runs)))
    everything = local.everything
    cut = [received.of(rank, cuts) for rank, cuts in everything.cuts.items()]
    return [torch.cat(everything.ordered([of_rank[place] for of_rank in cut]), 1) for place in range(len(tensors))]


def to_tokens(tensors: Sequence[Tensor], local: Local, group: Group) -> list[Tensor]:
    """Turns tensors (batch, all tokens, heads / ranks, ...) into (batch, tokens held, heads, ...)."""
    received = swapped(group, tensors, local.runs, (local.held,) * local.ranks)
    sources = [received.of(rank, [local.held]) for rank in range(local.ranks)]
    return [torch.cat([source[place][0] for source in sources], 2) for place in range(len(tensors))]
