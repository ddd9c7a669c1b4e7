# SPDX-License-Identifier: Apache-2.0
"""Masks of torchtitan's batches: documents within a window, and what its FlexAttention gets, a BlockMask.

A BlockMask keeps the predicates that it was made from. torchtitan's own (causal, documents, sliding windows, fixed
blocks) are read from what they enclose, in time linear in the tokens; any other predicate is evaluated for each pair.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from flashmask import Mask, masks
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
    mask = _by_parts(block_mask) or _by_pairs(block_mask)
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


class _Parts(NamedTuple):
    """What a predicate of torchtitan asks for: tokens of the same part, at most `left` before and `right` after it.

    `parts` [1 or batch, tokens] numbers the parts, each of them a run; None: all tokens are one part. `of_causal`: the
    predicate means that only beside a causal one.
    """

    parts: Tensor | None = None
    left: int = -1
    right: int = -1
    of_causal: bool = False


_READ: dict[str, Callable[[Mapping[str, Any], int], _Parts]] = {
    "get_causal_mask_mod": lambda held, _: _Parts(right=0),
    "get_sliding_window_mask_mod": lambda held, _: _Parts(left=held["window_size"] - 1, right=0),
    "get_fixed_block_mask_mod": lambda held, tokens: _Parts(torch.arange(tokens)[None] // held["fixed_block_size"]),
    "get_document_mask_mod": lambda held, _: _Parts(held["doc_ids"]),
    "get_efficient_causal_mask_mod_for_packed_document": lambda held, _: _Parts(_ends_or_ids(held), of_causal=True),
}
"""By the function of torchtitan that made a predicate: how it is read from the variables that it encloses."""


def _ends_or_ids(held: Mapping[str, Any]) -> Tensor:
    """Returns numbers of documents, which one sequence has, or the last token of each token's document."""
    found: Tensor = held["document_id"][None] if "document_id" in held else held["doc_end_by_token"]
    return found


def _predicates(mask_mod: Any) -> Iterator[Any]:
    """Yields the predicates that and_masks() joined, however deep."""
    if mask_mod.__qualname__ == "and_masks.<locals>.and_mask":
        for each in inspect.getclosurevars(mask_mod).nonlocals["mask_mods"]:
            yield from _predicates(each)
    else:
        yield mask_mod


def _by_parts(block_mask: Any) -> Mask | None:
    """Returns the mask of torchtitan's own predicates, None if there are others."""
    _, heads, rows, tokens = block_mask.shape
    read = []
    for each in _predicates(block_mask.mask_mod):
        factory = each.__qualname__.partition(".")[0]
        if each.__module__ != _FACTORIES or factory not in _READ:
            return None
        read.append(_READ[factory](inspect.getclosurevars(each).nonlocals, tokens))
    numbers = [each.parts.cpu() for each in read if each.parts is not None]
    left, right = (min((w for w in sides if w >= 0), default=-1) for sides in zip(*(r[1:3] for r in read), strict=True))
    unlike = right != 0 and any(each.of_causal for each in read)
    # A sequence whose first position is not 0 has tokens before its first document, number -1.
    if rows != tokens or heads != 1 or unlike or any((each < 0).any() for each in numbers):
        return None
    changes = torch.zeros(1, tokens - 1, dtype=torch.bool)
    for each in numbers:
        changes = changes | each.diff(dim=1).ne(0)
    cuts = [[0, *(row.nonzero()[:, 0] + 1).tolist(), tokens] for row in changes]
    return masks.stack_batch(
        [within([end - begin for begin, end in pairwise(of)], tokens, (left, right)) for of in cuts]
    )


def _by_pairs(block_mask: Any) -> Mask:
    """Returns the mask of any predicate, within the blocks that the BlockMask has."""
    batch, heads, rows, columns = block_mask.shape
    blocks = block_mask.to_dense().bool()
    for dim, size in zip((-2, -1), block_mask.BLOCK_SIZE, strict=True):
        blocks = blocks.repeat_interleave(size, dim)
    device = blocks.device
    found = masks.from_mask_mod(block_mask.mask_mod, batch, heads, rows, columns, device=device)
    return found & masks.from_dense(blocks[..., :rows, :columns].cpu())
