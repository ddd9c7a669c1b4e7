# SPDX-License-Identifier: Apache-2.0
"""What the modules that run were told, per thread."""

from __future__ import annotations

import threading
from typing import Generic, TypeVar

from torch.nn import Module

Told = TypeVar("Told")


class Running(threading.local, Generic[Told]):
    """Modules that run, the innermost last, and what each was told.

    Per thread: models may run in several, and a checkpoint computes a layer again in autograd's. A tuple rather than a
    list, since torch.compile traces what is set, but not what is changed, in a thread's own object.
    """

    def __init__(self) -> None:
        self.held: tuple[tuple[Module, Told], ...] = ()

    @property
    def told(self) -> Told | None:
        """What the innermost one was told; None where none runs."""
        return self.held[-1][1] if self.held else None

    def enter(self, module: Module, told: Told) -> None:
        """Notes that a module runs; what it was told replaces what it is told again."""
        self.leave(module)
        self.held = (*self.held, (module, told))

    def leave(self, module: Module) -> None:
        """Forgets the innermost module if it is this one."""
        if self.held and self.held[-1][0] is module:
            self.held = self.held[:-1]
