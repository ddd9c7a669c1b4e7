# SPDX-License-Identifier: Apache-2.0
"""Rows measured on the GPU: contestants take turns over the same numbers in one process."""

from __future__ import annotations

import contextlib
import importlib.metadata
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

import flashmask
from comparison import clock
from comparison.contestants import CONTESTANTS, Absent, Attention, Contestant
from comparison.masks import MASKS, MaskCase, Setting
from comparison.results import Measured, RowResult
from comparison.workloads import Workload

DEVICE = "cuda"
MEAN_ERROR = 3e-2
"""The largest relative error of a result against the first contestant's, in the norm of all elements."""
LARGEST_ERROR = 6e-2
"""The largest error of one element, relative to the largest element."""


class Disagreement(Exception):
    """Two contestants compute different things."""


class Tensors:
    """Random inputs of a row in the layouts that contestants take."""

    def __init__(self, workload: Workload, gradients: bool) -> None:
        w = workload
        draw = torch.Generator(DEVICE).manual_seed(0)
        heads = (w.heads, w.kv_heads, w.kv_heads, w.heads)
        shapes = [(w.batch, w.tokens, n, w.head_dim) for n in heads]
        self._all = [torch.randn(x, generator=draw, device=DEVICE, dtype=torch.bfloat16) for x in shapes]
        self._gradients = gradients

    def inputs(self, heads_first: bool) -> tuple[list[Tensor], Tensor]:
        """q, k and v, and the gradient of o."""
        *inputs, grad_o = self._heads_first if heads_first else self._all
        return [x.detach().requires_grad_(self._gradients) for x in inputs], grad_o

    @cached_property
    def _heads_first(self) -> list[Tensor]:
        return [x.transpose(1, 2).contiguous() for x in self._all]


@dataclass
class Entrant:
    """A contestant that takes part: its launch, how it prepares its mask, and what the mask costs."""

    launch: clock.Launch
    prepare: Callable[[], Attention]
    prepare_ms: float
    mask_bytes: int
    extra_bytes: int


def setting_of(workload: Workload) -> Setting:
    return Setting(workload.tokens, workload.batch, workload.heads, DEVICE, workload.parameter)


def launch_of(run: Attention, inputs: list[Tensor], grad_o: Tensor, direction: str) -> Callable[[], list[Tensor]]:
    if direction == "forward":
        return lambda: [run(*inputs)]
    o = run(*inputs)
    return lambda: list(torch.autograd.grad(o, inputs, grad_o, retain_graph=True))


def enter(contestant: Contestant, case: MaskCase, tensors: Tensors, direction: str) -> tuple[Entrant, list[Tensor]]:
    """Prepares a contestant; also returns its results, as (batch, tokens, heads, head dim)."""
    inputs, grad_o = tensors.inputs(contestant.heads_first)
    contestant.prepare(case, *inputs[:2])  # compiles
    before = torch.cuda.memory_allocated()
    run = contestant.prepare(case, *inputs[:2])
    mask_bytes = torch.cuda.memory_allocated() - before
    launch = launch_of(run, inputs, grad_o, direction)
    launch()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    results = launch()
    torch.cuda.synchronize()
    extra = torch.cuda.max_memory_allocated() - before - sum(x.numel() * x.element_size() for x in results)

    def prepare() -> Attention:
        return contestant.prepare(case, *inputs[:2])

    prepare_ms = clock.on_the_host(prepare)
    results = [x.transpose(1, 2) for x in results] if contestant.heads_first else results
    return Entrant(launch, prepare, prepare_ms, mask_bytes, extra), results


def check_agreement(label: str, results: list[Tensor], expected: list[Tensor]) -> None:
    for given, wanted in zip(results, expected, strict=True):
        difference = given.float() - wanted
        mean = (difference.norm() / wanted.norm()).item()
        largest = (difference.abs().max() / wanted.abs().max()).item()
        if not (mean <= MEAN_ERROR and largest <= LARGEST_ERROR):
            raise Disagreement(f"{label} differs from the first: {mean:.3g} in the norm, {largest:.3g} in one element")


