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
    counts, own = list(map(tokens, local.runs)), local.rank
    shapes = [[_shape(each, count, each.shape[2] // local.ranks) for each in tensors] for count in counts]
    sent = Parcels([shapes[own]] * local.ranks, tensors)
    for rank in range(local.ranks):
        for part, each in zip(sent.of(rank), tensors, strict=True):
            part.copy_(each[:, :, _part(each.shape[2], rank, local.ranks)])
    arrived = sent.sent(group, shapes, tensors)
    received = [arrived.of(rank) for rank in range(local.ranks)]
    return [
        torch.cat([received[rank][place][:, begin:end] for rank, begin, end in local.everything.pieces], 1)
        for place in range(len(tensors))
    ]


def to_tokens(tensors: Sequence[Tensor], local: Local, group: Group) -> list[Tensor]:
    """(batch, tokens held, heads, ...) of tensors (batch, all tokens, heads / ranks, ...)."""
    counts, own = list(map(tokens, local.runs)), local.rank
    shapes = [[_shape(each, count, each.shape[2]) for each in tensors] for count in counts]
    sent = Parcels(shapes, tensors)
    for rank, runs in enumerate(local.runs):
        if runs:
            pack(sent.of(rank), tensors, runs)
    arrived = sent.sent(group, [shapes[own]] * local.ranks, tensors)
    received = [arrived.of(rank) for rank in range(local.ranks)]
    return [torch.cat([of_rank[place] for of_rank in received], 2) for place in range(len(tensors))]


def _shape(tensor: Tensor, count: int, heads: int) -> tuple[int, ...]:
    return (tensor.shape[0], count, heads, *tensor.shape[3:])


def _part(heads: int, rank: int, ranks: int) -> slice:
    return slice(rank * heads // ranks, (rank + 1) * heads // ranks)
