"""One sequence over several GPUs, beside one GPU with the whole problem and beside other ways to spread it.

All contestants take turns in one process group. Each line says how far o and gradients are from those of one rank; a
time is that of the slowest rank, the median of calls that begin together.

    torchrun --nproc-per-node 2 bench/several_gpus.py --masks causal "long-tail documents" --tokens 131072 --heads 32:8

On a CPU (--device cpu) processes take one core each and Gloo, in float32.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

import flashmask
import flashmask.distributed as fmd
from flashmask import masks
from flashmask.distributed._exchange import Exchange

DIM = 128
Leaves = list[Tensor]


# ---- masks ----


def draw_until(tokens: int, draw: Callable[[], list[int]]) -> list[list[int]]:
    """Parts of random lengths until the next does not fit into `tokens`."""
    found: list[list[int]] = []
    left = tokens
    while True:
        part = draw()
        if sum(part) > left:
            return found
        found.append(part)
        left -= sum(part)


def long_tail(tokens: int, seed: int) -> flashmask.Mask:
    """Lognormal lengths, median 1,500 and sigma 1.5, cut at a quarter of the pack: visible 3-8 % at 128K."""
    random = np.random.default_rng(seed)
    documents = draw_until(tokens, lambda: [int(np.clip(random.lognormal(7.3, 1.5), 16, tokens // 4))])
    lengths = [each[0] for each in documents]
    return masks.causal_document([*lengths, tokens - sum(lengths)], tokens)


def short_documents(tokens: int, seed: int) -> flashmask.Mask:
    random = np.random.default_rng(seed)
    lengths = [each[0] for each in draw_until(tokens, lambda: [int(random.integers(20, 190))])]
    return masks.causal_document(lengths, tokens)


def shared_questions(tokens: int, seed: int) -> flashmask.Mask:
    """Questions of 512 to 8,192 tokens with eight answers of 256 to 4,096."""
    random = np.random.default_rng(seed)

    def draw() -> list[int]:
        return [int(random.integers(512, 8193)), *map(int, random.integers(256, 4097, 8))]

    return masks.shared_question([(part[0], part[1:]) for part in draw_until(tokens, draw)], tokens)


def eviction(tokens: int, seed: int) -> flashmask.Mask:
    """Causal, and each key leaves the cache at a random later row."""
    random = np.random.default_rng(seed)
    columns = np.arange(tokens)
    ends = columns + 1 + (random.random(tokens) ** 4 * (tokens - columns - 1)).astype(np.int64)
    return masks.random_eviction(tokens, ends[None])


MASKS = {
    "full": lambda tokens, seed: masks.full(tokens, tokens),
    "causal": lambda tokens, seed: masks.causal(tokens, tokens),
    "long-tail documents": long_tail,
    "shared questions": shared_questions,
    "window of 4,096": lambda tokens, seed: masks.sliding_window(tokens, tokens, 4096),
    "documents of 105": short_documents,
    "random eviction": eviction,
}


# ---- contestants ----


class Way(NamedTuple):
    """A rank's leaves and the gradient of its o, and what is called with them."""

    leaves: Leaves
    grad: Tensor
    attend: Callable[..., Tensor]
    sharding: Any = None


class Problem(NamedTuple):
    mask: flashmask.Mask
    whole: Leaves
    grad: Tensor
    options: dict[str, Any]


def problem_of(mask: flashmask.Mask, heads: tuple[int, int], device: torch.device) -> Problem:
    generator = torch.Generator(device).manual_seed(0)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    tokens, counts = mask.shape.rows, (heads[0], heads[1], heads[1], heads[0])
    made = [torch.randn(1, tokens, n, DIM, device=device, dtype=dtype, generator=generator) for n in counts]
    return Problem(mask, made[:3], made[3], {"query_heads": heads[0], "kv_heads": heads[1], "head_dim": DIM})


def alone(problem: Problem) -> Way:
    """The whole problem on each rank by itself."""
    leaves = [each.clone().requires_grad_() for each in problem.whole]
    return Way(leaves, problem.grad, lambda q, k, v: flashmask.attention(q, k, v, problem.mask))


