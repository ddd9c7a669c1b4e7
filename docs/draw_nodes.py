# SPDX-License-Identifier: Apache-2.0
"""Draws the picture of docs/recurrent.md with the package itself: python docs/draw_nodes.py [FOLDER]."""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib
import numpy as np
import torch

import flashmask
from flashmask import masks

matplotlib.use("agg")
from matplotlib import pyplot

# A document, then a prompt with three answers, of which the second one forks again.
ENDS = [14] * 14 + [48] * 12 + [33] * 7 + [42] * 4 + [40] * 3 + [42] * 2 + [48] * 6
COLOURS = ["#4477aa", "#66a5cf", "#ee6677", "#228833", "#8fbf6b", "#c9b037", "#aa3377"]


def main() -> None:
    """Draws it."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    rows = torch.tensor(ENDS, dtype=torch.int32)[None, None, :, None]
    mask = masks.from_startend_row_indices(rows, causal=True)
    nodes = flashmask.nodes(mask)
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.7), width_ratios=(1, 1.5), layout="constrained")
    _draw_mask(left, mask, nodes)
    _draw_tree(right, nodes)
    figure.savefig(folder / "recurrent.png", dpi=110)


def _draw_mask(axes: pyplot.Axes, mask: flashmask.Mask, nodes: flashmask.Nodes) -> None:
    colours = np.ones((nodes.tokens, nodes.tokens, 3))
    visible = np.asarray(mask.to_dense())[0, 0]
    for number, (begin, end) in enumerate(zip(nodes.begins, nodes.ends, strict=True)):
        of_node = np.zeros_like(visible)
        of_node[:, begin:end] = visible[:, begin:end]
        colours[of_node] = matplotlib.colors.to_rgb(COLOURS[number % len(COLOURS)])
    axes.imshow(colours, interpolation="nearest")
    axes.set(title="the mask, coloured by node", xlabel="key", ylabel="query", xticks=[], yticks=[])


def _draw_tree(axes: pyplot.Axes, nodes: flashmask.Nodes) -> None:
    for number, (begin, end) in enumerate(zip(nodes.begins, nodes.ends, strict=True)):
        level, parent = nodes.levels[number], nodes.parents[number]
        axes.barh(-level, end - begin, left=begin, height=0.45, color=COLOURS[number % len(COLOURS)])
        axes.text((begin + end) / 2, -level, str(number), ha="center", va="center", color="white", fontsize=9)
        if parent >= 0:
            origin = (nodes.ends[parent] - 0.3, -nodes.levels[parent] - 0.22)
            arrow = {"arrowstyle": "->", "color": "#555555", "connectionstyle": "arc3,rad=0.15"}
            axes.annotate("", (begin + 0.4, -level + 0.24), origin, arrowprops=arrow)
    axes.set(title="its nodes: where a state passes on, and where it forks", xlabel="token")
    axes.set_yticks([-level for level in range(nodes.depth)], [f"level {level}" for level in range(nodes.depth)])
    axes.spines[["top", "right", "left"]].set_visible(False)


if __name__ == "__main__":
    main()
