# SPDX-License-Identifier: Apache-2.0
"""Finds the ranges of rows that a formula shows, or masks, in each column.

The compiled library does it, on the tensors' device: flashmask_formula_ranges() of flashmask/c_api.h says how.
"""

from __future__ import annotations

import ctypes
import struct
from typing import NamedTuple

import torch
from torch import Tensor

from flashmask._abi import structs as s
from flashmask._abi.library import call
from flashmask._flex.formula import FLIPPED, And, Compare, Fact, Formula, Or
from flashmask._flex.symbols import Space, Untraceable

MOST = 16  # ranges that a row may see
_KINDS = {"lt": s.LESS, "le": s.LESS_EQUAL, "gt": s.GREATER, "ge": s.GREATER_EQUAL, "eq": s.EQUAL, "ne": s.UNEQUAL}
_TYPES = {
    torch.bool: s.NUMBER_BOOLEAN,
    torch.int32: s.NUMBER_I32,
    torch.int64: s.NUMBER_I64,
    torch.float32: s.NUMBER_F32,
    torch.float64: s.NUMBER_F64,
}
_CONDITION = struct.Struct("=2i Q4q Q4q")  # flashmask_condition
_NO_NUMBERS = (0, 0, 0, 0, 0)


class TooManyRanges(Untraceable):
    """Some column needs more ranges than are kept."""


class Ranges(NamedTuple):
    """Ranges of rows per column, or, `swapped`, of columns per row.

    `values` is int32 [batch, heads, columns, 2 slots], begins and ends in turn: ascending, none touching the next, and
    `rows` twice where there is none. Batch entries and heads are those that the formula tells apart.
    """

    values: Tensor
    rows: int
    swapped: bool


def masked_rows(formula: Formula, space: Space) -> Ranges:
    """Returns at most two ranges of masked rows per column, in four values; raises TooManyRanges or Untraceable."""
    return _Question(formula, space, swapped=False).answer(visible=False, slots=2)[0]


def visible_columns(formula: Formula, space: Space) -> Ranges:
    """Returns at most MOST ranges of columns that each row sees; raises TooManyRanges or Untraceable."""
    ranges, found = _Question(formula, space, swapped=True).answer(visible=True, slots=MOST)
    return ranges._replace(values=ranges.values[..., : 2 * max(found, 1)])


