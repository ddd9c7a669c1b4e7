# SPDX-License-Identifier: Apache-2.0
"""Masks of torchtitan's batches: documents within a window, and what its FlexAttention gets, a BlockMask."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from flashmask import Mask, RowIndices, masks
from flashmask._graph_break import breaks_graph

_FACTORIES = "torchtitan.models.common.attention"
_KEPT = "_flashmask_mask"


def within(lengths: Sequence[int], tokens: int, window: tuple[int, int]) -> Mask:
    """Returns documents within a window (tokens before, tokens after), -1 for no limit."""
    left, right = (None if side < 0 else side for side in window)
    documents = masks.causal_document(lengths, tokens) if right == 0 else masks.document(lengths, tokens)
    if left is None and not right:
        return documents
    return documents & masks.window(tokens, tokens, left, right)


def of_block_mask(block_mask: Any) -> Mask:
    """Returns the mask that a BlockMask stands for; it is made once, and kept by the BlockMask."""
    found: Mask | None = getattr(block_mask, _KEPT, None)
    return _made(block_mask) if found is None else found


@breaks_graph
def _made(block_mask: Any) -> Mask:
    made = masks.from_block_mask(block_mask)
    mask = made.to_mask() if isinstance(made, RowIndices) else made
    setattr(block_mask, _KEPT, mask)
    return mask


def make_with_block_masks() -> None:
    """Lets torchtitan make the mask beside each BlockMask from now on: its compiled layers, one graph each, cannot."""
    original = sys.modules[_FACTORIES].create_attention_mask
    if getattr(original, "__flashmask_original__", None):
        return

    def create_attention_mask(*arguments: Any, **keywords: Any) -> Any:
        block_mask = original(*arguments, **keywords)
        of_block_mask(block_mask)
        return block_mask

    create_attention_mask.__flashmask_original__ = original  # type: ignore[attr-defined]
    replace_everywhere(original, create_attention_mask)


def replace_everywhere(original: Any, ours: Any) -> None:
    """Puts a function of the same name into each module that has the original; later imports come from one of those."""
    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get(ours.__name__) is original:
            setattr(module, ours.__name__, ours)
