# SPDX-License-Identifier: Apache-2.0
"""python bench/compare.py --device cuda [--rows 'twelve/*/8K,packed'] [--direction forward] [--json results.json]

Rows of tables on the GPU, bfloat16, 131,072 tokens, hidden 4,096 (papers: as the papers have them): FlashMask beside
FlexAttention, SDPA's cuDNN and FlashAttention backends and SDPA with a dense mask, and beside flash_attn_interface and
flash_mask where they are installed. In the environment, FLASHMASK_KERNEL=sm80 makes FlashMask use its mma.sync kernels,
and DISABLE_MMA_V3=1 does the same for FlexAttention. Results are compared before anything is timed. Two regimes: burst,
one launch after 40 ms of rest, the median of five, or of three that take more than 20 ms; sustained, launches back to
back for 200 ms after 50 ms of warm-up. TFLOP/s count visible pairs.

A call measures the rows that the JSON file does not have yet, until its minutes are over, and prints the tables of all
rows in the file. FlexAttention is compiled first, for all rows, by several processes.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from comparison.results import Results
from comparison.workloads import Workload, all_workloads, among, chosen

LEAST_SECONDS = 15.0
COMPARE = Path(__file__).parent.parent / "compare.py"


class Task(NamedTuple):
    """A row in one direction."""

    workload: Workload
    direction: str

    @property
    def key(self) -> str:
        return f"{self.workload.id} {self.direction}"


def arguments(given: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="", help="tables and patterns of rows, by commas (default: all)")
    parser.add_argument(
        "--contestants", default="", help="who takes part, by commas: ours,flex (default: all of a row)"
    )
    parser.add_argument("--list", action="store_true", help="name the rows and stop")
    parser.add_argument("--direction", default="", help="forward or backward (default: those that have a kernel here)")
    parser.add_argument("--minutes", type=float, default=8, help="start no row that would end later (default: 8)")
    parser.add_argument("--json", type=Path, help="where numbers gather from call to call")
    parser.add_argument("--again", action="store_true", help="measure rows that the file has, too")
    parser.add_argument("--curves", action="store_true", help="also the curves: time over sparsity, memory over length")
    parser.add_argument(
        "--plots", type=Path, help="draw what the file has into this folder: the twelve masks, the curves"
    )
    parser.add_argument("--show", action="store_true", help="print the tables of the file and measure nothing")
    parser.add_argument("--workers", type=int, default=min(16, os.cpu_count() or 1), help="processes that compile")
    parser.add_argument("--compile", action="store_true", help="compile FlexAttention for the rows and stop")
    parsed = parser.parse_args(given)
    if parsed.direction not in ("", "forward", "backward"):
        parser.error(f"--direction is {parsed.direction}; expected forward or backward")
    return parsed


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def of_commas(given: str) -> list[str]:
    return list(filter(None, given.split(",")))


def tasks_of(options: argparse.Namespace, results: Results) -> list[Task]:
    from comparison.gpu import directions_here

    directions = [options.direction] if options.direction else directions_here()
    names = of_commas(options.contestants)
    rows = [among(workload, names) for workload in chosen(of_commas(options.rows))]
    tasks = [Task(workload, d) for d in directions for workload in rows if workload.contestants]
    return [task for task in tasks if options.again or task.key not in results.rows]


def compile_all(tasks: Iterable[Task], workers: int) -> None:
    """Compiles in separate processes, many at once; the code is then found in the cache on disk."""
    with_flex = [task for task in tasks if "flex" in task.workload.contestants]
    running = []
    start = time.monotonic()
    # Each process compiles by itself, without processes of its own.
    environment = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    for direction in dict.fromkeys(task.direction for task in with_flex):
        ids = [task.workload.id for task in with_flex if task.direction == direction]
        for part in filter(None, (ids[i::workers] for i in range(workers))):
            command = [sys.executable, COMPARE, "--device", "cuda", "--compile", "--direction", direction, "--rows"]
            running.append(subprocess.Popen([*map(str, command), ",".join(part)], env=environment))
    for process in running:
        process.wait()
    if running:
        say(f"compiled for {len(with_flex)} rows: {time.monotonic() - start:.1f} s")


def compile_here(tasks: list[Task]) -> None:
    from comparison.gpu import compile_row

    for task in tasks:
        start = time.monotonic()
        compile_row(*task)
        say(f"compiled for {task.key}: {time.monotonic() - start:.1f} s")


def device_answers() -> bool:
    """Whether the device still works, which it does not after a kernel's illegal access."""
    import torch

    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True


def command_here() -> str:
    """The command, with the environment variables that choose kernels, ours and Triton's."""
    asked = [f"{name}={os.environ[name]}" for name in ("FLASHMASK_KERNEL", "DISABLE_MMA_V3") if name in os.environ]
    return " ".join([*asked, "python bench/compare.py", shlex.join(sys.argv[1:])])


def measure_all(tasks: list[Task], options: argparse.Namespace, results: Results, deadline: float) -> bool:
    """Measures the tasks and returns whether all went well. Names the rows for which there was no time."""
    from comparison.gpu import Disagreement, measure, run_facts

    run: dict[str, Any] = run_facts(command_here())
    passed, longest = True, LEAST_SECONDS
    for place, task in enumerate(tasks):
        start = time.monotonic()
        say(f"{task.key} …")
        if start + longest > deadline:
            say(f"no time for {', '.join(left.key for left in tasks[place:])}")
            return passed
        try:
            results.add(measure(*task, run))
        except (Disagreement, NotImplementedError, ValueError, RuntimeError) as error:
            passed = False
            say(f"{task.key}: {type(error).__name__}: {error}")
            if not device_answers():
                say("the GPU answers no more in this process; call again for the other rows")
                return passed
        longest = max(LEAST_SECONDS, 1.5 * (time.monotonic() - start))
        say(f"{task.key}: {time.monotonic() - start:.1f} s")
    return passed


def measure_curves(direction: str, results: Results, deadline: float) -> None:
    from comparison.curves import CURVES, latency, memory
    from comparison.gpu import directions_here

    results.add_curve("memory", memory())
    for one in [direction] if direction else directions_here():
        for kind in CURVES:
            if time.monotonic() + LEAST_SECONDS < deadline and f"{kind} {one}" not in results.curves:
                results.add_curve(f"{kind} {one}", latency(kind, one))
                say(f"curve of {kind} {one}")


def set_up_torch() -> None:
    import torch

    if not torch.cuda.is_available():
        sys.exit("compare.py --device cuda: torch finds no GPU here; leave --device out to compare on the CPU")
    torch._dynamo.config.recompile_limit = 64
    torch._functorch.config.donated_buffer = False  # the backward runs again and again


def main(given: list[str]) -> None:
    options = arguments(given)
    deadline = time.monotonic() + 60 * options.minutes
    results = Results(options.json)
    passed = True
    if options.list:
        print("\n".join(workload.id for workload in all_workloads()))
        return
    if not options.show:
        set_up_torch()
        tasks = tasks_of(options, results)
        if options.compile:
            compile_here(tasks)
            return
        compile_all(tasks, options.workers)
        passed = measure_all(tasks, options, results, deadline)
        if options.curves:
            measure_curves(options.direction, results, deadline)
    from comparison.report import text

    print(text(results))
    if options.plots:
        from comparison.plots import draw

        say("\n".join(f"drew {path}" for path in draw(results, options.plots)))
    if not passed:
        sys.exit(1)
