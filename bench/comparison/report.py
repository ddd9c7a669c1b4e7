# SPDX-License-Identifier: Apache-2.0
"""Markdown tables of the results."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

import numpy as np

from comparison.contestants import CONTESTANTS
from comparison.masks import TWELVE
from comparison.results import Results, RowResult
from comparison.workloads import LENGTHS, all_workloads, short

REGIMES = ("burst", "sustained")
BOTH = ("forward", "backward")
CLOCK_HZ = 1.98e9
"""The highest clock of an H100 and an H200."""


def pair(result: RowResult, contestant: str) -> str:
    if contestant not in result.measured:
        return ""
    return " / ".join(f"{result.ratio(contestant, regime):.2f}" for regime in REGIMES)


def size(count: float) -> str:
    for unit in ("B", "KB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"


def both(result: RowResult, first: str, text: str = "ms") -> str:
    """The first contestant's milliseconds, TFLOP/s or per cent of a matrix product, in both regimes."""
    rates = result.run["matmul_tflops"]
    cells = {
        "ms": [f"{result.milliseconds(first, regime):.3f}" for regime in REGIMES],
        "tflops": [f"{result.teraflops(first, regime):.0f}" for regime in REGIMES],
        "percent": [f"{100 * result.teraflops(first, regime) / rates[regime]:.0f}" for regime in REGIMES],
    }
    return " / ".join(cells[text])


def line(result: RowResult, others: list[str]) -> str:
    first, *rest = result.measured
    mine = result.measured[first]
    peer = result.measured[rest[0]] if rest else None
    prepare = f"{mine.prepare_ms:.2f}" + (f" / {peer.prepare_ms:.2f}" if peer else "")
    sizes = size(mine.mask_bytes) + (f" / {size(peer.mask_bytes)}" if peer else "")
    cells = [
        result.id.split("/", maxsplit=1)[1],
        *(both(result, first, text) for text in ("ms", "tflops", "percent")),
        *(pair(result, other) for other in others),
        prepare,
        "" if mine.prepare_gpu_ms is None else f"{mine.prepare_gpu_ms:.3f}",
        sizes,
        size(mine.extra_bytes),
    ]
    return f"| {' | '.join(cells)} |"


def of_table(results: Results, table: str, direction: str) -> list[RowResult]:
    ids = [workload.id for workload in all_workloads() if workload.table == table]
    keys = [f"{one} {direction}" for one in ids]
    return [results.rows[key] for key in keys if key in results.rows]


def table_text(results: Results, table: str, direction: str) -> Iterator[str]:
    rows = of_table(results, table, direction)
    if not rows:
        return
    others = [name for name in CONTESTANTS if any(name in list(row.measured)[1:] for row in rows)]
    heads = [
        "mask",
        "ms",
        "TFLOP/s",
        "% of a matrix product",
        *(f"{CONTESTANTS[name].label} ÷ ours" for name in others),
    ]
    heads += [
        "mask ready, ms: ours / first peer",
        "of which on the GPU, ms: ours",
        "mask bytes: ours / first peer",
        "extra memory",
    ]
    yield f"\n### {table}, {direction}\n"
    yield f"| {' | '.join(heads)} |"
    yield "|" + "---|" * len(heads)
    yield from (line(row, others) for row in rows)
    if table in FITTED:
        yield from fit_text(rows)


def totals(results: Results, names: list[str]) -> Iterator[str]:
    """Forward and backward together, where both were measured."""
    lines = []
    for key, result in results.rows.items():
        backward = results.rows.get(f"{result.id} backward")
        if not key.endswith(" forward") or backward is None:
            continue
        parts = [result, backward]
        cells = [
            " / ".join(f"{total(parts, name, regime) / total(parts, 'ours', regime):.2f}" for regime in REGIMES)
            if name in result.measured and name in backward.measured
            else ""
            for name in names
        ]
        ms = " / ".join(f"{total(parts, 'ours', regime):.3f}" for regime in REGIMES)
        lines.append(f"| {result.id} | {ms} | {' | '.join(cells)} |")
    if lines:
        yield "\n### Forward and backward together\n"
        yield f"| row | ms | {' | '.join(f'{CONTESTANTS[name].label} ÷ ours' for name in names)} |"
        yield "|---|---|" + "---|" * len(names)
        yield from lines


def total(parts: Sequence[RowResult], contestant: str, regime: str) -> float:
    return sum(part.milliseconds(contestant, regime) for part in parts)


