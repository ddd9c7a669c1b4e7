# SPDX-License-Identifier: Apache-2.0
"""Reads masks off the closures of Transformers' mask functions, which transformers.masking_utils makes.

A model describes its mask by a function of (batch, head, query, key) made of a few parts. Evaluating it takes time and
memory for every pair; the parts hold the same information in one number or tensor each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers import masking_utils

from flashmask.transformers._visible import (
    VisibleRows,
    causal,
    chunks,
    equal_runs,
    every_row,
    last_keys,
    neighbours,
    runs,
)

MaskFunction = Callable[..., Any]
_CAUSAL = "causal_mask_function"
_ALL_OF = "and_masks.<locals>.and_mask"
_INNER = "{}.<locals>.inner_mask"
_PACKED = _INNER.format("packed_sequence_mask_function")
_REMAPPED = _INNER.format("remap_positions_for_packed_sequence")
_BLOCKS = _INNER.format("blockwise_overlay")
_BLOCKS_IN_DOCUMENTS = (
    "image blocks that see themselves both ways came with packed documents to a model under torch.compile, where "
    "flashmask cannot read both off one mask function; run this model without torch.compile, or without packing"
)


@dataclass(frozen=True)
class Keys:
    """The keys a mask function is asked about: `count` of them, from number `offset` on."""

    count: int
    offset: int
    device: torch.device | str
    positions: Tensor | None = None  #: int64 [B, count], if the function takes positions in documents
    documents: Tensor | None = None  #: int64 [B, count], where each key's document begins, if there are any

    @property
    def columns(self) -> Tensor:
        """Key arguments for the function: the keys' numbers, int64 [1, count], or their positions."""
        return self.numbers if self.positions is None else self.positions

    @property
    def numbers(self) -> Tensor:
        """Numbers of the keys, int64 [1, count]."""
        return torch.arange(self.count, device=self.device)[None] + self.offset


def recognise(function: MaskFunction, keys: Keys) -> VisibleRows | None:
    """Returns the numbers of the rows that see each key, or None if the function has a part that is not known."""
    name, held = _parts(function)
    reader = _READERS.get(name)
    return reader(held, keys) if reader is not None else None


def causal_documents(function: MaskFunction) -> tuple[bool, Tensor | None]:
    """Returns whether a mask is only causal within documents, and document numbers [B, S], None for one document."""
    name, held = _parts(function)
    if name == _CAUSAL:
        return True, None
    parts = [_parts(each) for each in held["mask_functions"]] if name == _ALL_OF else []
    documents = [held["packed_sequence_mask"] for name, held in parts if name == _PACKED]
    # Later versions of Transformers pass positions here, earlier ones numbers: the same for causality.
    others = [
        _parts(held["mask_function"])[0] if name == _REMAPPED else name for name, held in parts if name != _PACKED
    ]
    if len(documents) != 1 or others != [_CAUSAL]:
        return False, None
    return True, documents[0]


def within_documents(function: MaskFunction, begins: Tensor | None) -> MaskFunction:
    """Restricts a mask to documents, told by where that of each token begins, int64 [B, all keys], unless it is."""
    name, held = ("", {}) if torch.compiler.is_compiling() else _parts(function)
    packed = name == _ALL_OF and any(_parts(each)[0] == _PACKED for each in held["mask_functions"])
    if begins is None or packed:
        return function
    both: MaskFunction = masking_utils.and_masks(function, masking_utils.packed_sequence_mask_function(begins))
    return both


def recognise_traced(
    function: MaskFunction, keys: Keys, *, batch: int, window: int | None, both_ways: bool
) -> VisibleRows:
    """Does what recognise() does while torch.compile traces, which cannot look into closures.

    Transformers passes the window, and whether the mask is not causal (`both_ways`), beside the function. Only the
    documents remain to be found: one ends after a key if the next row does not see that key. Blocks that see themselves
    both ways inside documents look like documents here; they are detected by a row that sees the next key.
    """
    columns = keys.columns
    if both_ways:
        rows = every_row(columns) if window is None else neighbours(columns, window)
    else:
        rows = causal(columns) if window is None else causal(columns) & last_keys(columns, window)
    entries = torch.arange(batch, device=keys.device)[:, None]
    head = torch.zeros_like(entries)
    together = function(entries, head, columns[:, 1:], columns[:, :-1])
    if not both_ways:
        ahead = function(entries, head, columns[:, :-1], columns[:, 1:])
        torch._assert_async(~ahead.any(), _BLOCKS_IN_DOCUMENTS)
    return rows & runs(torch.nn.functional.pad(~together, (1, 0), value=True))