class _Question:
    """A formula as the library takes it; `swapped`: its rows are the formula's columns."""

    def __init__(self, formula: Formula, space: Space, swapped: bool) -> None:
        self.swapped, self.space = swapped, space
        self.row_axis, self.column_axis = (3, 2) if swapped else (2, 3)
        self.device = space.device if space.device.type in ("cpu", "cuda") else torch.device("cpu")
        self.planes = [1, 1]
        self.packed: list[bytes] = []
        self.used: list[Tensor] = []  # kept until the library has been called
        self.changes = self._take(formula)

    def answer(self, visible: bool, slots: int) -> tuple[Ranges, int]:
        """Returns the ranges, and the most of a column; waits for a GPU once, unless the formula says that they fit."""
        rows, columns = (self.space.sizes[axis] for axis in (self.row_axis, self.column_axis))
        values = torch.empty(*self.planes, columns, 2 * slots, dtype=torch.int32, device=self.device)
        found = torch.empty(1, dtype=torch.int32, device=self.device)
        asked = s.Formula(
            conditions=b"".join(self.packed),
            count=len(self.packed),
            shape=s.MaskShape(*self.planes, rows, columns),
            visible=visible,
            slots=slots,
        )
        try:
            if self.device.type == "cuda":
                self._place(asked)
            call("formula_ranges", ctypes.byref(asked), values.data_ptr(), found.data_ptr())
        except NotImplementedError as error:  # too long, or too deep
            raise Untraceable(str(error)) from error
        fits = self.device.type == "cuda" and self.changes // 2 + 1 <= slots
        most = slots if fits else _checked(int(found), slots)
        return Ranges(values.to(self.space.device), rows, self.swapped), most

    def _place(self, asked: s.Formula) -> None:
        """Says where on the GPU the library is to work."""
        asked.device_type, asked.device_index = s.CUDA, self.device.index
        asked.stream = torch.cuda.current_stream(self.device).cuda_stream
        size = ctypes.c_size_t()
        call("formula_workspace", ctypes.byref(asked), ctypes.byref(size))
        memory = torch.empty(size.value, dtype=torch.uint8, device=self.device)
        asked.workspace, asked.workspace_bytes = memory.data_ptr(), size.value
        self.used.append(memory)

    # ---- conditions, packed in prefix order; each returns how often it changes down a column at most, else _OFTEN ----

    def _take(self, f: Formula) -> int:
        if isinstance(f, (And, Or)):
            return self._take_parts(f)
        if isinstance(f, Fact):
            return self._take_fact(f.value)
        return self._take_comparison(f)

    def _take_parts(self, f: And | Or) -> int:
        parts = sorted(_flat(f), key=self._difficulty)
        if len(parts) == 1:
            return self._take(parts[0])
        kind = s.ALL_OF if isinstance(f, And) else s.ANY_OF
        self.packed.append(_CONDITION.pack(kind, len(parts), *_NO_NUMBERS, *_NO_NUMBERS))
        return sum(map(self._take, parts))

    def _take_fact(self, value: Tensor) -> int:
        if value.shape[self.row_axis] > 1:
            self.packed.append(_CONDITION.pack(s.ROW_FACT, 0, *self._numbers(value, self.row_axis), *_NO_NUMBERS))
            return _OFTEN
        numbers = self._numbers(value, self.column_axis)
        self.packed.append(_CONDITION.pack(s.COLUMN_FACT, 0, *_NO_NUMBERS, *numbers))
        return 0

    def _take_comparison(self, f: Compare) -> int:
        op, rows, columns = (FLIPPED[f.op], f.columns, f.rows) if self.swapped else (f.op, f.rows, f.columns)
        by_index = self._is_index(rows) and not columns.is_floating_point()
        rows, columns = _comparable(rows, columns)
        self.packed.append(
            _CONDITION.pack(
                _KINDS[op],
                0,
                *(_NO_NUMBERS if by_index else self._numbers(rows, self.row_axis)),
                *self._numbers(columns, self.column_axis),
            )
        )
        return _OFTEN if not by_index else 2 if op in ("eq", "ne") else 1

    def _is_index(self, rows: Tensor) -> bool:
        return rows is self.space.index[self.row_axis]

    def _numbers(self, values: Tensor, axis: int) -> tuple[int, int, int, int, int]:
        """The fields of flashmask_token_numbers for [B or 1, H or 1, Q or 1, KV or 1] along one axis of tokens."""
        values = values.to(self.device)
        self.used.append(values)
        shape, strides = values.shape, values.stride()
        for at in (0, 1):
            self.planes[at] = max(self.planes[at], shape[at])
        steps = [strides[at] if shape[at] > 1 else 0 for at in (0, 1, axis)]
        return values.data_ptr(), steps[0], steps[1], steps[2], _TYPES[values.dtype]

    def _difficulty(self, part: Formula) -> int:
        """Conditions that are quick to search come first; those of others are then searched for in fewer rows."""
        if isinstance(part, Fact):
            return 3 if part.value.shape[self.row_axis] > 1 else 0
        if isinstance(part, Compare):
            rows = part.columns if self.swapped else part.rows
            return 1 if self._is_index(rows) else 2 if part.op == "eq" else 3
        return 4 if isinstance(part, And) else 5


_OFTEN = 1 << 20


def _checked(found: int, slots: int) -> int:
    if found >= s.SEARCH_TOO_LONG:
        raise Untraceable("not a number in a comparison" if found >= s.NOT_A_NUMBER else "conditions that alternate")
    if found > slots:
        raise TooManyRanges(f"a column has more than {slots} ranges")
    return found


def _flat(f: And | Or) -> list[Formula]:
    """The parts of a conjunction within conjunctions, or of a disjunction within disjunctions."""
    out: list[Formula] = []
    for part in f.parts:
        out.extend(_flat(part) if isinstance(part, (And, Or)) and type(part) is type(f) else [part])
    return out


def _comparable(rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    """Both in dtypes that the library compares as torch does."""
    if rows.dtype == columns.dtype and rows.dtype in _TYPES:
        return rows, columns
    dtype = torch.promote_types(rows.dtype, columns.dtype)
    if dtype.is_complex:
        raise Untraceable("complex numbers in a comparison")
    if not dtype.is_floating_point:
        return _known(rows, torch.int64), _known(columns, torch.int64)
    wide = dtype if dtype in _TYPES else torch.float32
    rows, columns = rows.to(dtype), columns.to(dtype)
    return rows.to(wide), columns.to(wide)


def _known(numbers: Tensor, dtype: torch.dtype) -> Tensor:
    return numbers if numbers.dtype in _TYPES else numbers.to(dtype)
