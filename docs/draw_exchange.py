# SPDX-License-Identifier: Apache-2.0
"""Draws who holds what in a layer with a state over two ranks, for docs/recurrent.md: python docs/draw_exchange.py."""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib

matplotlib.use("agg")
from matplotlib import pyplot

RUNS = [(0, 4, 0), (4, 11, 1), (11, 16, 0)]  # of tokens, and the rank that holds them
TOKENS, HEADS, DOCUMENT = 16, 4, 9
COLOURS = ["#4477aa", "#ee6677"]
TITLES = ["projections and convolution: by rows", "rule: by heads", "norm and projection: by rows"]


def main() -> None:
    """Draws it."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    figure, panels = pyplot.subplots(1, 3, figsize=(11, 2.6), layout="constrained")
    for axes, title, by_heads in zip(panels, TITLES, (False, True, False), strict=True):
        for head in range(HEADS):
            for begin, end, rank in RUNS:
                holder = head * 2 // HEADS if by_heads else rank
                axes.barh(head, end - begin, left=begin, height=0.9, color=COLOURS[holder], edgecolor="white")
        axes.axvline(DOCUMENT, color="black", linestyle=":")
        axes.set(title=title, xlabel="token", yticks=[], xlim=(0, TOKENS))
        axes.spines[["top", "right", "left"]].set_visible(False)
    arrow = {"arrowstyle": "->", "color": "black", "connectionstyle": "arc3,rad=-0.5"}
    for cut in (4, 11):
        panels[0].annotate("", (cut + 0.5, HEADS - 0.45), (cut - 0.7, HEADS - 0.45), arrowprops=arrow)
    panels[0].set(ylabel="heads", ylim=(-0.6, HEADS + 0.3))
    panels[1].set(ylim=(-0.6, HEADS + 0.3))
    panels[2].set(ylim=(-0.6, HEADS + 0.3))
    handles = [pyplot.Rectangle((0, 0), 1, 1, color=colour) for colour in COLOURS]
    figure.legend(handles, ["rank 0", "rank 1"], loc="outside right center", frameon=False)
    figure.savefig(folder / "exchange.png", dpi=110)


if __name__ == "__main__":
    main()
