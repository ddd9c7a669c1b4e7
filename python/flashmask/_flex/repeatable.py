# SPDX-License-Identifier: Apache-2.0
"""Indexing of captured tensors whose gradient is the same bits on every run."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.overrides import TorchFunctionMode


class RepeatableIndexing(TorchFunctionMode):
    """Replaces tensor[indices] where the tensor learns: PyTorch's own gradient of it adds in any order on a CPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__getitem__ and _learns(args[0]):
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            if index and all(isinstance(each, Tensor) and each.dtype is torch.int64 for each in index):
                return _Gather.apply(args[0], *index)  # type: ignore[no-untyped-call]
        return func(*args, **(kwargs or {}))


def _learns(tensor: Any) -> bool:
    return isinstance(tensor, Tensor) and tensor.requires_grad and torch.is_grad_enabled()


class _Gather(torch.autograd.Function):
    """tensor[indices], int64 tensors that broadcast together, one per leading dimension."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, *indices: Tensor) -> Tensor:
        ctx.save_for_backward(*indices)
        ctx.of = tensor.shape, tensor.dtype
        return tensor[indices]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        shape, dtype = ctx.of
        indices = ctx.saved_tensors
        sums = torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype
        total = torch.zeros(shape, dtype=sums, device=gradient.device)
        gradient = gradient.to(sums)
        if total.is_cuda:  # sorts first
            total.index_put_(indices, gradient, accumulate=True)
        else:
            offsets = _offsets(indices, shape)
            total.view(-1).index_add_(0, offsets, gradient.reshape(-1))  # of one dimension: by one thread
        return total.to(dtype), *(None for _ in indices)


def _offsets(indices: tuple[Tensor, ...], shape: torch.Size) -> Tensor:
    """The offset in memory, int64 [elements], of each element of tensor[indices] in a contiguous tensor."""
    offset: Any = 0
    for index, size in zip(indices, shape, strict=False):
        offset = offset * size + torch.where(index < 0, index + size, index)
    inner = shape[len(indices) :].numel()
    offsets: Tensor = offset.reshape(-1, 1) * inner + torch.arange(inner)
    return offsets.reshape(-1)
