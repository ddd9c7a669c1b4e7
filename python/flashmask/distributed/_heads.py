"""The scheme "heads": all tokens of some heads in place of some tokens of all heads, and back.

Jacobs et al. 2023 (DeepSpeed-Ulysses), section 3.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from flashmask.distributed._exchange import Parcels, pack, tokens
from flashmask.distributed._group import Group
from flashmask.distributed._local import Local


def to_heads(tensors: Sequence[Tensor], local: Local, group: Group) -> list[Tensor]:
    """(batch, all tokens, heads / ranks, ...) of tensors (batch, tokens held, heads, ...)."""
    shares = list(zip(*(each.tensor_split(local.ranks, 2) for each in tensors), strict=True))
    sent = Parcels([local.held] * local.ranks, shares[0])
    for rank, of_rank in enumerate(shares):
        for part, each in zip(sent.of(rank), of_rank, strict=True):
            part.copy_(each)
    arrived = sent.sent(group, list(map(tokens, local.runs)))
    received = [arrived.of(rank) for rank in range(local.ranks)]
    return [
        torch.cat([received[rank][place][:, begin:end] for rank, begin, end in local.everything.pieces], 1)
        for place in range(len(tensors))
    ]


def to_tokens(tensors: Sequence[Tensor], local: Local, group: Group) -> list[Tensor]:
    """(batch, tokens held, heads, ...) of tensors (batch, all tokens, heads / ranks, ...)."""
    sent = Parcels(list(map(tokens, local.runs)), tensors)
    for rank, runs in enumerate(local.runs):
        if runs:
            pack(sent.of(rank), tensors, runs)
    arrived = sent.sent(group, [local.held] * local.ranks)
    received = [arrived.of(rank) for rank in range(local.ranks)]
    return [torch.cat([of_rank[place] for of_rank in received], 2) for place in range(len(tensors))]
