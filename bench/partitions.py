#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Usage: bench/partitions.py COMMAND > docs/several_gpus_simulated.md

Prints what `flashmask partition` reports for packs on 2 to 1,024 ranks, as tables. COMMAND is the `flashmask` command
of a build, such as build/ci/cli/flashmask. Packs are drawn with fixed seeds: the tables are the same on every machine.
"""

import json
import random
import subprocess
import sys
from statistics import fmean

K, M = 1 << 10, 1 << 20
QUERY_HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128
NVLINK, NETWORK = 260, 45
DIVISIONS = ("contiguous", "zigzag", "balanced")


def drawn(tokens, length):
    """Lengths drawn by length() that add up to `tokens`; the last one is cut."""
    lengths = []
    while tokens > 0:
        lengths.append(max(1, min(length(), tokens)))
        tokens -= lengths[-1]
    return lengths


def causal(tokens, seed):
    return ["causal", "--tokens", tokens]


def window(tokens, seed):
    return ["sliding_window", "--tokens", tokens, "--window", 4 * K]


def long_tail(tokens, seed):
    draw = random.Random(seed)
    return documents(drawn(tokens, lambda: min(int(draw.lognormvariate(5.8, 2)), tokens // 4)))


def short_documents(tokens, seed):
    draw = random.Random(seed)
    return documents(drawn(tokens, lambda: draw.randint(20, 190)))


def documents(lengths):
    return ["causal_document", "--documents", ",".join(map(str, lengths))]


def shared_questions(tokens, seed):
    """Questions of 512 to 8,192 tokens with eight answers of 256 to 4,096, as many as fit."""
    draw = random.Random(seed)
    groups, left = [], tokens
    while True:
        group = [int(512 * 16 ** draw.random())] + [int(256 * 16 ** draw.random()) for _ in range(8)]
        if sum(group) > left:
            break
        groups.append(":".join(map(str, group)))
        left -= sum(group)
    return ["shared_question", "--documents", ",".join(groups), "--tokens", tokens]


FAMILIES = {
    "causal": (causal, 1),
    "long tail": (long_tail, 6),
    "shared questions": (shared_questions, 6),
    "window 4,096": (window, 1),
    "short documents": (short_documents, 6),
}


def told(command, mask, ranks, *options):
    """The JSON of each division."""
    arguments = [command, "partition", *map(str, mask), "--ranks", str(ranks), "--json", *map(str, options)]
    out = subprocess.run(arguments, check=True, capture_output=True, text=True).stdout
    return {division["division"]: division for division in json.loads(out)["divisions"]}


def mean(results, division, name):
    return fmean(result[division][name] for result in results)


def balance_rows(command, tokens, ranks, packs):
    for name, (build, count) in FAMILIES.items():
        for number in ranks:
            results = [told(command, build(tokens, seed), number, "--aligned") for seed in range(min(count, packs))]
            cells = [
                f"{mean(results, division, 'work_max_over_mean'):.2f}, "
                f"{mean(results, division, 'moved_forward_bytes') / 1e6:,.1f}"
                for division in DIVISIONS
            ]
            worst = max(result["balanced"]["work_max_over_mean"] for result in results)
            pairs = [
                f"{mean(results, 'balanced', f'{what}_max_over_mean'):.2f}"
                for what in ("pairs", "columns")
                if f"{what}_max_over_mean" in results[0]["balanced"]
            ]
            runs = fmean(len(result["balanced"]["runs"]) for result in results)
            ideal = 100 * mean(results, "balanced", "share_of_ideal")
            free = [told(command, build(tokens, seed), number, "--division", "balanced") for seed in range(1)]
            moved = free[0]["balanced"]["moved_forward_bytes"] / 1e6
            yield (
                f"| {name}, {number} | {cells[0]} | {cells[1]} | **{cells[2]}** | {worst:.3f} | {', '.join(pairs)} | "
                f"{runs:.0f} | {moved:,.1f} | {ideal:.0f} % |"
            )


def balance_table(command, tokens, title, ranks, packs):
    print(
        f"\n| {title} | contiguous: work, MB | zig-zag | **balanced** | worst work | pairs, columns | runs | ", end=""
    )
    print("MB where cuts may be free | of the ideal |\n|---|---|---|---|---|---|---|---|---|")
    print("\n".join(balance_rows(command, tokens, ranks, packs)))


def heads_inside(tokens, nodes, gpus):
    """Milliseconds on NVLink, forward and backward, for turning tokens into heads and back inside a node."""
    moved = 4 * (QUERY_HEADS + KV_HEADS) * HEAD_DIM * (tokens // nodes) * (gpus - 1) / gpus**2
    return 2 * moved / NVLINK * 1e-6


def line(name, nodes, gpus, scheme, attention, slow, fast, ideal):
    share = 100 * ideal / (attention + slow + fast)
    times = f"{attention:,.1f} | {slow:,.1f} | {fast:,.1f}"
    print(f"| {name} | {nodes} x {gpus} | {scheme} | {times} | {share:.0f} % |")


def heads_by_rows(command, name, mask, tokens, nodes, gpus=8):
    """Prints heads inside a node and rows between nodes: a device has a share of the heads and its node's rows."""
    heads = ("--query-heads", QUERY_HEADS // gpus, "--kv-heads", KV_HEADS // gpus, "--bandwidth", NETWORK)
    one = told(command, mask, nodes, *heads, "--division", "balanced")["balanced"]
    times = [1e3 * one[f"{what}_seconds"] for what in ("attention", "wire", "ideal")]
    line(name, nodes, gpus, "heads x rows", times[0], times[1], heads_inside(tokens, nodes, gpus), times[2])


def rows_in_both(command, name, mask, nodes, gpus=8):
    one = told(command, mask, f"{nodes}x{gpus}", "--division", "balanced", "--node-bandwidth", NETWORK)["balanced"]
    attention, slow, fast, ideal = (
        1e3 * one[f"{what}_seconds"] for what in ("attention", "slow_wire", "wire", "ideal")
    )
    line(name, nodes, gpus, "rows", attention, slow, fast, ideal)


HEAD = """# Partitions, simulated

These tables show what `flashmask partition` predicts for a sequence over 2 to 1,024 ranks. They are computed, not
measured; [several_gpus.md](several_gpus.md) has measurements. `bench/partitions.py build/ci/cli/flashmask` makes them
and draws its packs with fixed seeds, so that the tables are the same on every machine.

The model has 32 query heads over 8 key heads of 128, bfloat16; 600 TFLOP/s per GPU; a GPU that sends and receives 260
GB/s inside a node and 45 GB/s between nodes; three exchanges of 80 µs per layer where anything is fetched.

- Work is the tiles of 128 x 128 that a rank's rows visit, plus two per row tile. *Work*, *pairs* (visible scores) and
  *columns* (tiles that visit a rank's columns) are those of the busiest rank divided by the mean.
- MB is how much of K and V the busiest rank sends or receives in a forward.
- *Long tail*: documents of log-normal lengths (median 330, σ = 2) cut at a quarter of the pack, 5 % of the scores
  visible at 128K and 0.8 % at 1M. *Shared questions*: 512 to 8,192 tokens with eight answers of 256 to 4,096. *Short
  documents*: 20 to 190 tokens.
- Numbers are means of six packs at 128K and of one at 1M; *worst work* is the largest of them.
- *Balanced* cuts at tile boundaries here. The column on free cuts is for the first pack, with cuts also allowed
  between tokens where no column crosses."""

BETWEEN = """
## Several nodes

Milliseconds per layer, forward and backward. *heads x rows*: ranks trade tokens for heads inside a node, and nodes
divide rows; *rows*: both levels divide rows, cut between nodes first (`--ranks 8x8`). Nothing is overlapped.

| | nodes | scheme | attention, ms | between nodes, ms | NVLink, ms | of the ideal |
|---|---|---|---|---|---|---|"""


def main():
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        print(__doc__.strip())
        return 2
    command = sys.argv[1]
    print(HEAD)
    balance_table(command, 128 * K, "128K, ranks", (2, 4, 8), 6)
    balance_table(command, M, "1M, ranks", (8, 64), 1)
    print(BETWEEN)
    heads_by_rows(command, "causal 1M", causal(M, 0), M, 8)
    heads_by_rows(command, "long tail 1M", long_tail(M, 0), M, 8)
    rows_in_both(command, "shared questions 1M", shared_questions(M, 0), 8)
    rows_in_both(command, "window 4,096, 1M", window(M, 0), 8)
    heads_by_rows(command, "causal 1M", causal(M, 0), M, 128)
    heads_by_rows(command, "causal 8M", causal(8 * M, 0), 8 * M, 128)
    rows_in_both(command, "long tail 8M", long_tail(8 * M, 0), 128)
    rows_in_both(command, "window 4,096, 8M", window(8 * M, 0), 128)
    return 0


if __name__ == "__main__":
    sys.exit(main())
