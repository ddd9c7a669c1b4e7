# SPDX-License-Identifier: Apache-2.0
"""Times of work on a GPU: one cold launch, and launches back to back, when the GPU's power is the limit."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import torch
from torch import Tensor

Launch = Callable[[], object]

REST_SECONDS = 0.04
WARM_MS = 50.0
MEASURED_MS = 200.0
COLD_LAUNCHES = 5
LONG_MS = 20.0
"""Work that takes longer is launched three times only."""
SPIN_CYCLES = 2_000_000
"""Keeps the GPU busy while the host gets ahead of it, so that no launch is waited for."""


def _record(launch: Launch) -> tuple[torch.cuda.Event, torch.cuda.Event]:
    """Events before and after the work of a launch, which is queued behind a spin."""
    torch.cuda._sleep(SPIN_CYCLES)
    return _between(launch)


def _between(launch: Launch) -> tuple[torch.cuda.Event, torch.cuda.Event]:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    launch()
    end.record()
    return begin, end


def _elapsed(launch: Launch) -> float:
    begin, end = _record(launch)
    end.synchronize()
    return begin.elapsed_time(end)


def burst(launches: dict[str, Launch]) -> dict[str, float]:
    """Median milliseconds of one launch after a rest; contestants take turns."""
    times: dict[str, list[float]] = {name: [] for name in launches}
    for turn in range(COLD_LAUNCHES):
        for name, launch in launches.items():
            if turn >= 3 and times[name][0] > LONG_MS:
                continue
            torch.cuda.synchronize()
            time.sleep(REST_SECONDS)
            times[name].append(_elapsed(launch))
    return {name: statistics.median(taken) for name, taken in times.items()}


def sustained(launches: dict[str, Launch]) -> dict[str, float]:
    """Median milliseconds of a launch in an unbroken series, after launches that warm up."""
    return {name: statistics.median(_row_of(launch)) for name, launch in launches.items()}


def in_turns(launches: Mapping[str, Launch], launched: int = 10, seconds: float = 5) -> dict[str, float]:
    """Median milliseconds of a launch; contestants take turns of `launched` launches each."""
    for launch in launches.values():
        for _ in range(3):
            launch()
    torch.cuda.synchronize()
    found: dict[str, list[float]] = {name: [] for name in launches}
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        events = {name: [_between(launch) for _ in range(launched)] for name, launch in launches.items()}
        torch.cuda.synchronize()
        for name, pairs in events.items():
            found[name] += [begin.elapsed_time(end) for begin, end in pairs]
    return {name: statistics.median(times) for name, times in found.items()}


def one_way(way: str, attend: Callable[[], Tensor], leaves: Sequence[Tensor], grad: Tensor) -> Launch:
    """Returns a launch that runs attention "forward", "backward" or "both"."""
    if way == "forward":
        return attend
    if way == "both":
        return lambda: torch.autograd.grad(attend(), leaves, grad)
    o = attend()
    return lambda: torch.autograd.grad(o, leaves, grad, retain_graph=True)


def _row_of(launch: Launch) -> list[float]:
    expected = _elapsed(launch)
    warm = max(1, round(WARM_MS / expected))
    count = max(3, round(MEASURED_MS / expected))
    events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    torch.cuda._sleep(SPIN_CYCLES)
    for _ in range(warm):
        launch()
    events[0].record()
    for event in events[1:]:
        launch()
        event.record()
    torch.cuda.synchronize()
    return [a.elapsed_time(b) for a, b in pairwise(events)]


def on_the_host(work: Callable[[], object], rounds: int = 5) -> float:
    """Median milliseconds from the call until the GPU has finished the work."""
    times = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times)


def on_the_gpu(work: Callable[[], object], rounds: int = 5) -> float | None:
    """Median milliseconds of the work that the host queues on the GPU. None if the host is slower than the spin, since
    the GPU would have waited."""
    times = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        begin, end = _record(work)
        if begin.query():
            return None
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def matmul_rate(side: int = 8192) -> dict[str, float]:
    """TFLOP/s of a bfloat16 matrix product of random numbers, in both regimes."""
    a, b = (torch.randn(side, side, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    launches: dict[str, Launch] = {"matmul": lambda: a @ b}
    launches["matmul"]()
    cold = burst(launches)
    warm = sustained(launches)
    return {"burst": 2e-9 * side**3 / cold["matmul"], "sustained": 2e-9 * side**3 / warm["matmul"]}
