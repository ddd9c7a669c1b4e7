"""Masks by what a person knows: lengths, windows, trees, graphs; or from arrays, predicates and row indices.

Every builder checks its numbers and returns a flashmask.Mask. Lengths and positions are in tokens. Causality and
windows are aligned bottom-right: "self" of row i is column i + columns - rows. docs/masks.md draws every family.
"""

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
from flashmask.masks._imports import from_csr, from_dense, from_packed, from_pairs, from_startend_row_indices
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
    "SharedQuestion",
    "bidirectional_spans",
    "block_diffusion",
    "causal",
    "causal_blockwise",
    "causal_document",
    "dilated_window",
    "document",
    "from_csr",
    "from_dense",
    "from_packed",
    "from_pairs",
    "from_startend_row_indices",
    "full",
    "global_sliding_window",
    "global_tokens",
    "prefix_lm_causal",
    "prefix_lm_document",
    "shared_question",
    "sliding_window",
    "sliding_window_document",
    "window",
]