def sharded(problem: Problem, **options: Any) -> Way:
    sharding = fmd.shard(problem.mask, dist.group.WORLD, **problem.options, **options)
    leaves = [each.contiguous().requires_grad_() for each in sharding.shard(*problem.whole)]
    return Way(leaves, sharding.shard(problem.grad), lambda q, k, v: fmd.attention(q, k, v, sharding), sharding)


def all_keys(problem: Problem, partition: str) -> Way:
    """The same kernels and exchanges, but every rank fetches every key, as all-gather and rings have it."""
    way = sharded(problem, scheme="rows", partition=partition)
    sharding, local = way.sharding, way.sharding._locals["mask"]
    everything = [(0, sharding.tokens)]
    columns = Exchange.of(sharding.rank, local.runs, [everything] * sharding.ranks)
    whole = replace(local, mask=problem.mask.slice(local.runs[sharding.rank], everything), columns=columns)
    sharding._locals["mask"], sharding._tensors["mask"] = whole, whole.to_tensor()
    return way


def without_wire(problem: Problem, way: Way) -> Way:
    """A rank's kernels under the scheme "rows", with keys and values that were fetched before."""
    local = way.sharding._locals["mask"]
    with torch.no_grad():
        fetched = local.columns.fetch(way.sharding._group, way.leaves[1:])
    leaves = [way.leaves[0], *(each.detach().clone().requires_grad_() for each in fetched)]
    return Way(leaves, way.grad, lambda q, k, v: flashmask.attention(q, k, v, local.mask))


def torch_context_parallel(problem: Problem) -> Way:
    """PyTorch's own, causal, with cuDNN; key heads are repeated, since its rings know no groups of heads."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.experimental import context_parallel
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    repeat = problem.whole[0].shape[2] // problem.whole[1].shape[2]
    given = [problem.whole[0], *(each.repeat_interleave(repeat, 2) for each in problem.whole[1:]), problem.grad]
    buffers = [each.transpose(1, 2).contiguous() for each in given]
    context = context_parallel(mesh, buffers=buffers, buffer_seq_dims=[2] * 4, no_restore_buffers=set(buffers))
    context.__enter__()  # which has to last for the backward; it cuts the buffers in place
    leaves = [each.requires_grad_() for each in buffers[:3]]

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return scaled_dot_product_attention(q, k, v, is_causal=True)

    return Way(leaves, buffers[3], attend)


# ---- times ----


class Clock:
    def __init__(self, device: torch.device, calls: int) -> None:
        self.device, self.calls = device, calls

    def now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def both(self, way: Way) -> tuple[float, float]:
        """Milliseconds of a forward and of a backward on the slowest rank, medians."""
        rows = []
        for _ in range(self.calls + 1):
            dist.barrier()
            times = [self.now()]
            o = way.attend(*way.leaves)
            times.append(self.now())
            dist.barrier()
            times.append(self.now())
            torch.autograd.grad(o, way.leaves, way.grad)
            times.append(self.now())
            rows.append([1e3 * (times[1] - times[0]), 1e3 * (times[3] - times[2])])
        slowest = torch.tensor(rows[1:], dtype=torch.float64, device=self.device)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        forward, backward = slowest.median(0).values.tolist()
        return forward, backward

    def host(self, way: Way, rounds: int = 50) -> float:
        """Microseconds that a forward keeps the host, without waiting for the device."""
        times = []
        for _ in range(rounds):
            self.now()
            begin = time.perf_counter()
            with torch.no_grad():
                way.attend(*way.leaves)
            times.append(1e6 * (time.perf_counter() - begin))
        return statistics.median(times)


def compare(one: Way, many: Way) -> float:
    """How far o and the gradients of this rank's tokens are from those of one rank, at most, over their norm."""
    worst = 0.0
    for mine, whole in zip(results(many), results(one), strict=True):
        of_one = many.sharding.shard(whole)
        worst = max(worst, float((mine - of_one).double().norm() / of_one.double().norm().clamp(min=1e-30)))
    return worst


def results(way: Way) -> Leaves:
    o = way.attend(*way.leaves)
    return [o.detach(), *torch.autograd.grad(o, way.leaves, way.grad)]


