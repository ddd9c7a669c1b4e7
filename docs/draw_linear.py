# SPDX-License-Identifier: Apache-2.0
"""Draws the picture of docs/linear.md with the package itself: python docs/draw_linear.py [FOLDER]."""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib
import numpy as np

import flashmask
from flashmask import masks

matplotlib.use("agg")
from matplotlib import pyplot

STEP = 4  # 64 in the kernels
SCORES, STATE = "#ee6677", "#b8d4e8"


def main() -> None:
    """Draws it."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    mask = _mask()
    nodes = flashmask.nodes(mask)
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.7), width_ratios=(1, 1.5), layout="constrained")
    _draw_mask(left, mask, nodes)
    _draw_steps(right, nodes)
    figure.savefig(folder / "linear.png", dpi=110)


def _mask() -> flashmask.Mask:
    """A document of 14 tokens, and a prompt of 12 with three answers."""
    mask, _ = masks.tree([-1, -1, 1, 1, 1], [14, 12, 9, 6, 7], 48)
    return mask


def _steps(nodes: flashmask.Nodes) -> list[tuple[int, int, int]]:
    """Returns (node, begin, end) of all steps."""
    return [
        (node, begin, min(begin + STEP, end))
        for node, (first, end) in enumerate(zip(nodes.begins, nodes.ends, strict=True))
        for begin in range(first, end, STEP)
    ]


def _draw_mask(axes: pyplot.Axes, mask: flashmask.Mask, nodes: flashmask.Nodes) -> None:
    visible = np.asarray(mask.to_dense())[0, 0]
    colours = np.ones((*visible.shape, 3))
    colours[visible] = matplotlib.colors.to_rgb(STATE)
    for _, begin, end in _steps(nodes):
        own = np.zeros_like(visible)
        own[begin:end, begin:end] = visible[begin:end, begin:end]
        colours[own] = matplotlib.colors.to_rgb(SCORES)
    axes.imshow(colours, interpolation="nearest")
    axes.set(title="red: scores; blue: through the state", xlabel="key", ylabel="query", xticks=[], yticks=[])


def _draw_steps(axes: pyplot.Axes, nodes: flashmask.Nodes) -> None:
    for node, begin, end in _steps(nodes):
        level, parent = nodes.levels[node], nodes.parents[node]
        axes.barh(-level, end - begin - 0.3, left=begin, height=0.42, color=SCORES)
        arrow = {"arrowstyle": "->", "color": "#4477aa", "lw": 1.6}
        if begin > nodes.begins[node]:
            axes.annotate("", (begin + 0.5, -level), (begin - 1, -level), arrowprops=arrow)
        elif parent >= 0:
            arrow["connectionstyle"] = "arc3,rad=0.12"
            axes.annotate("", (begin + 0.3, -level + 0.22), (nodes.ends[parent] - 0.5, -0.22), arrowprops=arrow)
    axes.set(title="steps of a node, and the states that they pass on", xlabel="token", ylim=(-1.6, 0.6))
    axes.set_yticks([0, -1], ["documents,\nprompts", "answers"])
    axes.spines[["top", "right", "left"]].set_visible(False)


if __name__ == "__main__":
    main()
