"""Pictures of the curves, by matplotlib."""

from __future__ import annotations

from pathlib import Path

from comparison.results import Results

LABELS = {"ours": "FlashMask", "flex": "FlexAttention", "dense": "dense booleans"}
COLOURS = {"ours": "#1f5fa8", "flex": "#d97a1a", "dense": "#7a7a7a"}


def draw(results: Results, folder: Path) -> list[Path]:
    """One picture of all latency curves of a direction, one of the memory."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    for direction in ("forward", "backward"):
        curves = {name: points for name, points in results.curves.items() if name.endswith(f" {direction}")}
        if curves:
            drawn.append(draw_latency(curves, folder / f"latency-{direction}.png"))
    if "memory" in results.curves:
        drawn.append(draw_memory(results.curves["memory"], folder / "memory.png"))
    return drawn


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
