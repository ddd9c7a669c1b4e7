# SPDX-License-Identifier: Apache-2.0
"""States of random number generators, to draw the same numbers again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Randomness:
    """States of the generators of the CPU and, where CUDA is in use, of the current GPU."""

    cpu: Tensor
    cuda: Tensor | None

    @staticmethod
    def now() -> Randomness:
        in_use = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        return Randomness(torch.get_rng_state(), torch.cuda.get_rng_state() if in_use else None)

    def restore(self) -> None:
        torch.set_rng_state(self.cpu)
        if self.cuda is not None:
            torch.cuda.set_rng_state(self.cuda)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Restores the generators on exit, as if nothing had been drawn inside."""
    before = Randomness.now()
    try:
        yield
    finally:
        before.restore()
