# SPDX-License-Identifier: Apache-2.0
"""Measurements in a JSON file that grows from call to call."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

GIB = 2**30
PARTS = ("linear", "attention forward", "attention backward", "loss", "copies")


@dataclass
class Measured:
    """A step over one sample."""

    documents: list[list[int]]
    """Lengths of the question and the answers of each."""
    weight: int
    """How many of 240 samples this one stands for."""
    sparsity: float
    seconds: float
    parts: dict[str, float]
    """Seconds by part. Copies run beside the others, and "linear" is what no other part but they took."""
    loss: float
    gradient_norm: float
    model_flops: float
    hardware_flops: float
    attention_flops: float
    """FLOP on visible pairs in all calls of attention, recomputation included."""
    alone: float
    """Seconds that all of these calls take by one that runs alone, with random numbers."""
    mask_seconds: float
    mask_bytes: int


@dataclass
class RowResult:
    """A row, or why it was not measured."""

    name: str
    row: dict[str, Any]
    run: dict[str, Any]
    """Date, device, versions and command."""
    measured: list[Measured] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    """Losses of all steps, in rows of convergence."""
    checksum: int = 0
    """Checksum of all learned weights in a row of convergence: equal for equal bits."""
    peak_card: int = 0
    peak_host: int = 0
    predicted_card: int = 0
    predicted_host: int = 0
    absent: str = ""

    def mean(self, of: Callable[[Measured], float]) -> float:
        """The mean of a step's value over all samples, by their weight."""
        return sum(each.weight * of(each) for each in self.measured) / sum(each.weight for each in self.measured)

    @property
    def seconds(self) -> float:
        return self.mean(lambda each: each.seconds)

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second; padding counts, and a question counts once even where a contestant repeats it."""
        return float(self.row["tokens"]) / self.seconds

    def part(self, name: str) -> float:
        return self.mean(lambda each: each.parts.get(name, 0.0))

    @property
    def attention_rate(self) -> float:
        """FLOP/s on visible pairs."""
        taken = self.part("attention forward") + self.part("attention backward")
        return self.mean(lambda each: each.attention_flops) / taken

    @property
    def beside_alone(self) -> float:
        """Time of attention in the step over its time alone."""
        taken = self.part("attention forward") + self.part("attention backward")
        return taken / self.mean(lambda each: each.alone)

    def rate(self, flops: str) -> float:
        return self.mean(lambda each: getattr(each, flops)) / self.seconds

    def line(self) -> str:
        """A line for the terminal."""
        if self.absent:
            return f"{self.name}: not measured: {self.absent}"
        if self.losses:
            return f"{self.name}: the loss went from {self.losses[0]:.4f} to {self.losses[-1]:.4f}"
        rates = {"attention": self.attention_rate} | {
            each: self.rate(f"{each}_flops") for each in ("model", "hardware")
        }
        said = [f"{self.seconds:.3f} s a step", f"{self.tokens_per_second:,.0f} tokens/s"]
        said += [f"{name} {self.part(name):.3f}" for name in PARTS]
        said += [f"{name} {rate / 1e12:.1f} TFLOP/s" for name, rate in rates.items()]
        said.append(f"attention {self.beside_alone:.3f} of its time alone")
        said.append(f"card {self.peak_card / GIB:.2f} GiB of {self.predicted_card / GIB:.2f} said")
        said.append(f"host {self.peak_host / GIB:.2f} GiB")
        said.append(f"loss {self.measured[0].loss:.6f}, gradient {self.measured[0].gradient_norm:.4g}")
        return f"{self.name}: {', '.join(said)}"


@dataclass
class Results:
    """Results by the rows' names, and their file."""

    path: Path
    rows: dict[str, RowResult] = field(default_factory=dict)

    @staticmethod
    def load(path: Path) -> Results:
        found = Results(path)
        if path.exists():
            for name, given in json.loads(path.read_text())["rows"].items():
                measured = [Measured(**each) for each in given.pop("measured")]
                found.rows[name] = RowResult(**given, measured=measured)
        return found

    def add(self, result: RowResult) -> None:
        """Adds a result and rewrites the file, whole or not at all. A reason for absence replaces no numbers."""
        held = self.rows.get(result.name)
        if result.absent and held is not None and not held.absent:
            return
        self.rows[result.name] = result
        self.path.parent.mkdir(parents=True, exist_ok=True)
        beside = self.path.with_suffix(".part")
        beside.write_text(json.dumps({"rows": {name: asdict(row) for name, row in self.rows.items()}}, indent=1) + "\n")
        beside.replace(self.path)

    def tables(self) -> dict[str, dict[int, dict[str, RowResult]]]:
        """{table: {tokens: {contestant: result}}} of rows with numbers or a reason for none."""
        found: dict[str, dict[int, dict[str, RowResult]]] = {}
        for result in self.rows.values():
            of_table = found.setdefault(result.row["table"], {})
            of_table.setdefault(result.row["tokens"], {})[result.row["contestant"]] = result
        return {table: dict(sorted(lengths.items())) for table, lengths in found.items()}
