# SPDX-License-Identifier: Apache-2.0
"""Draws the pictures of docs/masks.md with the package itself: python docs/draw_masks.py [FOLDER]."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from flashmask import Mask, block_maps, masks

N = 64
DOCUMENTS = [26, 14, 20]
RANDOM = np.random.default_rng(4)
COLUMNS = 5


def hashed_tokens() -> list[tuple[int, int]]:
    """(bucket, position) of N tokens, sorted."""
    return sorted(zip(RANDOM.integers(0, 5, N).tolist(), range(N), strict=True))


def ring_of_friends() -> list[tuple[int, int]]:
    """Edges to two neighbours and a few far ones."""
    near = [(i, (i + step) % N) for i in range(N) for step in (1, 2)]
    return near + RANDOM.integers(0, N, (40, 2)).tolist()


INTERVALS: dict[str, Mask] = {
    "full": masks.full(N, N),
    "causal": masks.causal(N, N),
    "sliding_window": masks.sliding_window(N, N, 20),
    "window": masks.window(N, N, 16, 6),
    "causal_document": masks.causal_document(DOCUMENTS, N),
    "causal_document, two lengths": masks.causal_document(query_lengths=[24, 24, 16], key_lengths=[32, 12, 20]),
    "document": masks.document(DOCUMENTS, N),
    "document, two lengths": masks.document(query_lengths=[24, 24, 16], key_lengths=[32, 12, 20]),
    "sliding_window_document": masks.sliding_window_document(DOCUMENTS, N, 10),
    "shared_question": masks.shared_question([(14, [8, 10]), (10, [6, 8, 8])]),
    "global_sliding_window": masks.global_sliding_window(N, 8, 8, 8),
    "causal_blockwise": masks.causal_blockwise([16, 18, 14, 16]),
    "prefix_lm_document": masks.prefix_lm_document(DOCUMENTS, [12, 6, 12], N),
    "prefix_lm_causal": masks.prefix_lm_causal(N, 24),
    "qk_sparse_segments": masks.qk_sparse_segments(N, [(8, 24), (36, 52)]),
    "hash_sparse_sorted": masks.hash_sparse_sorted(hashed_tokens(), hashed_tokens()),
    "random_eviction": masks.random_eviction(N, RANDOM.integers(np.arange(N) + 1, 2 * N).clip(0, N)),
    "tree": masks.tree([-1, 0, 1, 1, 0, 4, 4], [16, 8, 8, 8, 8, 8, 8]),
    "bidirectional_spans": masks.bidirectional_spans(N, [(8, 24), (40, 56)]),
    "block_diffusion": masks.block_diffusion(N // 2, 8),
}

BITS: dict[str, Mask] = {
    "dilated_window": masks.dilated_window(N, N, 5, 5, 3),
    "global_tokens": masks.global_tokens(N, [3, 21, 22, 47], 5, 5),
    "big_bird": masks.big_bird(N, block=4, window_blocks=1, global_blocks=1, random_blocks=2, seed=5),
    "neighbourhood_2d": masks.neighbourhood_2d((8, 3), (8, 3)),
    "neighbourhood_3d": masks.neighbourhood_3d((4, 3), (4, 3), (4, 3)),
    "neighbourhood, dilated": masks.neighbourhood([(N, 9, 3)]),
    "strided_factorised": masks.strided_factorised(N, 8),
    "fixed_factorised": masks.fixed_factorised(N, 8, 2),
    "scfa_hash_sparse": masks.scfa_hash_sparse(RANDOM.integers(0, 4, N), RANDOM.integers(0, 4, N)),
    "scfa_qk_sparse": masks.scfa_qk_sparse(RANDOM.random(N) < 0.6, RANDOM.random(N) < 0.6),
    "drop_queries": masks.drop_queries(masks.window(N, N, 12, 6), [9, 10, 11, 30, 31, 32, 33, 50]),
    "tree_in_order": masks.tree_in_order([-1, *RANDOM.integers(0, np.arange(1, 40))], 40, 24),
    "medusa_tree": masks.medusa_tree([4, 3, 2], 40, 24),
    "medusa_tree, parent": masks.medusa_tree([4, 3, 2], 40, 24, sight="parent"),
    "graph": masks.graph(N, ring_of_friends(), symmetric=True, self_loops=True),
}

BLOCK_SCORES = RANDOM.standard_normal((16, 16)) - 0.2 * np.abs(np.arange(16)[:, None] - np.arange(16))
BLOCKS: dict[str, Mask] = {
    "butterfly": block_maps.butterfly((256, 256), 16).to_mask(),
    "strided": block_maps.strided((256, 256), 16, 4).to_mask(),
    "sliding": masks.causal(256, 256) & block_maps.sliding((256, 256), 16, 4, 0),
    "random": block_maps.random((256, 256), 16, 4, 1).to_mask(),
    "best": block_maps.best((256, 256), 16, BLOCK_SCORES, 4).to_mask(),
}

PICTURES = {"masks-intervals.png": (INTERVALS, 8), "masks-bits.png": (BITS, 8), "masks-blocks.png": (BLOCKS, 16)}
"""File, its panels and the side of the tiles in them."""


def draw(panels: dict[str, Mask], tile: int, path: Path) -> None:
    """A panel a mask."""
    rows = -(-len(panels) // COLUMNS)
    figure = Figure(figsize=(9.6, 2.15 * rows), layout="constrained")
    axes = figure.subplots(rows, COLUMNS, squeeze=False).ravel()
    for ax, (name, mask) in zip(axes, panels.items(), strict=False):
        mask.plot(ax=ax, title="", tile=(tile, tile))
        ax.set_title(name, fontsize=8.5, color="#30363d", pad=4)
        ax.set(xlabel="", ylabel="", xticks=[], yticks=[])
    for ax in axes[len(panels) :]:
        ax.axis("off")
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    for file, (panels, tile) in PICTURES.items():
        draw(panels, tile, folder / file)
