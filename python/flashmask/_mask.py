# SPDX-License-Identifier: Apache-2.0
"""Mask: which query row sees which key column."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from flashmask._abi import structs as s
from flashmask._abi.header import HEADER_BYTES, Options, header, read_header
from flashmask._abi.library import call, create, library
from flashmask._arguments import boolean, copied, integer, integers, length, pairs, pointer, structs
from flashmask._explain import FORMS, Explanation, explain, percent
from flashmask._graph_break import breaks_graph

if TYPE_CHECKING:
    import torch
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from typing_extensions import Self

    from flashmask._arguments import Integers, Pairs
    from flashmask._reordering import Reordering


class MaskShape(NamedTuple):
    """Sizes of a mask; a batch of 1 is shared by every batch entry, 1 head by every head."""

    batch: int
    heads: int
    rows: int
    columns: int

    def struct(self) -> s.MaskShape:
        """Returns the shape as the struct of the C ABI."""
        return s.MaskShape(*self)


_MOST_VECTORS = 4  # of row indices, per column
_unpacking = threading.Lock()


class Mask:
    """An immutable mask: which of `rows` queries sees which of `columns` keys, per batch entry and mask head.

    The builders in flashmask.masks make masks. `&`, `|` and `~` combine them; two masks are equal when they have the
    same shape and the same visible scores.
    """

    _native: int | None
    _tensor: torch.Tensor | None

    def __init__(self, handle: int, mask_id: bytes | None = None) -> None:
        """Takes over a handle of the C ABI; builders call this, users do not."""
        self._native = handle
        self._id = mask_id or os.urandom(16)
        self._tensor = None
        if "torch" in sys.modules:  # torch.compile can read an attribute but not call the library
            self._make_tensor()

    def __del__(self, destroy: Any = library.flashmask_mask_destroy) -> None:
        native = getattr(self, "_native", None)
        if native is not None:
            destroy(native)

    @classmethod
    def _from_tensor(cls, tensor: Any) -> Self:
        """Makes the mask whose pytree leaf is `tensor`; the library unpacks it when it is first asked about it."""
        mask = cls.__new__(cls)
        mask._native = None
        mask._tensor = tensor
        return mask

    @property
    def _handle(self) -> int:
        """The handle of the C ABI; lives as long as the mask."""
        if self._native is None:
            with _unpacking:
                if self._native is None:
                    packed = np.ascontiguousarray(self.tensor.detach().cpu().numpy())
                    self._id, _ = read_header(packed[:HEADER_BYTES].tobytes())
                    self._native = _unpacked_handle(packed)
        return self._native

    @property
    def tensor(self) -> torch.Tensor:
        """The mask as operators take it: uint8 [n] on the CPU, a header with id and options, then the packed mask."""
        if self._tensor is None:
            self._make_tensor()
        assert self._tensor is not None
        return self._tensor

    def _make_tensor(self) -> None:
        from flashmask._torch.plans.by_tensor import remember
        from flashmask._torch.pytree import register
        from flashmask._torch.shared import to_keep

        register()
        self._tensor = to_keep(self._packed(Options()))
        remember(self)

    def _packed(self, options: Options) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        """Returns the header and the packed mask [HEADER_BYTES + n], as operators take them."""
        handle = self._handle
        size = ctypes.c_int64()
        call("mask_pack", handle, None, 0, ctypes.byref(size))
        packed = np.empty(HEADER_BYTES + size.value, np.uint8)
        packed[:HEADER_BYTES] = np.frombuffer(header(self._id, options), np.uint8)
        call("mask_pack", handle, packed.ctypes.data + HEADER_BYTES, size.value, ctypes.byref(size))
        return packed

    @classmethod
    def _unpack(cls, packed: np.ndarray[Any, np.dtype[np.uint8]], *fields: Any) -> Self:
        """Unpacks what _packed() returned, in whatever process; keeps the id, since it is the same mask.

        `fields` are what a subclass holds besides.
        """
        mask_id, _ = read_header(packed[:HEADER_BYTES].tobytes())
        return cls(_unpacked_handle(packed), *(*fields, mask_id))

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle, (self._packed(Options()).tobytes(),)

    def __copy__(self) -> Mask:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Mask:
        return self

    # ---- inspection ----

    @property
    def shape(self) -> MaskShape:
        """(batch, heads, rows, columns)."""
        sizes = s.MaskShape()
        call("mask_get_shape", self._handle, ctypes.byref(sizes))
        return MaskShape(sizes.batch, sizes.heads, sizes.rows, sizes.columns)

    @property
    def form(self) -> str:
        """The exact lowered form: "intervals", at most two masked ranges of rows per column, or "bits"."""
        form = ctypes.c_int32()
        call("mask_get_form", self._handle, ctypes.byref(form), None)
        return FORMS[form.value]

    @property
    def why(self) -> str:
        """Why the mask has that form; for bits, the first column that needs more than two ranges."""
        why = ctypes.c_char_p()
        call("mask_get_form", self._handle, None, ctypes.byref(why))
        return (why.value or b"").decode()

    @breaks_graph
    def to_dense(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Returns booleans [batch, heads, rows, columns], True = visible."""
        shape = self.shape
        visible = np.empty(shape, np.uint8)
        call("mask_expand", self._handle, pointer(visible, ctypes.c_uint8), visible.size)
        return visible.view(np.bool_)

    @breaks_graph
    def to_startend_row_indices(self) -> tuple[np.ndarray[Any, np.dtype[np.int32]], bool]:
        """Returns the shortest row indices that express the mask, int32 [batch, heads, columns, n], and their `causal`.

        Raises NotImplementedError, naming the first column that does not fit, for a bit mask, and for a mask that a
        block map was ANDed onto.
        """
        encoding, (batch, heads, _, columns) = s.StartendRowIndices(), self.shape
        room = np.empty(batch * heads * columns * _MOST_VECTORS, np.int32)  # pages that nothing is written to stay free
        given = pointer(room, ctypes.c_int32), room.size, ctypes.byref(encoding)
        call("mask_to_startend_row_indices", self._handle, *given)
        values = room[: batch * heads * columns * encoding.vectors]
        return values.reshape(batch, heads, columns, encoding.vectors), bool(encoding.causal)

    @breaks_graph
    def to_row_ranges(self, most_ends: int = 63) -> np.ndarray[Any, np.dtype[np.int32]]:
        """Returns what each row sees, int32 [heads, ends, batch * rows]: the `mask_func` of NVIDIA's flex_attention.

        Row r sees the columns [0, e0), [e1, e2), [e3, e4) and so on: an odd number of ends, the fewest that express all
        rows. Raises NotImplementedError, naming the first row that needs more than `most_ends`.
        """
        handle = create("mask_to_row_ranges", self._handle, integer("most_ends", most_ends, minimum=1))
        try:
            view = s.RowRangesView()
            call("row_ranges_get", handle, ctypes.byref(view))
            shape = (self.shape.heads, view.ends, self.shape.batch * self.shape.rows)
            return copied(view.values, *shape, dtype=np.int32)
        finally:
            library.flashmask_row_ranges_destroy(handle)

    @breaks_graph
    def explain(self, tile: tuple[int, int] = (128, 128)) -> Explanation:
        """Explains what the mask is and what it costs, in tiles of `tile` (rows, columns)."""
        return explain(self._handle, self.why, tile)

    @breaks_graph
    def draw(self, batch: int = 0, head: int = 0, width: int = 64, colour: bool = False) -> str:
        """Draws the mask of one batch entry and head in characters, at most `width` wide, row 0 on top.

        Small masks have one character per score: "#" visible, "." masked. Larger ones have one per block of scores: "#"
        all visible, "+" some, "." none. `colour`: with ANSI colours.
        """
        options = s.DrawOptions(
            length("batch", batch),
            length("head", head),
            integer("width", width, minimum=1),
            int(boolean("colour", colour)),
        )
        size = ctypes.c_size_t()
        call("mask_draw", self._handle, ctypes.byref(options), None, 0, ctypes.byref(size))
        text = ctypes.create_string_buffer(size.value)
        call("mask_draw", self._handle, ctypes.byref(options), text, size.value, ctypes.byref(size))
        return text.value.decode()

    @breaks_graph
    def plot(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        batch: int = 0,
        head: int = 0,
        tile: tuple[int, int] | None = None,
        title: str | None = None,
        ax: Axes | None = None,
    ) -> Figure:
        """Plots one batch entry and head with matplotlib, and saves it to `path` (.png, .svg, .pdf) if one is given.

        Full, partial and skipped tiles of `tile` (rows, columns) each have their own colour; None: 128 x 128, or an
        eighth of a smaller mask. Masks of more than 2,048 tokens are painted block by block. `ax`: axes to paint into
        instead of a new figure. Returns the figure. Raises ImportError without matplotlib: pip install
        'flashmask[plot]'.
        """
        from flashmask._plot import plot

        return plot(self, path, batch, head, tile, title, ax)

    @breaks_graph
    def __str__(self) -> str:
        """Returns a line or two on the mask and a drawing of its first batch entry and head, at most 64 wide."""
        shape = self.shape
        cost = self.explain()
        head = " x ".join(map(str, shape))
        lines = [
            f"Mask {head} (batch, heads, rows, columns), {cost.form}, {percent(cost.density)} visible, "
            f"{cost.active_tiles:,} of {cost.tiles:,} tiles active at {cost.tile_rows} x {cost.tile_columns}"
        ]
        if 0 in shape:
            return lines[0]
        if shape.batch * shape.heads > 1:
            lines.append("batch entry 0, head 0:")
        return "\n".join([*lines, self.draw().rstrip("\n")])

    def __repr__(self) -> str:
        shape = self.shape
        sizes = ", ".join(f"{name}={size}" for name, size in shape._asdict().items())
        return f"<flashmask.Mask {sizes}, form={self.form}>"

    # ---- algebra ----

    @breaks_graph
    def __and__(self, other: object) -> Mask:
        if not isinstance(other, Mask):
            return NotImplemented
        return Mask(create("mask_and", self._handle, other._handle))

    @breaks_graph
    def __or__(self, other: object) -> Mask:
        if not isinstance(other, Mask):
            return NotImplemented
        return Mask(create("mask_or", self._handle, other._handle))

    @breaks_graph
    def __invert__(self) -> Mask:
        return Mask(create("mask_not", self._handle))

    @breaks_graph
    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mask):
            return NotImplemented
        if self is other:
            return True
        return self.shape == other.shape and (self._id == other._id or not ((self & ~other) | (other & ~self))._any())

    def __hash__(self) -> int:
        return hash(self.shape)

    def _any(self) -> bool:
        """Whether any score is visible."""
        explanation = s.Explanation()
        call("mask_explain", self._handle, 128, 128, ctypes.byref(explanation))
        return bool(explanation.visible_pairs)

    @breaks_graph
    def permute(self, rows: Integers, columns: Integers) -> Mask:
        """Returns the mask whose row i, column j is row rows[i], column columns[j] of this one.

        The permutations are [rows] and [columns], or one per batch entry of the mask, [batch, rows] and [batch,
        columns].
        """
        from flashmask._reordering import permute

        return permute(self, rows, columns)

    @breaks_graph
    def reorder(self, tile: tuple[int, int] = (128, 128)) -> Reordering:
        """Reorders the tokens so that the mask takes less work in tiles of `tile` (rows, columns), where possible.

        Reverse Cuthill-McKee on the symmetrised mask, and on the bipartite graph of rows and columns. Sharma and
        Geiping 2024 (Binary Block Masking), section 3.2.
        """
        from flashmask._reordering import reorder

        return reorder(self, tile)

    @breaks_graph
    def slice(self, rows: Pairs, columns: Pairs) -> Mask:
        """Returns the mask of some of its rows and columns, such as those that one of several GPUs holds.

        `rows` and `columns` [count, 2] are half-open (begin, end): rows disjoint and ascending, columns disjoint in any
        order. Batch and heads stay. Causality follows the tokens' positions in the whole mask, not their new ones.
        """
        given_rows, given_columns = pairs("rows", rows), pairs("columns", columns)
        return Mask(
            create(
                "mask_slice",
                self._handle,
                structs(given_rows, s.Span),
                len(given_rows),
                structs(given_columns, s.Span),
                len(given_columns),
            )
        )

    @breaks_graph
    def drop_queries(self, rows: Integers) -> Mask:
        """Returns the mask without the given `rows` [count], which then see nothing."""
        dropped = integers("rows", rows)
        return Mask(create("mask_drop_queries", self._handle, pointer(dropped), dropped.size))


def _unpacked_handle(packed: np.ndarray[Any, np.dtype[np.uint8]]) -> int:
    body = np.ascontiguousarray(packed[HEADER_BYTES:])
    return create("mask_unpack", body.ctypes.data, body.size)


def _unpickle(packed: bytes) -> Mask:
    return Mask._unpack(np.frombuffer(packed, np.uint8))
