# SPDX-License-Identifier: Apache-2.0
"""Measurements in a JSON file that grows from call to call."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Measured:
    """One contestant: milliseconds in both regimes, and the cost of its mask."""

    burst_ms: float
    sustained_ms: float
    prepare_ms: float
    mask_bytes: int
    extra_bytes: int
    """The most memory that the call took besides its inputs and outputs."""
    prepare_gpu_ms: float | None = None
    """The GPU's part of preparing, in milliseconds; None where it waited for the host, and in older files."""


@dataclass
class RowResult:
    """One row in one direction."""

    id: str
    direction: str
    flops: float
    """FLOP on visible pairs."""
    active_tiles: int
    """Active tiles of the first contestant, over all heads."""
    row_tiles: int
    run: dict[str, Any]
    """The machine, versions and what a matrix product reached in the same call."""
    measured: dict[str, Measured] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return f"{self.id} {self.direction}"

    def teraflops(self, contestant: str, regime: str) -> float:
        return self.flops / self.milliseconds(contestant, regime) * 1e-9

    def milliseconds(self, contestant: str, regime: str) -> float:
        taken = self.measured[contestant]
        return taken.burst_ms if regime == "burst" else taken.sustained_ms

    def ratio(self, contestant: str, regime: str) -> float:
        """A contestant's time over that of the first."""
        first = next(iter(self.measured))
        return self.milliseconds(contestant, regime) / self.milliseconds(first, regime)


class Results:
    """The results in a file, which is rewritten after each row, whole or not at all."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.rows: dict[str, RowResult] = {}
        self.curves: dict[str, list[dict[str, float]]] = {}
        if path is not None and path.exists():
            self._read(json.loads(path.read_text()))

    def _read(self, stored: dict[str, Any]) -> None:
        for one in stored["rows"]:
            one["measured"] = {name: Measured(**taken) for name, taken in one["measured"].items()}
            result = RowResult(**one)
            self.rows[result.key] = result
        self.curves = stored["curves"]

    def add(self, result: RowResult) -> None:
        self.rows[result.key] = result
        self._write()

    def add_curve(self, name: str, points: list[dict[str, float]]) -> None:
        self.curves[name] = points
        self._write()

    def _write(self) -> None:
        if self._path is None:
            return
        stored = {"rows": [asdict(row) for row in self.rows.values()], "curves": self.curves}
        part = self._path.with_suffix(".part")
        part.write_text(json.dumps(stored, indent=1) + "\n")
        part.replace(self._path)