def of_twelve(results: Results, tokens: int, directions: Sequence[str]) -> dict[str, list[RowResult]]:
    """Results by mask, for those of the twelve masks that were measured in all of the directions."""
    keys = {mask: [f"twelve/{mask}/{short(tokens)} {direction}" for direction in directions] for mask in TWELVE}
    return {
        mask: [results.rows[key] for key in own]
        for mask, own in keys.items()
        if all(key in results.rows for key in own)
    }


def means(results: Results) -> Iterator[str]:
    """Yields means over the twelve masks, relative to FlexAttention."""
    lines = []
    for directions in (("forward",), ("backward",), BOTH):
        for tokens in LENGTHS:
            found = {
                mask: parts
                for mask, parts in of_twelve(results, tokens, directions).items()
                if all("flex" in part.measured for part in parts)
            }
            if found:
                lines.append(mean_line(found, tokens, " and ".join(directions)))
    if lines:
        yield "\n### FlexAttention ÷ ours over the twelve masks\n"
        yield "| tokens | direction | masks | geometric mean | least, sustained |\n|---|---|---|---|---|"
        yield from lines


def mean_line(rows: dict[str, list[RowResult]], tokens: int, direction: str) -> str:
    ratios = {
        regime: {mask: total(parts, "flex", regime) / total(parts, "ours", regime) for mask, parts in rows.items()}
        for regime in REGIMES
    }
    mean = " / ".join(f"{statistics.geometric_mean(ratios[regime].values()):.2f}" for regime in REGIMES)
    worst = min(rows, key=lambda mask: ratios["sustained"][mask])
    return f"| {short(tokens)} | {direction} | {len(rows)} | {mean} | {worst}: {ratios['sustained'][worst]:.2f} |"


FITTED = ("documents", "blocks")


def fit_text(rows: list[RowResult]) -> Iterator[str]:
    """Yields a linear fit of milliseconds over active tiles, and its intercept: the time without any."""
    if len(rows) < 3:
        return
    tiles = np.array([row.active_tiles for row in rows], float)
    for regime in REGIMES:
        taken = np.array([row.milliseconds("ours", regime) for row in rows])
        # Fits relative deviations, so that short rows weigh as much as long ones.
        design = np.stack([tiles, np.ones_like(tiles)], axis=1) / taken[:, None]
        slope, intercept = np.linalg.lstsq(design, np.ones_like(taken), rcond=None)[0]
        off = np.abs((slope * tiles + intercept) / taken - 1).max()
        cycles = intercept * 1e-3 * CLOCK_HZ * rows[0].run["multiprocessors"] / rows[0].row_tiles
        yield (
            f"\nA linear fit over active tiles, {regime}: {1e6 * slope:.2f} ns a tile, largest deviation "
            f"{100 * off:.1f} %, intercept {1e3 * intercept:.0f} µs, which is {cycles:.0f} cycles a row tile."
        )


def absent_text(results: Results) -> Iterator[str]:
    reasons: dict[str, list[str]] = {}
    for row in results.rows.values():
        for name, reason in row.absent.items():
            if not reason.startswith("has no masks but"):
                reasons.setdefault(f"{CONTESTANTS[name].label}: {reason[:200]}", []).append(row.key)
    if reasons:
        yield "\n### Not measured\n"
        for reason, rows in reasons.items():
            yield f"- {reason}" + ("" if "not installed" in reason else f" ({', '.join(rows)})")


def text(results: Results) -> str:
    lines: list[str] = []
    for row in results.rows.values():
        run, rates = row.run, row.run["matmul_tflops"]
        peers = "".join(f"{package} {version}, " for package, version in run.get("peers", {}).items())
        lines.append(
            f"{run['date']}, {run['gpu']}, torch {run['torch']}, cuDNN {run['cudnn']}, "
            f"{peers}flashmask {run['flashmask']}; a product of 8192³ reached {rates['burst']:.0f} TFLOP/s burst and "
            f"{rates['sustained']:.0f} sustained; "
            f"`{run['command']}`"
        )
    lines = list(dict.fromkeys(lines))
    tables = list(dict.fromkeys(workload.table for workload in all_workloads()))
    for direction in BOTH:
        for table in tables:
            lines += table_text(results, table, direction)
    lines += [*means(results), *totals(results, ["flex", "cudnn"]), *absent_text(results)]
    return "\n".join(lines) + "\n"
