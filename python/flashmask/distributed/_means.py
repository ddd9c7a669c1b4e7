"""What is done with losses and logits of all ranks."""

from __future__ import annotations

import struct
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from flashmask.distributed._exchange import Exchange
from flashmask.distributed._group import Group, all_gather

_PAIR = struct.Struct("<dd")


def global_mean(loss_sum: Tensor, count: Tensor | float, group: Group) -> Tensor:
    """The sum of all ranks over the count of all ranks; its gradient is that of this rank's share times the ranks."""
    records = all_gather(group, _PAIR.pack(float(loss_sum.detach()), float(count)))
    sums, counts = (float(sum(each)) for each in zip(*map(_PAIR.unpack, records), strict=True))
    total = max(counts, 1.0)
    share: Tensor = loss_sum * (group.size / total)
    return share + (loss_sum.new_tensor(sums / total) - share.detach())


class _Unsharded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, everything: Exchange, group: Group) -> Tensor:
        """`tensor` (1, tokens held, ...)."""
        ctx.everything, ctx.group = everything, group
        (whole,) = everything.fetch(group, [tensor])
        return whole.clone() if whole is tensor else whole

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        (own,) = ctx.everything.give_back(ctx.group, [grad.contiguous()])
        return own, None, None


def unsharded(tensor: Tensor, dim: int, everything: Exchange, group: Group) -> Tensor:
    """All ranks' tokens, dimension `dim`, in their order."""
    whole: Tensor = _Unsharded.apply(tensor.movedim(dim, 0)[None], everything, group)  # type: ignore[no-untyped-call]
    return whole[0].movedim(0, dim)
