# SPDX-License-Identifier: Apache-2.0
"""Masks made from other masks."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import TYPE_CHECKING

from flashmask._abi.library import create
from flashmask._arguments import described, items
from flashmask._graph_break import breaks_graph
from flashmask._mask import Mask

if TYPE_CHECKING:
    from flashmask._arguments import Integers


@breaks_graph
def stack_batch(masks: Iterable[Mask]) -> Mask:
    """Stacks one mask per batch entry, all with the same heads, rows and columns."""
    return _stacked("stack_batch", masks)


@breaks_graph
def stack_heads(masks: Iterable[Mask]) -> Mask:
    """Stacks one mask per head, all with the same batch, rows and columns."""
    return _stacked("stack_heads", masks)


def _stacked(name: str, masks: Iterable[Mask]) -> Mask:
    given = items("masks", masks, "masks")
    for k, mask in enumerate(given):
        if not isinstance(mask, Mask):
            raise TypeError(f"masks[{k}] is {described(mask)}; expected a Mask")
    handles = (ctypes.c_void_p * len(given))(*(mask._handle for mask in given))
    return Mask(create(f"mask_{name}", handles, len(given)))


@breaks_graph
def drop_queries(mask: Mask, rows: Integers) -> Mask:
    """Returns the mask without the given `rows` [count], which then see nothing."""
    if not isinstance(mask, Mask):
        raise TypeError(f"mask is {described(mask)}; expected a Mask")
    return mask.drop_queries(rows)
