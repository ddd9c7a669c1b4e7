# SPDX-License-Identifier: Apache-2.0
"""Masks of one sequence: full, causal, windows."""

from __future__ import annotations

from typing import TYPE_CHECKING, overload

from flashmask._abi.library import create
from flashmask._arguments import integer, integers, length, pointer
from flashmask._graph_break import breaks_graph
from flashmask._mask import Mask

if TYPE_CHECKING:
    from flashmask._arguments import Integers


@breaks_graph
def full(rows: int, columns: int) -> Mask:
    """Every one of `rows` queries sees every one of `columns` keys (family 0)."""
    return Mask(create("mask_full", length("rows", rows), length("columns", columns)))


@breaks_graph
def causal(rows: int, columns: int | None = None) -> Mask:
    """Row i sees column j when j <= i + columns - rows, aligned bottom-right (family 1). `columns` defaults to rows."""
    return Mask(create("mask_causal", *_sides(rows, columns)))


@overload
def sliding_window(rows: int, window: int, *, columns: int | None = None) -> Mask: ...
@overload
def sliding_window(rows: int, columns: int | None, window: int) -> Mask: ...
@breaks_graph
def sliding_window(rows: int, *sizes: int | None, columns: int | None = None, window: int | None = None) -> Mask:
    """Causal, and each row sees its last `window` columns, itself included (family 2). `window` is at least 1.

    sliding_window(rows, window), or sliding_window(rows, columns, window): columns are as many as rows unless given.
    """
    if window is None and sizes:
        *sizes, window = sizes  # type: ignore[assignment]
    if window is None or len(sizes) > 1 or (sizes and columns is not None):
        raise TypeError("sliding_window() takes (rows, window) or (rows, columns, window), each of them once")
    columns = sizes[0] if sizes else columns
    return Mask(create("mask_sliding_window", *_sides(rows, columns), integer("window", window, minimum=1)))


def _sides(rows: int, columns: int | None) -> tuple[int, int]:
    tokens = length("rows", rows)
    return tokens, tokens if columns is None else length("columns", columns)


@breaks_graph
def window(rows: int, columns: int, left: int | None, right: int | None) -> Mask:
    """Each row sees `left` and `right` columns on either side of self, aligned bottom-right; None: no limit there."""
    return Mask(
        create(
            "mask_window",
            length("rows", rows),
            length("columns", columns),
            -1 if left is None else length("left", left),
            -1 if right is None else length("right", right),
        )
    )


@breaks_graph
def dilated_window(rows: int, columns: int, left: int, right: int, dilation: int) -> Mask:
    """Each row sees `left` and `right` columns on either side of self, `dilation` tokens apart; 1 is window().

    Beltagy et al. 2020 (Longformer), section 3.1.
    """
    return Mask(
        create(
            "mask_dilated_window",
            length("rows", rows),
            length("columns", columns),
            length("left", left),
            length("right", right),
            integer("dilation", dilation, minimum=1),
        )
    )


@breaks_graph
def global_sliding_window(tokens: int, globals: int, left: int, right: int) -> Mask:
    """The first `globals` tokens see and are seen by all; others see `left` and `right` neighbours (family 6)."""
    return Mask(
        create(
            "mask_global_sliding_window",
            length("tokens", tokens),
            length("globals", globals),
            length("left", left),
            length("right", right),
        )
    )


@breaks_graph
def global_tokens(tokens: int, positions: Integers, left: int, right: int) -> Mask:
    """The tokens at `positions` [count] see and are seen by all; others see `left` and `right` neighbours.

    Beltagy et al. 2020 (Longformer), section 3.1. Positions may come in any order.
    """
    given = integers("positions", positions)
    return Mask(
        create(
            "mask_global_tokens",
            length("tokens", tokens),
            pointer(given),
            given.size,
            length("left", left),
            length("right", right),
        )
    )
