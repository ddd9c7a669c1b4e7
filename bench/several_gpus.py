# SPDX-License-Identifier: Apache-2.0
"""One sequence over several GPUs, beside one GPU with the whole problem and beside other ways to spread it.

All contestants take turns in one process group, and the results of each are compared with one device's before it is
timed; a time is that of the slowest rank, the median of calls that begin together.

torchrun --nproc-per-node 2 bench/several_gpus.py --masks causal "long-tail documents" --tokens 131072 --peers
torchrun --nproc-per-node 2 bench/several_gpus.py --only shard --tokens 131072 1048576

On a CPU, processes of one core each and Gloo, in float32:
torchrun --nproc-per-node 2 bench/several_gpus.py --device cpu --masks "long-tail documents" --tokens 16384 --heads 4:2
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # before a group exists: its functions keep the group of import time for ever
from spread.clock import Clock, fetched_bytes, peak_bytes
from spread.contestants import DIM, Problem, Way, alone, distance, entered, peers, problem_of, results, sharded
from spread.contestants import without_wire as kernels_of
from spread.masks import MASKS, RANDOM
from spread.report import Row, said, summary

import flashmask

BOUND = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
"""The largest distance of results from those of one device, whatever kernel and order of sums a contestant has."""
FLOPS_OF_A_PAIR = 14 * DIM
"""FLOP for a visible pair in one query head: two products forward and five backward."""


def check(name: str, way: Way, expected: list[torch.Tensor]) -> float:
    """Distance of the results from one device's; raises if it is more than rounding."""
    found = torch.tensor(distance(way, expected), device=way.grad.device)
    dist.all_reduce(found, dist.ReduceOp.MAX)
    if not float(found) <= BOUND[way.grad.dtype]:
        raise RuntimeError(f"{name}: results are {float(found):.2e} away from those of one device")
    return float(found)


def measure(name: str, mask: flashmask.Mask, heads: tuple[int, int], clock: Clock, options: argparse.Namespace) -> Row:
    row: Row = {"mask": name, "tokens": mask.shape.rows, "heads": f"{heads[0]}:{heads[1]}"}
    row["shard, ms"] = clock.of_shard(mask, {"query_heads": heads[0], "kv_heads": heads[1], "head_dim": DIM})
    if options.only == "shard":
        return row
    problem = problem_of(mask, heads, clock.device)
    whole, ours = alone(problem), sharded(problem)
    expected = results(whole)
    row["scheme"], row["visible"], row["fetched"] = ours.sharding.scheme, mask.explain().density, fetched_share(ours)
    row["error"] = {}

    def take(contestant: str, make: Callable[[], AbstractContextManager[Way]]) -> None:
        with make() as way:
            row["error"][contestant] = check(f"{name}, {contestant}", way, expected)
            if options.only != "check":
                row[contestant] = clock.both(way)

    take("ours", lambda: entered(ours))
    if options.only != "check":
        add_times(row, problem, whole, ours, clock)
    for contestant, make in peers(name, problem, ours.sharding.scheme).items() if options.peers else ():
        take(contestant, make)
    return row


def add_times(row: Row, problem: Problem, whole: Way, ours: Way, clock: Clock) -> None:
    row["one"] = clock.on_one(whole)
    if clock.device.type == "cuda":
        row["host, us"] = [clock.host(whole), clock.host(ours)]
    work = FLOPS_OF_A_PAIR * problem.heads[0] * problem.mask.explain().visible_pairs
    row["TFLOP/s"] = work / dist.get_world_size() / sum(row["ours"]) / 1e9
    if ours.sharding.scheme != "rows":
        return
    row["kernels"] = clock.both(kernels_of(problem, ours))
    if clock.device.type == "cuda":
        of_one = peak_bytes(whole) // dist.get_world_size()
        row["extra, bytes"] = [peak_bytes(ours) - of_one, fetched_bytes(problem, ours)]


def fetched_share(way: Way) -> float:
    columns = way.sharding._locals["mask"].columns
    return 0.0 if columns is None else (columns.tokens - columns.held) / way.sharding.tokens


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--masks", nargs="+", choices=MASKS, default=list(MASKS))
    parser.add_argument("--tokens", nargs="+", type=int, default=[65536, 131072])
    parser.add_argument("--heads", nargs="+", type=heads_of, default=[(32, 8)], help="query heads:key heads")
    parser.add_argument("--packs", type=int, default=1, help="how many seeds of random masks; one row each")
    parser.add_argument("--calls", type=int, default=5)
    parser.add_argument("--peers", action="store_true", help="other ways to spread the sequence too")
    parser.add_argument("--only", choices=["check", "shard"], help="compare results, or time shard(), and nothing else")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no row after so many")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if "LOCAL_RANK" not in os.environ:
        parser.error("nobody started ranks; expected torchrun --nproc-per-node 2 bench/several_gpus.py")
    if min(*options.tokens, options.packs, options.calls) < 1:
        parser.error("--tokens, --packs and --calls are numbers from 1 on")
    if options.device == "cuda" and torch.cuda.device_count() < int(os.environ["LOCAL_WORLD_SIZE"]):
        parser.error(f"{torch.cuda.device_count()} GPUs are here; expected one for each process, or --device cpu")
    return options


def heads_of(text: str) -> tuple[int, int]:
    given = text.split(":")
    if len(given) != 2 or not all(map(str.isdecimal, given)) or int(given[0]) % max(1, int(given[1])) or "0" in given:
        raise argparse.ArgumentTypeError(f"{text} is no multiple of key heads, and these; expected such as 32:8")
    return int(given[0]), int(given[1])


def cases(options: argparse.Namespace) -> Any:
    for tokens in options.tokens:
        for heads in options.heads:
            for name in options.masks:
                for seed in range(options.packs if name in RANDOM else 1):
                    yield name, tokens, seed, heads


def main() -> int:
    began, options = time.monotonic(), arguments()
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    on_gpus = options.device == "cuda"
    device = torch.device(options.device, int(os.environ["LOCAL_RANK"])) if on_gpus else torch.device("cpu")
    if on_gpus:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    dist.init_process_group("nccl" if on_gpus else "gloo")
    clock, rows = Clock(device, options.calls), []
    for name, tokens, seed, heads in cases(options):
        late = torch.tensor(float(time.monotonic() - began > options.seconds), device=device)
        dist.all_reduce(late)
        if late:
            break
        rows.append(measure(name, MASKS[name](tokens, seed), heads, clock, options))
        if dist.get_rank() == 0:
            print(said(rows[-1]), flush=True)
    if dist.get_rank() == 0:
        print("\n".join(summary(rows)))
        if options.json:
            options.json.write_text(json.dumps(rows, indent=1) + "\n")
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
