# SPDX-License-Identifier: Apache-2.0
"""Where the time of a step goes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


class _Mark(torch.autograd.Function):
    """Passes tensors on, and calls `passed` when their gradients arrive."""

    @staticmethod
    def forward(ctx: Any, passed: Callable[[], None], *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.passed = passed
        return tuple(each.view_as(each) for each in tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        ctx.passed()
        return None, *grads


class Clock:
    """Seconds by part, and how often each part ran: on the current stream of a GPU, else on the host."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._spans: list[tuple[str, Any, Any]] = []
        self._begun: dict[str, Any] = {}

    def _now(self) -> Any:
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def begin(self, part: str) -> None:
        self._begun[part] = self._now()

    def end(self, part: str) -> None:
        self._spans.append((part, self._begun.pop(part), self._now()))

    @contextmanager
    def of(self, part: str) -> Iterator[None]:
        self.begin(part)
        yield
        self.end(part)

    def both_ways(
        self, part: str, function: Callable[..., Tensor], *tensors: Tensor, behind: Callable[[], None] = lambda: None
    ) -> Tensor:
        """Returns function(*tensors), timed as "<part> forward", and times its backward as "<part> backward", after
        which `behind` is called."""
        backward = f"{part} backward"

        def end() -> None:
            self.end(backward)
            behind()

        tensors = _Mark.apply(end, *tensors)
        with self.of(f"{part} forward"):
            out = function(*tensors)
        (out,) = _Mark.apply(lambda: self.begin(backward), out)
        return out

    def seconds(self) -> dict[str, float]:
        """Seconds by part, for all that ended since restart()."""
        if self._cuda:
            torch.cuda.synchronize()
        found: dict[str, float] = {}
        for part, begin, end in self._spans:
            taken = begin.elapsed_time(end) / 1e3 if self._cuda else end - begin
            found[part] = found.get(part, 0.0) + taken
        return found

    def counts(self) -> dict[str, int]:
        parts = [part for part, _, _ in self._spans]
        return {part: parts.count(part) for part in parts}

    def restart(self) -> None:
        self._spans.clear()
        self._begun.clear()
