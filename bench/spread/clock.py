# SPDX-License-Identifier: Apache-2.0
"""Times of calls that begin together on all ranks, and the memory that they take."""

import statistics
import time
from typing import NamedTuple

import torch
import torch.distributed as dist

import flashmask
import flashmask.distributed as fmd
from spread.contestants import Problem, Way, results


class Times(NamedTuple):
    """Median milliseconds."""

    forward: float
    backward: float

    @property
    def both(self) -> float:
        return self.forward + self.backward


class Clock:
    def __init__(self, device: torch.device, calls: int) -> None:
        self.device, self.calls = device, calls

    def now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def both(self, way: Way) -> Times:
        """Times of the slowest rank."""
        slowest = torch.tensor(self._rows(way, True), dtype=torch.float64, device=self.device)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        return Times(*slowest.median(0).values.tolist())

    def on_one(self, way: Way) -> Times:
        """Times of rank 0 alone while the others wait, so that processes on one machine do not slow it down."""
        rows = self._rows(way, False) if dist.get_rank() == 0 else [[0.0, 0.0]]
        medians = torch.tensor(rows, dtype=torch.float64, device=self.device).median(0).values
        dist.all_reduce(medians, dist.ReduceOp.MAX)
        return Times(*medians.tolist())

    def _rows(self, way: Way, together: bool) -> list[list[float]]:
        rows = []
        for _ in range(self.calls + 1):
            times = [self._begin(together)]
            o = way.attend(*way.leaves)
            times.append(self.now())
            times.append(self._begin(together))
            torch.autograd.grad(o, way.leaves, way.grad)
            times.append(self.now())
            rows.append([1e3 * (times[1] - times[0]), 1e3 * (times[3] - times[2])])
        return rows[1:]

    def _begin(self, together: bool) -> float:
        if together:
            dist.barrier()
        return self.now()

    def host(self, way: Way, rounds: int = 50) -> float:
        """Microseconds for which a forward occupies the host, without waiting for the device."""
        times = []
        for _ in range(rounds):
            self.now()
            begin = time.perf_counter()
            with torch.no_grad():
                way.attend(*way.leaves)
            times.append(1e6 * (time.perf_counter() - begin))
        return statistics.median(times)

    def of_shard(self, mask: flashmask.Mask, options: dict[str, int], rounds: int = 5) -> float:
        """Median milliseconds from a mask to a sharding."""
        times = []
        for _ in range(rounds):
            dist.barrier()
            begin = self.now()
            fmd.shard(mask, dist.group.WORLD, **options)
            times.append(1e3 * (self.now() - begin))
        return statistics.median(times)


def peak_bytes(way: Way) -> int:
    """Peak bytes of a forward and a backward in addition to those held before, on the rank with most; GPUs only."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    results(way)
    torch.cuda.synchronize()
    peak = torch.tensor([torch.cuda.max_memory_allocated() - before], device=way.grad.device)
    dist.all_reduce(peak, dist.ReduceOp.MAX)
    return int(peak)


def fetched_bytes(problem: Problem, way: Way) -> int:
    """Bytes of fetched keys, values and their partial gradients that the busiest rank holds.

    (1 / ranks + fetched) · tokens · 12 · key heads · head dim: two tensors of 16 bits and two of float32.
    """
    computed = torch.tensor([way.sharding._locals["mask"].columns.tokens], device=way.grad.device)
    dist.all_reduce(computed, dist.ReduceOp.MAX)
    return int(computed) * 12 * problem.heads[1] * problem.whole[1].shape[3]