def _parts(function: MaskFunction) -> tuple[str, dict[str, Any]]:
    """Returns the name of a function of masking_utils, "" for any other, and the values in its closure."""
    if getattr(function, "__module__", None) != masking_utils.__name__:
        return "", {}
    cells = function.__closure__ or ()
    return function.__qualname__, dict(
        zip(function.__code__.co_freevars, (cell.cell_contents for cell in cells), strict=True)
    )


def _intersection(held: dict[str, Any], keys: Keys) -> VisibleRows | None:
    functions = held["mask_functions"]
    for name, closed_over in map(_parts, functions):
        if name == _PACKED:
            begins = equal_runs(closed_over["packed_sequence_mask"]).first
            keys = replace(keys, documents=begins[:, keys.offset : keys.offset + keys.count])
    found = [recognise(each, keys) for each in functions]
    rows = found[0]
    for other in found[1:]:
        rows = rows & other if rows is not None and other is not None else None
    return rows


def _remapped(held: dict[str, Any], keys: Keys) -> VisibleRows | None:
    """Reads a function of positions inside documents, where positions and numbers differ by a constant."""
    if keys.documents is None:
        return None
    positions = held["position_ids"]
    rows = recognise(held["mask_function"], replace(keys, positions=positions, documents=None))
    return None if rows is None else rows.starting_at(positions - keys.numbers)


def _chunks(held: dict[str, Any], keys: Keys) -> VisibleRows:
    """Reads chunks, which begin with each document, behind padding on the left."""
    begin = held["left_padding"][:, None]
    if keys.documents is not None:
        begin = torch.maximum(begin, keys.documents)
    return chunks(keys.columns, held["chunk_size"], begin)


def _documents(held: dict[str, Any], keys: Keys) -> VisibleRows | None:
    if keys.positions is not None:
        return None
    rows = equal_runs(held["packed_sequence_mask"])
    return VisibleRows(*(each[:, keys.offset : keys.offset + keys.count] for each in rows))


def _union(held: dict[str, Any], keys: Keys) -> VisibleRows | None:
    """Reads any mask whose rows see themselves, joined with two-way blocks: in column j both ranges hold row j."""
    functions = held["mask_functions"]
    if len(functions) != 2 or _parts(functions[1])[0] != _BLOCKS or keys.positions is not None:
        return None
    rows, blocks = recognise(functions[0], keys), _blocks(_parts(functions[1])[1]["block_sequence_ids"], keys)
    return rows.widened(blocks) if rows is not None and blocks is not None else None


def _blocks(ids: Tensor, keys: Keys) -> VisibleRows | None:
    """Returns the blocks of equal numbers in ids [B, all keys], ignoring negative ones; None if a block has gaps."""
    held = equal_runs(ids)
    in_block = ids >= 0
    begins = in_block & (held.first == torch.arange(ids.shape[-1], device=ids.device))
    numbers = torch.where(begins, ids, -1 - torch.arange(ids.shape[-1], device=ids.device)).sort(-1).values
    if bool((numbers[:, 1:] == numbers[:, :-1]).any()):
        return None
    rows = VisibleRows(held.first, torch.where(in_block, held.end, held.first))
    return VisibleRows(*(each[:, keys.offset : keys.offset + keys.count] for each in rows))


_READERS: dict[str, Callable[[dict[str, Any], Keys], VisibleRows | None]] = {
    _CAUSAL: lambda _, keys: causal(keys.columns),
    "bidirectional_mask_function": lambda _, keys: every_row(keys.columns),
    _INNER.format("sliding_window_overlay"): lambda held, keys: last_keys(keys.columns, held["sliding_window"]),
    _INNER.format("sliding_window_bidirectional_overlay"): lambda held, keys: neighbours(
        keys.columns, held["sliding_window"]
    ),
    _INNER.format("chunked_overlay"): _chunks,
    _PACKED: _documents,
    _REMAPPED: _remapped,
    _ALL_OF: _intersection,
    "or_masks.<locals>.or_mask": _union,
}
