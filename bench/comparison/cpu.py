# SPDX-License-Identifier: Apache-2.0
"""python bench/compare.py [--rows documents,full] [--rounds 7] [--threads 1] [--json out.json]

FlashMask beside PyTorch's own attention on the CPU: the same tensors and threads in one process, interleaved, medians.

Prints a Markdown table. Outputs and gradients are compared before anything is timed, so that every contestant is known
to compute the same thing. A mask's preparation and the compilation of FlexAttention are not part of a time; the
preparation is timed on its own.
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

import flashmask
from comparison.data import alpaca

TOKENS = 4096
HEADS = 8
TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 5e-2}

Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass
class Contestant:
    """`prepare` returns the attention over (B, S, H, D) tensors, and the bytes of its mask."""

    name: str
    prepare: Callable[[], tuple[Attention, int]]
    backward: bool = True


@dataclass
class Times:
    """Seconds of each round."""

    forward: list[float] = field(default_factory=list)
    backward: list[float] = field(default_factory=list)


@dataclass
class Row:
    """One contestant's median times in milliseconds, and how many times FlashMask's they are."""

    workload: str
    contestant: str
    prepare_ms: float
    mask_bytes: int
    forward_ms: float
    backward_ms: float | None
    forward_ratio: float = 1.0
    both_ratio: float | None = None
    prepare_ratio: float = 1.0


@dataclass
class Workload:
    """Contestants over the same tensors, FlashMask first."""

    name: str
    head_dim: int
    dtype: torch.dtype
    contestants: list[Contestant]


def by_heads_first(run: Attention) -> Attention:
    """Adapts `run`, which takes and returns (B, H, S, D)."""
    return lambda q, k, v: run(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)).transpose(1, 2)


def ours(build: Callable[[], flashmask.Mask]) -> Callable[[], tuple[Attention, int]]:
    """The mask makes the plan at the first call, outside the timed part, and keeps it."""

    def prepare() -> tuple[Attention, int]:
        mask = build()
        explanation = mask.explain()
        size = explanation.mask_bytes + explanation.schedule_bytes
        return lambda q, k, v: flashmask.attention(q, k, v, mask), size

    return prepare


def document_ids(documents: list[int]) -> torch.Tensor:
    return torch.repeat_interleave(torch.arange(len(documents)), torch.tensor(documents))


def dense_mask(documents: list[int]) -> tuple[Attention, int]:
    ids = document_ids(documents)
    mask = (ids[:, None] == ids[None, :]).tril_()
    return by_heads_first(lambda q, k, v: scaled_dot_product_attention(q, k, v, attn_mask=mask)), mask.numel()


def one_call_a_document(documents: list[int]) -> tuple[Attention, int]:
    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        parts = zip(*(x.split(documents, dim=2) for x in (q, k, v)), strict=True)
        return torch.cat([scaled_dot_product_attention(*part, is_causal=True) for part in parts], dim=2)

    return by_heads_first(run), 0


def compiled_flex(documents: list[int]) -> tuple[Attention, int]:
    ids = document_ids(documents)

    def same_document(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return (ids[q] == ids[k]) & (q >= k)

    block_mask = create_block_mask(same_document, None, None, TOKENS, TOKENS, device="cpu")
    size = sum(x.numel() * x.element_size() for x in block_mask.as_tuple() if isinstance(x, torch.Tensor))
    compiled = torch.compile(flex_attention, dynamic=False)
    return by_heads_first(lambda q, k, v: compiled(q, k, v, block_mask=block_mask)), size


def documents_workload(head_dim: int, dtype: torch.dtype) -> Workload:
    documents = alpaca(TOKENS).lengths
    return Workload(
        "documents",
        head_dim,
        dtype,
        [
            Contestant("FlashMask", ours(lambda: flashmask.masks.causal_document(documents, TOKENS))),
            Contestant("SDPA, dense mask", lambda: dense_mask(documents)),
            Contestant("SDPA, one call a document", lambda: one_call_a_document(documents)),
            Contestant("FlexAttention, compiled", lambda: compiled_flex(documents), backward=False),
        ],
    )


def square_workload(name: str, head_dim: int, dtype: torch.dtype) -> Workload:
    build = flashmask.masks.causal if name == "causal" else flashmask.masks.full
    sdpa = by_heads_first(lambda q, k, v: scaled_dot_product_attention(q, k, v, is_causal=name == "causal"))
    return Workload(
        name,
        head_dim,
        dtype,
        [Contestant("FlashMask", ours(lambda: build(TOKENS, TOKENS))), Contestant("SDPA", lambda: (sdpa, 0))],
    )


def workloads(names: list[str]) -> list[Workload]:
    made = {"documents": [documents_workload(64, torch.float32)]}
    for name in ("full", "causal"):
        sizes = itertools.product((torch.float32, torch.bfloat16), (64, 128))
        made[name] = [square_workload(name, head_dim, dtype) for dtype, head_dim in sizes]
    return [workload for name in names for workload in made[name]]


def run_once(run: Attention, inputs: list[torch.Tensor], grad_o: torch.Tensor, backward: bool, times: Times) -> None:
    given = inputs if backward else [x.detach() for x in inputs]
    start = time.perf_counter()
    o = run(*given)
    middle = time.perf_counter()
    times.forward.append(middle - start)
    if backward:
        torch.autograd.grad(o, inputs, grad_o)
        times.backward.append(time.perf_counter() - middle)


def check_agreement(workload: Workload, runs: list[Attention], inputs: list[torch.Tensor]) -> None:
    with torch.no_grad():
        given = [x.detach() for x in inputs]
        expected = runs[0](*given)
        for contestant, run in zip(workload.contestants, runs, strict=True):
            error = (run(*given) - expected).abs().max().item()
            if not error <= TOLERANCES[workload.dtype]:
                raise RuntimeError(f"{workload.name}: {contestant.name} differs from FlashMask by {error}")


def prepare_times(contestant: Contestant, rounds: int) -> list[float]:
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        contestant.prepare()
        times.append(time.perf_counter() - start)
    return times


def measure(workload: Workload, rounds: int) -> list[Row]:
    generator = torch.Generator().manual_seed(0)
    shape = (1, TOKENS, HEADS, workload.head_dim)
    q, k, v, grad_o = (torch.randn(shape, generator=generator).to(workload.dtype) for _ in range(4))
    inputs = [x.requires_grad_() for x in (q, k, v)]
    prepared = [contestant.prepare() for contestant in workload.contestants]
    check_agreement(workload, [run for run, _ in prepared], inputs)
    times = [Times() for _ in prepared]
    for round_number in range(rounds + 1):
        progress(f"{workload.name} {workload.dtype} d={workload.head_dim}: round {round_number} of {rounds}")
        for contestant, (run, _), taken in zip(workload.contestants, prepared, times, strict=True):
            # The first round warms up.
            run_once(run, inputs, grad_o, contestant.backward, taken if round_number > 0 else Times())
    preparations = [statistics.median(prepare_times(contestant, rounds)) for contestant in workload.contestants]
    rows = [
        Row(
            workload=f"{workload.name}, {str(workload.dtype).removeprefix('torch.')}, d = {workload.head_dim}",
            contestant=contestant.name,
            prepare_ms=1e3 * preparation,
            mask_bytes=size,
            forward_ms=1e3 * statistics.median(taken.forward),
            backward_ms=1e3 * statistics.median(taken.backward) if contestant.backward else None,
        )
        for contestant, (_, size), taken, preparation in zip(
            workload.contestants, prepared, times, preparations, strict=True
        )
    ]
    return with_ratios(rows)


def with_ratios(rows: list[Row]) -> list[Row]:
    first = rows[0]
    assert first.backward_ms is not None
    for row in rows:
        row.prepare_ratio = row.prepare_ms / first.prepare_ms
        row.forward_ratio = row.forward_ms / first.forward_ms
        if row.backward_ms is not None:
            row.both_ratio = (row.forward_ms + row.backward_ms) / (first.forward_ms + first.backward_ms)
    return rows


def progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def table(rows: list[Row]) -> str:
    lines = [
        "| workload | contestant | forward ms | backward ms | ÷ ours, forward | ÷ ours, both | mask ms | mask bytes |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        backward = "none" if row.backward_ms is None else f"{row.backward_ms:.1f}"
        both = "" if row.both_ratio is None else f"{row.both_ratio:.2f}"
        times = f"{row.forward_ms:.1f} | {backward} | {row.forward_ratio:.2f} | {both}"
        lines.append(f"| {row.workload} | {row.contestant} | {times} | {row.prepare_ms:.3f} | {row.mask_bytes} |")
    return "\n".join(lines)


def arguments(given: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="documents,full,causal", help="workloads, by commas (default: all)")
    parser.add_argument("--rounds", type=int, default=7, help="timed calls of each contestant (default: 7)")
    parser.add_argument("--threads", type=int, default=1, help="threads of PyTorch and FlashMask (default: 1)")
    parser.add_argument("--json", type=Path, help="also write the numbers here")
    parsed = parser.parse_args(given)
    unknown = set(parsed.rows.split(",")) - {"documents", "full", "causal"}
    if unknown:
        parser.error(f"--rows names {sorted(unknown)}; choose from documents, full, causal")
    return parsed


def main(arguments_given: list[str]) -> None:
    given = arguments(arguments_given)
    torch.set_num_threads(given.threads)
    rows = [row for workload in workloads(given.rows.split(",")) for row in measure(workload, given.rounds)]
    progress("")
    print(
        f"{platform.processor() or platform.machine()}, {given.threads} thread(s), torch {torch.__version__}, "
        f"flashmask {flashmask.__version__}, {TOKENS} tokens, {HEADS} heads, median of {given.rounds}\n\n{table(rows)}"
    )
    if given.json:
        given.json.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")
