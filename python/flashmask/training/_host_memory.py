# SPDX-License-Identifier: Apache-2.0
"""Page-locked memory of the host, which a GPU copies to and from while it computes."""

from __future__ import annotations

import mmap
import weakref
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from flashmask._arguments import boolean, integer


class HostMemory:
    """Pieces of host memory that are reused, page-locked on request.

    torch rounds its pinned memory up to powers of two, so that 4.3 GiB take 8; here a piece is as long as requested.
    close(), leaving the `with` block, also by an error, and the end of the program free everything.
    """

    def __init__(self, *, page_locked: bool) -> None:
        if boolean("page_locked", page_locked) and not torch.cuda.is_available():
            raise RuntimeError("page_locked is True, but torch finds no GPU to copy to; expected False")
        self._page_locked = page_locked
        self._free: list[Tensor] = []
        self._held: dict[int, Tensor] = {}
        self._finalizer = weakref.finalize(self, _give_back, self._held, page_locked)

    @property
    def bytes(self) -> int:
        """Bytes of all pieces, in use or not."""
        return sum(each.numel() for each in self._held.values())

    def take(self, size: int) -> Tensor:
        """Returns a piece, uint8 [size]; raises MemoryError if the host cannot allocate or lock that much more."""
        integer("size", size, minimum=0)
        if not self._finalizer.alive:
            raise RuntimeError("this host memory was closed; make another")
        fitting = [number for number, each in enumerate(self._free) if each.numel() >= size]
        if fitting:
            return self._free.pop(min(fitting, key=lambda number: self._free[number].numel()))[:size]
        made = _allocate(size)
        self._held[made.data_ptr()] = made  # first, so that an interrupt between these lines loses nothing
        if self._page_locked and size:
            try:
                _lock(made)
            except MemoryError:
                del self._held[made.data_ptr()]
                raise
        return made

    def give_back(self, piece: Tensor) -> None:
        """Returns a piece for reuse; copies to or from it must be done, or ordered before those of the next user."""
        whole = self._held.get(piece.data_ptr())
        if whole is not None:
            self._free.append(whole)

    def close(self) -> None:
        """Unlocks and frees all pieces, used or not; a second call does nothing."""
        self._free.clear()
        self._finalizer()

    def __enter__(self) -> HostMemory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _allocate(size: int) -> Tensor:
    """Allocates huge pages where the system has them, since locking them takes half the time."""
    if size == 0:
        return torch.empty(0, dtype=torch.uint8)
    try:
        pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise MemoryError(
            f"the host has no {size / 2**30:.2f} GiB more; offload fewer inputs, or keep every second one"
        ) from error
    with suppress(OSError):
        pages.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(pages, dtype=torch.uint8)


def _lock(piece: Tensor) -> None:
    piece.zero_()  # all threads make the pages: cudaHostRegister would make them one by one
    status = int(_runtime().cudaHostRegister(piece.data_ptr(), piece.numel(), 0))
    if status:
        _forget_error()
        raise MemoryError(
            f"the host has no {piece.numel() / 2**30:.2f} GiB more to lock for copies (cudaHostRegister says "
            f"{status}); offload fewer inputs, or keep every second one"
        )


def _forget_error() -> None:
    """Clears CUDA's last error, which the next, unrelated call would otherwise report."""
    with suppress(RuntimeError):
        torch.zeros(1, device="cuda")


def _give_back(held: dict[int, Tensor], page_locked: bool) -> None:
    if page_locked and held:
        torch.cuda.synchronize()  # waits for copies under way
        for address in held:
            _runtime().cudaHostUnregister(address)
    held.clear()


def _runtime() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]
