# SPDX-License-Identifier: Apache-2.0
"""Tensors that wait in host memory, copied while the device computes."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch import Tensor

from flashmask._arguments import described
from flashmask.training._host_memory import HostMemory

#: A tensor on the device that a copy reads or writes, and the event after that copy; None where copies block.
Copying: TypeAlias = "tuple[Tensor, Any]"


class Offloaded:
    """A tensor in host memory; take() brings it back, once."""

    def __init__(self, owner: Offload, tensor: Tensor) -> None:
        self._owner = owner
        self.device, self.shape, self.dtype = tensor.device, tensor.shape, tensor.dtype
        piece = owner.memory.take(tensor.numel() * tensor.element_size())
        self.host: Tensor = piece.view(tensor.dtype).view(tensor.shape)
        weakref.finalize(self, owner.memory.give_back, piece)
        self._coming: Copying | None = None
        self.taken = False

    def fetch(self) -> bool:
        """Begins to copy it back; returns False if that had begun already."""
        if self._coming is not None:
            return False
        self._coming = self._owner.fetch(self)
        return True

    def take(self) -> Tensor:
        self.fetch()
        assert self._coming is not None
        self.taken = True
        return self._owner.arrived(self._coming)


class Offload:
    """Keeps tensors in host memory, and fetches the one that was kept last first.

    Copies run on their own stream. keep() returns while the copy is under way; the device memory of the tensor is held
    until the next one is kept or fetched. A tensor on the CPU is copied to ordinary memory.
    """

    def __init__(self, memory: HostMemory) -> None:
        if not isinstance(memory, HostMemory):
            raise TypeError(f"memory is {described(memory)}; expected a HostMemory")
        self.memory = memory
        self._streams: dict[torch.device, Any] = {}
        self._under_way: list[Copying] = []
        self._waiting: list[weakref.ref[Offloaded]] = []
        self._ahead: weakref.ref[Offloaded] | None = None

    def keep(self, tensor: Tensor) -> Offloaded:
        """Begins to copy a tensor to the host; it must not be written to until the copy is done."""
        kept = Offloaded(self, tensor)
        self._let_go()
        with self._copying(tensor) as copying:
            kept.host.copy_(tensor, non_blocking=True)
        self._under_way.append(copying)
        self._waiting = [each for each in self._waiting if each() is not None] + [weakref.ref(kept)]
        return kept

    def fetch_next(self) -> None:
        """Begins to copy back the tensor that was kept last, unless one fetched earlier still waits to be taken: where
        only every second layer has kept its input, all layers ask, and waiting copies would fill the card.
        """
        self._let_go()
        ahead = None if self._ahead is None else self._ahead()
        if ahead is not None and not ahead.taken:
            return
        while self._waiting:
            self._ahead = self._waiting.pop()
            kept = self._ahead()
            if kept is not None and kept.fetch():
                return

    def fetch(self, kept: Offloaded) -> Copying:
        tensor = torch.empty(kept.shape, dtype=kept.dtype, device=kept.device)
        with self._copying(tensor) as copying:
            tensor.copy_(kept.host, non_blocking=True)
        self._under_way.append(copying)
        return copying

    def arrived(self, copying: Copying) -> Tensor:
        """Returns the tensor, for work that is issued from now on."""
        self._wait(copying)
        self._under_way = [each for each in self._under_way if each[0] is not copying[0]]
        return copying[0]

    def _let_go(self) -> None:
        """Releases tensors that were held for their copies: work that is issued from now on waits for their copies."""
        for copying in self._under_way:
            self._wait(copying)
        self._under_way.clear()

    def _wait(self, copying: Copying) -> None:
        tensor, done = copying
        if done is not None:
            torch.cuda.current_stream(tensor.device).wait_event(done)

    @contextmanager
    def _copying(self, tensor: Tensor) -> Iterator[Copying]:
        """Makes a context for issuing the copy of a tensor: on the copy stream, after all work so far."""
        if not tensor.is_cuda:
            yield tensor, None
            return
        stream = self._streams.setdefault(tensor.device, torch.cuda.Stream(tensor.device))  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(tensor.device))
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            yield tensor, done
            done.record(stream)