def time_of_shard(problem: Problem, clock: Clock, rounds: int = 5) -> float:
    times = []
    for _ in range(rounds):
        dist.barrier()
        begin = clock.now()
        fmd.shard(problem.mask, dist.group.WORLD, **problem.options)
        times.append(1e3 * (clock.now() - begin))
    return statistics.median(times)


def measure(name: str, mask: flashmask.Mask, heads: tuple[int, int], clock: Clock, peers: bool) -> dict[str, Any]:
    problem = problem_of(mask, heads, clock.device)
    ours, whole = sharded(problem), alone(problem)
    row: dict[str, Any] = {"mask": name, "tokens": mask.shape.rows, "heads": f"{heads[0]}:{heads[1]}"}
    row["scheme"], row["visible"] = ours.sharding.scheme, mask.explain().density
    row["error"] = compare(whole, ours)
    row["one"], row["ours"] = clock.both(whole), clock.both(ours)
    rows = ours if ours.sharding.scheme == "rows" else None
    if rows is not None:
        row["kernels"] = clock.both(without_wire(problem, rows))
        columns = rows.sharding._locals["mask"].columns
        row["fetched"] = (columns.tokens - columns.held) / mask.shape.rows
    if peers:
        other = "heads" if rows is not None else "rows"
        row[f"by {other}"] = clock.both(sharded(problem, scheme=other))
        row["owner"] = clock.both(sharded(problem, gradients="owner"))
        for partition in ("zigzag", "contiguous"):
            row[f"all keys, {partition}"] = clock.both(all_keys(problem, partition))
        if name == "causal" and clock.device.type == "cuda":
            row["torch context_parallel"] = clock.both(torch_context_parallel(problem))
    row["shard, ms"] = time_of_shard(problem, clock)
    row["host, us"] = [clock.host(whole), clock.host(ours)]
    return row


def said(row: dict[str, Any]) -> str:
    one = sum(row["one"])

    def speed_up(name: str) -> str:
        if name not in row:
            return ""
        forward, backward = row[name]
        return f"  {name} {forward:.2f} + {backward:.2f} = {one / (forward + backward):.2f}x"

    peers = [name for name in row if name.startswith(("kernels", "by ", "owner", "all keys", "torch"))]
    return (
        f"{row['mask']} {row['tokens']} {row['heads']} {row['scheme']}, visible {row['visible']:.3f}, fetched "
        f"{row.get('fetched', 0):.3f}, error {row['error']:.1e}: one {row['one'][0]:.2f} + {row['one'][1]:.2f}"
        f"{speed_up('ours')}{''.join(map(speed_up, peers))}  shard {row['shard, ms']:.1f} ms, host "
        f"{row['host, us'][0]:.0f} and {row['host, us'][1]:.0f} us"
    )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--masks", nargs="+", choices=MASKS, default=list(MASKS))
    parser.add_argument("--tokens", nargs="+", type=int, default=[65536, 131072])
    parser.add_argument("--heads", nargs="+", type=heads_of, default=[(32, 8)], help="query heads:key heads")
    parser.add_argument("--packs", type=int, default=1, help="how many seeds of random masks; one row each")
    parser.add_argument("--calls", type=int, default=5)
    parser.add_argument("--peers", action="store_true", help="measure other ways to spread the sequence too")
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


def main() -> int:
    began, options = time.monotonic(), arguments()
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    device = (
        torch.device(options.device, int(os.environ["LOCAL_RANK"])) if options.device == "cuda" else torch.device("cpu")
    )
    if device.type == "cuda":
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    clock, rows = Clock(device, options.calls), []
    for tokens in options.tokens:
        for heads in options.heads:
            for name in options.masks:
                for seed in range(options.packs if name in ("long-tail documents", "shared questions") else 1):
                    late = torch.tensor(float(time.monotonic() - began > options.seconds), device=device)
                    dist.all_reduce(late)
                    if late:
                        break
                    rows.append(measure(name, MASKS[name](tokens, seed), heads, clock, options.peers))
                    if dist.get_rank() == 0:
                        print(said(rows[-1]), flush=True)
    if options.json and dist.get_rank() == 0:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
