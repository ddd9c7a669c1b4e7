# SPDX-License-Identifier: Apache-2.0
"""The rows that can be measured, by name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from flashmask.data.synthetic import TASKS
from training.contestants import CONTESTANTS
from training.shapes import SHAPES, Shape

K = 1024


@dataclass(frozen=True)
class Row:
    """One measurement: a task with a model, a length and a contestant."""

    table: str
    task: str
    shape: str
    layers: int
    tokens: int
    contestant: str
    samples: int = 1
    """Bins of sparsity that a sample is taken of; 1: the middle sample of all."""
    steps: int = 1
    """Steps for each sample, after one that warms up; for a row of convergence, steps in all."""
    lengths: str = "synthetic"
    """Where the lengths of documents come from."""
    ranks: int = 1
    """Processes that work on the sequence, each on a device of its own."""

    @property
    def name(self) -> str:
        return f"{self.table}/{short(self.tokens)}/{self.contestant}"

    @property
    def size(self) -> Shape:
        return SHAPES[self.shape]

    @property
    def converges(self) -> bool:
        return self.table.startswith("convergence")

    @property
    def is_record(self) -> bool:
        return self.table.startswith("record")

    @property
    def is_long(self) -> bool:
        """Whether a step takes so long that the row has no step of its own length to warm up."""
        most = 64 * K if CONTESTANTS[self.contestant].everywhere else 128 * K
        return self.is_record or self.tokens > most


def short(tokens: int) -> str:
    return f"{tokens // K**2}M" if tokens % K**2 == 0 else f"{tokens // K}K"


VARLEN = ("varlen", "varlen3", "varlen4")
LONGEST = {"every-tile": 64 * K, **dict.fromkeys(VARLEN, 256 * K), "flex": 128 * K, "dense": 128 * K, "eager": 8 * K}
"""Sequences that are longer do not fit, or take minutes per step."""


def compared(task: str, shape: str, layers: int, lengths: Iterable[int], longest: dict[str, int]) -> Iterator[Row]:
    """Every contestant up to its longest sequence."""
    for tokens in lengths:
        for name in CONTESTANTS:
            if tokens <= longest.get(name, tokens):
                bins = 10 if tokens <= 64 * K else 1
                steps = 3 if tokens <= 16 * K else 1
                yield Row(f"{task}-{shape}-x{layers}", task, shape, layers, tokens, name, bins, steps)


def of_real_lengths(task: str, shape: str, layers: int) -> Iterator[Row]:
    for tokens in (8 * K, 32 * K, 64 * K, 128 * K):
        for name in ("flashmask", *VARLEN, "flex", "dense"):
            if tokens <= 64 * K or name != "dense":
                table = f"{task}-{shape}-x{layers}-alpaca"
                yield Row(table, task, shape, layers, tokens, name, lengths="alpaca")


def all_rows() -> list[Row]:
    models = {"sft": ("1b", 16), "lora": ("8b", 4), "dpo": ("8b", 4), "rm": ("8b", 4)}
    rows = []
    for task, model in models.items():
        lengths = [8 * K, 16 * K, 32 * K, 64 * K, 128 * K] + ([256 * K] if task in ("sft", "lora") else [])
        longest = LONGEST | ({"dense": 64 * K} if task == "sft" else {})
        rows += compared(task, *model, lengths, longest)
    for task, model in models.items():
        rows += of_real_lengths(task, *model)
    record = [("lora", "8b", 32, n * K) for n in (8, 32, 64, 128, 256, 544, 1024)]
    record += [("sft", "1b", 16, 1024 * K), ("rm", "8b", 32, 1024 * K)]
    rows += [Row(f"record/{task}-{shape}", task, shape, layers, n, "flashmask") for task, shape, layers, n in record]
    for task, n in (("lora", 544 * K), ("lora", 1024 * K), ("rm", 1024 * K)):
        rows.append(Row(f"record/{task}-8b-sparsest", task, "8b", 32, n, "flashmask", lengths="sparsest"))
    for ranks, sizes in ((2, (128, 1024, 2048)), (4, (128, 1024, 2048)), (8, (1024, 2048, 4096))):
        table = f"record/lora-8b-sparsest-ranks{ranks}"
        rows += [Row(table, "lora", "8b", 32, n * K, "flashmask", lengths="sparsest", ranks=ranks) for n in sizes]
    for task in TASKS:
        for name in ("flashmask", "every-tile", "dense"):
            rows.append(Row(f"convergence/{task}-8b-x4", task, "8b", 4, 8 * K, name, steps=200))
    return rows


def tiny_rows() -> list[Row]:
    """Rows that use all that rows can do, in seconds on a CPU."""
    rows = []
    for task in TASKS:
        for name in CONTESTANTS:
            rows.append(Row(f"{task}-tiny-x2", task, "tiny", 2, K, name, samples=2))
        for name in ("flashmask", "every-tile", "dense"):
            rows.append(Row(f"convergence/{task}-tiny-x2", task, "tiny", 2, K, name, steps=4))
    rows.append(Row("sft-tiny-x2-alpaca", "sft", "tiny", 2, K, "flashmask", lengths="alpaca"))
    rows.append(Row("record/lora-tiny", "lora", "tiny", 2, 2 * K, "flashmask"))
    rows.append(Row("record/lora-tiny-ranks2", "lora", "tiny", 2, 2 * K, "flashmask", ranks=2))
    return rows
