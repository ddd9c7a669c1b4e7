# SPDX-License-Identifier: Apache-2.0
"""Visible query rows as one range per key column, which is all that Transformers' own masks need."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from flashmask._torch.packing import document_of

_EVERY_ROW = 2**31 - 1


class VisibleRows(NamedTuple):
    """Query rows [first_j, end_j) see key column j; none do if end_j <= first_j. int64 [B or 1, Sk]."""

    first: Tensor
    end: Tensor

    def __and__(self, other: VisibleRows) -> VisibleRows:
        return VisibleRows(torch.maximum(self.first, other.first), torch.minimum(self.end, other.end))

    def widened(self, other: VisibleRows) -> VisibleRows:
        """Returns the union with `other`, whose ranges touch these or are empty."""
        first, end = torch.minimum(self.first, other.first), torch.maximum(self.end, other.end)
        seen = other.first < other.end
        return VisibleRows(torch.where(seen, first, self.first), torch.where(seen, end, self.end))

    def where(self, columns: Tensor) -> VisibleRows:
        """Hides the columns that are False in columns [B or 1, Sk] from every row."""
        return VisibleRows(self.first, torch.where(columns, self.end, 0))

    def starting_at(self, offset: int | Tensor) -> VisibleRows:
        """Renumbers the rows, so that row number `offset` becomes row 0."""
        return VisibleRows(self.first - offset, self.end - offset)

    def packed(self, rows: int) -> Tensor:
        """Returns int32 [B or 1, Sk, 2]: the vectors (end, first) in [0, rows], which are (LTS, UTE) of row indices."""
        batch = max(len(self.end), len(self.first))
        vectors = torch.stack((self.end.expand(batch, -1), self.first.expand(batch, -1)), dim=-1)
        return vectors.clamp(0, rows).to(torch.int32)


def unpacked(rows: Tensor) -> VisibleRows:
    """Inverts packed()."""
    end, first = rows.long().unbind(-1)
    return VisibleRows(first, end)


def every_row(columns: Tensor) -> VisibleRows:
    """Returns full attention; columns int64 [1, Sk] are the numbers of the keys."""
    return VisibleRows(torch.full_like(columns, -_EVERY_ROW), torch.full_like(columns, _EVERY_ROW))


def causal(columns: Tensor) -> VisibleRows:
    """Lets row i see keys up to number i."""
    return VisibleRows(columns, torch.full_like(columns, _EVERY_ROW))


def last_keys(columns: Tensor, window: int) -> VisibleRows:
    """Lets row i see keys after number i - window; causality is not included."""
    return VisibleRows(torch.full_like(columns, -_EVERY_ROW), columns + window)


def neighbours(columns: Tensor, distance: int) -> VisibleRows:
    """Lets row i see keys at most `distance` away on either side."""
    return VisibleRows(columns - distance, columns + distance + 1)


def chunks(columns: Tensor, size: int, begin: Tensor) -> VisibleRows:
    """Lets rows see the keys of their own chunk of `size`; begin [B, 1 or Sk] is where the first chunk begins."""
    first = begin + (columns - begin).div(size, rounding_mode="floor") * size
    return VisibleRows(first, first + size)


def runs(starts: Tensor) -> VisibleRows:
    """Returns the run that holds each position; runs begin where starts [B, S] is True, and at position 0."""
    index = torch.arange(starts.shape[-1], device=starts.device).expand_as(starts)
    first = torch.where(starts, index, 0).cummax(-1).values
    behind = torch.nn.functional.pad(starts[:, 1:], (0, 1), value=True)  # the next position begins another run
    end = torch.where(behind, index + 1, _EVERY_ROW).flip(-1).cummin(-1).values.flip(-1)
    return VisibleRows(first, end)


def equal_runs(ids: Tensor) -> VisibleRows:
    """Returns the runs of equal numbers in ids [B, S]."""
    return runs(torch.nn.functional.pad(ids[:, 1:] != ids[:, :-1], (1, 0), value=True))


def documents(position_ids: Tensor, padding: Tensor) -> VisibleRows:
    """Returns the documents of position_ids [B or 1, S]: one begins wherever the position does not grow.

    Tokens where padding [B or 1, S] is True do not count: the positions that tokenizers give them are arbitrary.
    """
    batch = max(len(position_ids), len(padding))
    positions, padding = position_ids.expand(batch, -1), padding.expand(batch, -1)
    index = torch.arange(positions.shape[-1], device=positions.device).expand_as(positions)
    last = torch.where(padding, 0, index).cummax(-1).values  # the last token up to each position that is not padding
    before = positions.gather(-1, last)[:, :-1]
    return runs(torch.nn.functional.pad(~padding[:, 1:] & (positions[:, 1:] <= before), (1, 0), value=True))


def cumulative(cu_seq_lens_q: Tensor, cu_seq_lens_k: Tensor, columns: int) -> VisibleRows:
    """Returns the documents given by cumulative lengths [D + 1]; no row sees a key after the last document."""
    document = document_of(cu_seq_lens_k, columns)[None]  # D: after the last document
    bounds = torch.nn.functional.pad(cu_seq_lens_q.long(), (0, 1), value=0)
    return VisibleRows(bounds[document], bounds[document + 1])
