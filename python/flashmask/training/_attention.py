# SPDX-License-Identifier: Apache-2.0
"""Attention that is held between its forward and its backward without its q, k and v."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class _Enter(torch.autograd.Function):
    """Passes q, k and v to autograd and their gradients to a list: autograd would keep leaves alive, but not these."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, gradients: list[Tensor | None], *heads: Tensor) -> tuple[Tensor, ...]:
        ctx.gradients = gradients
        ctx.set_materialize_grads(False)
        return tuple(each.view_as(each) for each in heads)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        ctx.gradients[:] = grads
        return None, None, None, None, None


class _Memory:
    """Hooks that save a place for what lies in the memory of q, k and v, and find it in new memory; hold no graph."""

    def __init__(self, *heads: Tensor) -> None:
        self.heads = list(heads)

    def pack(self, tensor: Tensor) -> Any:
        address = tensor.untyped_storage().data_ptr()
        for number, head in enumerate(self.heads):
            if address and head.untyped_storage().data_ptr() == address:
                return number, tensor.shape, tensor.stride(), tensor.storage_offset()
        return tensor

    def unpack(self, packed: Any) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        number, shape, stride, offset = packed
        found: Tensor = self.heads[number].as_strided(shape, stride, offset)
        return found


class HeldAttention:
    """One attention: its result `o` [B, S, Hq, Dv], and what its backward needs beside q, k and v.

    attend(q, k, v) is any differentiable attention. forget() releases the memory of q, k and v, with whatever attend()
    saved that lies in it; refill() provides the same values again.
    """

    def __init__(self, attend: Callable[[Tensor, Tensor, Tensor], Tensor], q: Tensor, k: Tensor, v: Tensor) -> None:
        self._memory = _Memory(q, k, v)
        self._gradients: list[Tensor | None] = []
        anchor = torch.empty(0, device=q.device, requires_grad=True)
        with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(self._memory.pack, self._memory.unpack):
            heads = _Enter.apply(anchor, self._gradients, q, k, v)  # type: ignore[no-untyped-call]
            self._result: Tensor = attend(*heads)
        self.o = self._result.detach()

    def forget(self) -> None:
        self._memory.heads = []

    def refill(self, q: Tensor, k: Tensor, v: Tensor) -> None:
        self._memory.heads = [q, k, v]

    def backward(self, grad_o: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the gradients of q, k and v; can be called once."""
        torch.autograd.backward(self._result, grad_o)
        found, heads = self._gradients, self._memory.heads
        dq, dk, dv = (torch.zeros_like(head) if each is None else each for each, head in zip(found, heads, strict=True))
        self._gradients = []
        self.forget()
        return dq, dk, dv
