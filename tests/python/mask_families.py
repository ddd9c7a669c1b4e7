# SPDX-License-Identifier: Apache-2.0
"""One small mask of each family, for the tests of what takes a mask."""

import numpy as np
import torch

from flashmask import block_maps, masks
from flashmask.masks import from_dense

N = 70


def _random_dense(*shape):
    return from_dense(np.random.default_rng(7).random(shape) < 0.3)


def _empty_rows():
    visible = np.tril(np.ones((N, N), bool))
    visible[10:20] = False
    return from_dense(visible)


FAMILIES = {
    "full": lambda: masks.full(N, N),
    "causal": lambda: masks.causal(N, N),
    "sliding_window": lambda: masks.sliding_window(N, N, 9),
    "causal_document": lambda: masks.causal_document([31, 0, 20], N),
    "document": lambda: masks.document([31, 19, 20], N),
    "shared_question": lambda: masks.shared_question([(10, [20, 15]), (5, [8, 12])], N),
    "global_sliding_window": lambda: masks.global_sliding_window(N, 4, 3, 5),
    "causal_blockwise": lambda: masks.causal_blockwise([30, 30, 10], N),
    "prefix_lm_document": lambda: masks.prefix_lm_document([40, 30], [12, 7], N),
    "prefix_lm_causal": lambda: masks.prefix_lm_causal(N, 33),
    "qk_sparse_segments": lambda: masks.qk_sparse_segments(N, [(5, 30), (40, 41)]),
    "hash_sparse_sorted": lambda: masks.hash_sparse_sorted(
        [(i // 14, 5 * (i % 14) + i // 14) for i in range(N)], [(i // 10, 7 * (i % 10) + i // 10) for i in range(N)]
    ),
    "random_eviction": lambda: masks.random_eviction(N, np.stack([np.full(N, N), np.minimum(np.arange(N) + 5, N)])),
    "tree": lambda: masks.tree([-1, 0, 0, 1], [20, 20, 20, 10], N),
    "bidirectional_spans": lambda: masks.bidirectional_spans(N, [(3, 17), (40, 50)]),
    "block_diffusion": lambda: masks.block_diffusion(N // 2, 5),
    "dilated_window": lambda: masks.dilated_window(N, N, 6, 0, 3),
    "big_bird": lambda: masks.big_bird(N, block=8, window_blocks=1, global_blocks=1, random_blocks=1, seed=3),
    "neighbourhood": lambda: masks.neighbourhood_2d((7, 3), (10, 5)),
    "graph": lambda: masks.graph(N, [(i, (i * i) % N) for i in range(N)], symmetric=True),
    "random_dense": lambda: _random_dense(N, N),
    "random_dense_heads_and_batch": lambda: _random_dense(2, 4, N, N),
    "random_dense_kv_heads": lambda: _random_dense(1, 2, N, N),
    "empty_rows": _empty_rows,
    "nothing": lambda: from_dense(np.zeros((N, N), bool)),
    "block_map": lambda: masks.from_block_map(block_maps.strided((N, N), 16, 2)),
}


def visible(mask):
    """Booleans [batch, heads, rows, columns] as a torch tensor."""
    return torch.from_numpy(mask.to_dense())
