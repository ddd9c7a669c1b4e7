# SPDX-License-Identifier: Apache-2.0
"""Losses and logits of all ranks: their mean, and all tokens together."""

from __future__ import annotations

import struct
from typing import Any

import torch
from torch import Tensor

from flashmask._arguments import described
from flashmask._torch.autograd import once_differentiable
from flashmask.distributed._exchange import Exchange
from flashmask.distributed._group import Group, all_gather

_PAIR = struct.Struct("<dd")


def global_mean(loss_sum: Tensor, count: Tensor | float, group: Group) -> Tensor:
    """Divides the sum of all ranks by their count; the gradient is that of this rank's share times the rank count."""
    if loss_sum.numel() != 1:
        raise ValueError(f"loss_sum has shape {list(loss_sum.shape)}; expected one number, the sum of this rank's")
    records = all_gather(group, _PAIR.pack(float(loss_sum.detach()), _number(count)))
    sums, counts = (float(sum(each)) for each in zip(*map(_PAIR.unpack, records), strict=True))
    total = counts or 1.0  # if no token has a label, the sum is 0 too
    share: Tensor = loss_sum * (group.size / total)
    return share + (loss_sum.new_tensor(sums / total) - share.detach())


def _number(count: Any) -> float:
    try:
        found = float(count)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"count is {described(count)}; expected a number, or a tensor of one") from None
    if not found >= 0:
        raise ValueError(f"count is {found}; expected how many of this rank's tokens have a label")
    return found


class _Unsharded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, everything: Exchange, group: Group) -> Tensor:
        """`tensor` is (1, tokens held, ...)."""
        ctx.everything, ctx.group = everything, group
        (whole,) = everything.fetch(group, [tensor])
        return whole.clone() if whole is tensor else whole

    @staticmethod
    @once_differentiable("what Sharding.unshard() returns is differentiable once; leave create_graph out")
    def backward(ctx: Any, grad: Tensor) -> Any:
        (own,) = ctx.everything.give_back(ctx.group, [grad.clone(memory_format=torch.contiguous_format)], grad.dtype)
        return own, None, None


def unsharded(tensor: Tensor, dim: int, everything: Exchange, group: Group) -> Tensor:
    """Returns the tokens of all ranks along dimension `dim`, in the order of the sequence."""
    whole: Tensor = _Unsharded.apply(tensor.movedim(dim, 0)[None], everything, group)  # type: ignore[no-untyped-call]
    return whole[0].movedim(0, dim)
