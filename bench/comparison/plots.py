# SPDX-License-Identifier: Apache-2.0
"""Pictures of the curves, by matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from comparison.masks import TWELVE
from comparison.report import BOTH, of_twelve, total
from comparison.results import Results, RowResult
from comparison.workloads import LENGTHS, TOKENS

LABELS = {"ours": "FlashMask", "flex": "FlexAttention", "cudnn": "cuDNN", "dense": "dense booleans"}
COLOURS = {"ours": "#1f5fa8", "flex": "#d97a1a", "cudnn": "#4f9e53", "dense": "#7a7a7a"}


def draw(results: Results, folder: Path) -> list[Path]:
    """Draws one picture of the twelve masks, one of the latency curves per direction, and one of memory."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    trained = {tokens: of_twelve(results, tokens, BOTH) for tokens in LENGTHS}
    trained = {tokens: rows for tokens, rows in trained.items() if len(rows) == len(TWELVE)}
    if trained:
        drawn.append(draw_masks(trained, folder / "masks.png"))
    for direction in BOTH:
        curves = {name: points for name, points in results.curves.items() if name.endswith(f" {direction}")}
        if curves:
            drawn.append(draw_latency(curves, folder / f"latency-{direction}.png"))
    if "memory" in results.curves:
        drawn.append(draw_memory(results.curves["memory"], folder / "memory.png"))
    return drawn


def teraflops(rows: Sequence[RowResult], contestant: str) -> float | None:
    """TFLOP/s of all rows together, sustained."""
    if any(contestant not in row.measured for row in rows):
        return None
    return sum(row.flops for row in rows) / total(rows, contestant, "sustained") * 1e-9


def draw_masks(trained: dict[int, dict[str, list[RowResult]]], path: Path) -> Path:
    """Draws bars of TFLOP/s, one panel per length."""
    from matplotlib import pyplot

    figure, every = pyplot.subplots(
        1, len(trained), figsize=(1.5 + 4.2 * len(trained), 5.2), squeeze=False, sharey=True
    )
    names = ("ours", "flex", "cudnn")
    for axes, (tokens, by_mask) in zip(every[0], trained.items(), strict=True):
        for place, name in enumerate(names):
            bars = [(at + 0.27 * (place - 1), teraflops(rows, name)) for at, rows in enumerate(by_mask.values())]
            shown = [(at, rate) for at, rate in bars if rate is not None]
            axes.barh(
                [at for at, _ in shown], [rate for _, rate in shown], 0.25, color=COLOURS[name], label=LABELS[name]
            )
        axes.set(title=f"{TOKENS // tokens} × {tokens:,} tokens", xlabel="TFLOP/s on visible pairs, sustained")
        axes.set_yticks(range(len(by_mask)), [mask.replace("_", " ") for mask in by_mask])
        axes.grid(alpha=0.3, axis="x")
    every[0][0].invert_yaxis()
    figure.legend(*every[0][0].get_legend_handles_labels(), loc="lower center", ncol=len(names), frameon=False)
    run = next(iter(next(iter(trained.values())).values()))[1].run
    figure.suptitle(f"Forward and backward, bfloat16, 32 heads of 128, {run['gpu']}, {run['date']}", fontsize=10)
    figure.tight_layout(rect=(0, 0.05, 1, 1))
    figure.savefig(path, dpi=110)
    return path


def draw_latency(curves: dict[str, list[dict[str, float]]], path: Path) -> Path:
    from matplotlib import pyplot

    figure, every = pyplot.subplots(1, len(curves), figsize=(4.2 * len(curves), 3.6), squeeze=False)
    for axes, (name, points) in zip(every[0], curves.items(), strict=True):
        in_order = sorted(points, key=lambda point: point["sparsity"])
        for contestant in ("flex", "ours"):
            x, y = [point["sparsity"] for point in in_order], [point[contestant] for point in in_order]
            axes.plot(x, y, "o-", markersize=3, color=COLOURS[contestant], label=LABELS[contestant])
        axes.set(title=name, xlabel="share of 128 × 128 blocks that nobody sees", ylim=(0, None))
        axes.grid(alpha=0.3)
    every[0][0].set_ylabel("milliseconds, sustained")
    every[0][0].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    return path


def draw_memory(points: list[dict[str, float]], path: Path) -> Path:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(5, 3.8))
    for contestant in ("dense", "flex", "ours"):
        x, y = [point["tokens"] for point in points], [point[contestant] for point in points]
        axes.loglog(x, y, "o-", markersize=3, base=2, color=COLOURS[contestant], label=LABELS[contestant])
    axes.set(xlabel="tokens", ylabel="bytes of the mask")
    axes.set_yscale("log", base=10)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    return path
