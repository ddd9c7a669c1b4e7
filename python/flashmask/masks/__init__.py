# SPDX-License-Identifier: Apache-2.0
"""Builders of masks from what a user knows (lengths, windows, trees, graphs), or from arrays, predicates, row indices.

Every builder checks its arguments and returns a flashmask.Mask. Lengths and positions are in tokens. Causality and
windows are aligned bottom-right: "self" of row i is column i + columns - rows. docs/masks.md draws every family.
"""

from flashmask._reordering import reverse_cuthill_mckee
from flashmask.masks._block_mask import from_block_mask
from flashmask.masks._documents import (
    SharedQuestion,
    bidirectional_spans,
    block_diffusion,
    causal_blockwise,
    causal_document,
    document,
    prefix_lm_causal,
    prefix_lm_document,
    shared_question,
    sliding_window_document,
)
from flashmask.masks._imports import (
    from_bias,
    from_block_map,
    from_csr,
    from_dense,
    from_packed,
    from_pairs,
    from_row_ranges,
    from_startend_row_indices,
)
from flashmask.masks._mask_mod import from_mask_mod
from flashmask.masks._sparse import (
    NeighbourhoodAxis,
    big_bird,
    fixed_factorised,
    hash_sparse_sorted,
    neighbourhood,
    neighbourhood_2d,
    neighbourhood_3d,
    qk_sparse_segments,
    random_eviction,
    scfa_hash_sparse,
    scfa_qk_sparse,
    strided_factorised,
)
from flashmask.masks._stacks import drop_queries, stack_batch, stack_heads
from flashmask.masks._tensor_diffusion import interleaved_blocks, packed_block_diffusion
from flashmask.masks._tensor_drafts import dflash
from flashmask.masks._tensor_trees import from_tree
from flashmask.masks._tensors import from_cu_seqlens, from_document_ids, from_position_ids
from flashmask.masks._trees import TreeMask, graph, medusa_parents, medusa_tree, tree, tree_in_order
from flashmask.masks._windows import (
    causal,
    dilated_window,
    full,
    global_sliding_window,
    global_tokens,
    sliding_window,
    window,
)

__all__ = [
    "NeighbourhoodAxis",
    "SharedQuestion",
    "TreeMask",
    "bidirectional_spans",
    "big_bird",
    "block_diffusion",
    "causal",
    "causal_blockwise",
    "causal_document",
    "dflash",
    "dilated_window",
    "document",
    "drop_queries",
    "fixed_factorised",
    "from_bias",
    "from_block_map",
    "from_block_mask",
    "from_csr",
    "from_cu_seqlens",
    "from_dense",
    "from_document_ids",
    "from_mask_mod",
    "from_packed",
    "from_pairs",
    "from_position_ids",
    "from_row_ranges",
    "from_startend_row_indices",
    "from_tree",
    "full",
    "global_sliding_window",
    "global_tokens",
    "graph",
    "hash_sparse_sorted",
    "interleaved_blocks",
    "medusa_parents",
    "medusa_tree",
    "neighbourhood",
    "neighbourhood_2d",
    "neighbourhood_3d",
    "packed_block_diffusion",
    "prefix_lm_causal",
    "prefix_lm_document",
    "qk_sparse_segments",
    "random_eviction",
    "reverse_cuthill_mckee",
    "scfa_hash_sparse",
    "scfa_qk_sparse",
    "shared_question",
    "sliding_window",
    "sliding_window_document",
    "stack_batch",
    "stack_heads",
    "strided_factorised",
    "tree",
    "tree_in_order",
    "window",
]
