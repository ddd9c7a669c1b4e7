# SPDX-License-Identifier: Apache-2.0
"""What the modules that run were told, per thread."""

from __future__ import annotations

import threading
from typing import Generic, TypeVar

from torch.nn import Module

Told = TypeVar("Told")


class Running(threading.local, Generic[Told]):
    """Modules that run, the innermost last, and what each was told.

    Per thread: models may run in several, and a checkpoint computes a layer again in autograd's.
    """

    def __init__(self) -> None:
        self._held: list[tuple[Module, Told]] = []

    def __bool__(self) -> bool:
        return bool(self._held)

    @property
    def told(self) -> Told:
        """What the innermost one was told."""
        return self._held[-1][1]

    def enter(self, module: Module, told: Told) -> None:
        """Notes that a module runs; what it was told replaces what it is told again."""
        self.leave(module)
        self._held.append((module, told))

    def leave(self, module: Module) -> None:
        """Forgets the innermost module if it is this one."""
        if self._held and self._held[-1][0] is module:
            self._held.pop()