def enter_all(workload: Workload, case: MaskCase, direction: str, result: RowResult) -> dict[str, Entrant]:
    tensors = Tensors(workload, direction == "backward")
    entrants: dict[str, Entrant] = {}
    expected: list[Tensor] = []
    for name in workload.contestants_of(direction):
        contestant = CONTESTANTS[name]
        try:
            entrant, results = enter(contestant, case, tensors, direction)
        except (Absent, NotImplementedError, ValueError, RuntimeError) as error:
            if not entrants:
                raise
            result.absent[name] = str(error).strip().split("\n", maxsplit=1)[0]
            continue
        if entrants:
            check_agreement(contestant.label, results, expected)
        else:
            expected = [x.float() for x in results]
        entrants[name] = entrant
    return entrants


def measure(workload: Workload, direction: str, run: dict[str, Any]) -> RowResult:
    torch.compiler.reset()
    torch.cuda.empty_cache()
    case = MASKS[workload.mask](setting_of(workload))
    result = describe(workload, case, direction, run)
    with torch.set_grad_enabled(direction == "backward"):
        entrants = enter_all(workload, case, direction, result)
        launches = {name: entrant.launch for name, entrant in entrants.items()}
        cold = clock.burst(launches)
        warm = clock.sustained(launches)
    for name, entrant in entrants.items():
        result.measured[name] = Measured(
            cold[name], warm[name], entrant.prepare_ms, entrant.mask_bytes, entrant.extra_bytes
        )
    first = next(iter(entrants))  # the report shows its preparation time on the GPU
    result.measured[first].prepare_gpu_ms = clock.on_the_gpu(entrants[first].prepare)
    return result


def describe(workload: Workload, case: MaskCase, direction: str, run: dict[str, Any]) -> RowResult:
    w, shape = workload, case.mask.shape
    copies = w.batch // shape.batch * (w.heads // shape.heads)
    flops = 4.0 * w.head_dim * case.visible_pairs * copies * (1 if direction == "forward" else 2.5)
    tile = tile_of(workload, case, direction)
    row_tiles = -(-w.tokens // tile[0]) * w.batch * w.heads
    return RowResult(w.id, direction, flops, case.mask.explain(tile).active_tiles * copies, row_tiles, run)


def tile_of(workload: Workload, case: MaskCase, direction: str) -> tuple[int, int]:
    """The tile shape of the kernel that a plan picks."""
    w = workload
    q, k = (
        torch.empty(w.batch, w.tokens, n, w.head_dim, device=DEVICE, dtype=torch.bfloat16)
        for n in (w.heads, w.kv_heads)
    )
    kernel = flashmask.plan(case.mask, q, k).kernel(direction)
    found = re.search(r"\.m(\d+)n(\d+)", kernel)
    assert found is not None, kernel
    return int(found[1]), int(found[2])


def compile_row(workload: Workload, direction: str) -> None:
    """Compiles FlexAttention for the row, so that the next process finds the code in the cache."""
    torch.compiler.reset()
    w, case = workload, MASKS[workload.mask](setting_of(workload))
    q, k, v, grad_o = (
        torch.zeros(w.batch, n, w.tokens, w.head_dim, device=DEVICE, dtype=torch.bfloat16)
        for n in (w.heads, w.kv_heads, w.kv_heads, w.heads)
    )
    inputs = [x.requires_grad_(direction == "backward") for x in (q, k, v)]
    with torch.set_grad_enabled(direction == "backward"):
        launch_of(CONTESTANTS["flex"].prepare(case, *inputs[:2]), inputs, grad_o, direction)()
    torch.cuda.synchronize()


def directions_here() -> list[str]:
    """The directions for which the library has a kernel that runs here."""
    from flashmask._info import kernels

    found = {kernel["direction"] for kernel in kernels() if kernel["device"] == "cuda" and kernel["runs"]}
    return sorted(found, reverse=True)  # forward first


def peers_here() -> dict[str, str]:
    """Packages that contestants need, with their versions."""
    found = {}
    for package in ("flash_attn_3", "flash-attn-4", "nvidia-cudnn-frontend", "xformers"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def run_facts(command: str) -> dict[str, Any]:
    clock.matmul_rate()  # warms up
    return {
        "date": time.strftime("%Y-%m-%d"),
        "gpu": torch.cuda.get_device_name(),
        "multiprocessors": torch.cuda.get_device_properties(0).multi_processor_count,
        "torch": torch.__version__,
        "cudnn": torch.backends.cudnn.version(),
        "flashmask": flashmask.__version__,
        "peers": peers_here(),
        "command": command,
        "matmul_tflops": clock.matmul_rate(),
    }
