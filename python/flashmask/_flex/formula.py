# SPDX-License-Identifier: Apache-2.0
"""Reads what a mask_mod returned for symbols as a formula: And and Or of facts and comparisons.

Every rewriting is exact. Sums of whole numbers move across a comparison, as in q - kv <= w; abs, max, min, `% m` and
`// m` fall apart into comparisons; negations go down to the leaves. Sums of floats round, so they are not moved.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from flashmask._flex.symbols import Q, Space, Symbol, Untraceable, lift

FLIPPED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le", "eq": "eq", "ne": "ne"}
_OPPOSITE = {"lt": "ge", "ge": "lt", "gt": "le", "le": "gt", "eq": "ne", "ne": "eq"}
_WHOLE = (torch.int32, torch.int64)
_FAR = 1 << 61  # numbers are clipped here, so that a limit such as the largest int64 can be added to


@dataclass
class Fact:
    """Booleans of one token at most: `value` [B or 1, H or 1, Q or 1, KV or 1], where Q or KV is 1."""

    value: Tensor


@dataclass
class Compare:
    """rows `op` columns: [B or 1, H or 1, Q, 1] against [B or 1, H or 1, 1, KV]."""

    op: str
    rows: Tensor
    columns: Tensor


@dataclass
class And:
    parts: list[Formula]


@dataclass
class Or:
    parts: list[Formula]


Formula: TypeAlias = "Fact | Compare | And | Or"


def formula(symbol: Any, negate: bool = False) -> Formula:
    """Returns the formula of a boolean symbol, or of its negation; raises Untraceable where it has none."""
    if not isinstance(symbol, Symbol) or symbol.dtype != torch.bool or symbol.rank:
        raise Untraceable("an operand that is not one boolean, where a boolean is expected")
    if not symbol.mixed:
        return Fact(~symbol.value if negate else symbol.value)
    if symbol.kwargs:
        raise Untraceable(f"{symbol.op} with options, of both tokens")
    if symbol.op in FLIPPED or symbol.op in ("xor", "bool", "to"):
        return _comparison(symbol.op, symbol.args, symbol.space, negate)
    return _junction(symbol.op, symbol.args, symbol.space, negate)


def _junction(op: str, args: Any, space: Space, negate: bool) -> Formula:
    """A boolean made of booleans; op may be the arithmetic that does the same."""
    if op == "masked_fill":
        op, args = "where", (args[1], args[2], args[0])
    if op not in ("and", "mul", "minimum", "or", "add", "maximum", "not", "where"):
        raise Untraceable(f"the function computes {op} of both tokens")
    parts = _booleans(args, space)
    if op == "not":
        return formula(parts[0], not negate)
    if op == "where":
        condition, x, y = parts
        return Or([And([formula(condition), formula(x, negate)]), And([formula(condition, True), formula(y, negate)])])
    is_and = op in ("and", "mul", "minimum")
    return (And if is_and != negate else Or)([formula(each, negate) for each in parts])


def _comparison(op: str, args: Any, space: Space, negate: bool) -> Formula:
    """A comparison, or a conversion of a number to a boolean."""
    if op in ("bool", "to"):
        return formula(args[0], negate) if _is_boolean(args[0]) else _compared("ne", args[0], 0, space, negate)
    if op not in ("xor", "eq", "ne") or not all(map(_is_boolean, args)):
        if op == "xor":
            raise Untraceable("bits of numbers of both tokens")
        return _compared(op, args[0], args[1], space, negate)
    a, b = _booleans(args, space)
    if not (a.mixed or b.mixed):
        return _compared("eq" if op == "eq" else "ne", a, b, space, negate)
    same = (op == "eq") != negate
    return Or([And([formula(a), formula(b, not same)]), And([formula(a, True), formula(b, same)])])


def _is_boolean(each: Any) -> bool:
    return isinstance(each, bool) or (isinstance(each, Symbol) and each.dtype == torch.bool)


def _booleans(args: Any, space: Space) -> list[Symbol]:
    if not all(map(_is_boolean, args)):
        raise Untraceable("booleans made of numbers of both tokens")
    return [each if isinstance(each, Symbol) else _constant(each, space) for each in args]


def _constant(value: bool, space: Space) -> Any:
    return lift(space, torch.tensor(value, device=space.device))


# ---- comparisons of numbers ----


@dataclass
class _Sum:
    """rows[i] + columns[j]; either is a tensor or a Python number, 0 where there is none."""

    rows: Any
    columns: Any

    @property
    def number(self) -> Any:
        """The Python number that this is, or None."""
        return None if isinstance(self.rows, Tensor) or isinstance(self.columns, Tensor) else self.rows + self.columns

    @property
    def one_sided(self) -> bool:
        return any(not isinstance(each, Tensor) and each == 0 for each in (self.rows, self.columns))

    @property
    def floats(self) -> bool:
        return _is_float(self.rows) or _is_float(self.columns)

    def __neg__(self) -> _Sum:
        return _Sum(_negative(self.rows), _negative(self.columns))

    def __add__(self, other: _Sum) -> _Sum:
        return _Sum(_plus(self.rows, other.rows), _plus(self.columns, other.columns))

    def __sub__(self, other: _Sum) -> _Sum:
        return self + -other


def _is_float(value: Any) -> bool:
    return value.is_floating_point() if isinstance(value, Tensor) else isinstance(value, float)


def _negative(x: Any) -> Any:
    return x if _is_zero(x) else -_long(x)


def _plus(x: Any, y: Any) -> Any:
    """x + y; what nothing is added to stays what it is, so that an index is still known for one."""
    return _whole(y) if _is_zero(x) else _whole(x) if _is_zero(y) else _long(x) + _long(y)


def _whole(value: Any) -> Any:
    if _is_float(value):
        raise Untraceable("sums of floats of both tokens, which round")
    return value


def _long(value: Any) -> Any:
    """A whole number, far from where int64 ends."""
    value = _whole(value)
    if not isinstance(value, Tensor):
        return max(-_FAR, min(_FAR, value))
    return value.clamp(-_FAR, _FAR) if value.dtype == torch.int64 else value.long()


@dataclass
class _Of:
    """`op` of whole numbers: maximum, minimum, abs, mod or floordiv, the last two by a positive number `by`."""

    op: str
    parts: list[Any]
    by: int = 1


def _number(each: Any) -> Any:
    """Returns the _Sum or _Of that a number is."""
    if not isinstance(each, Symbol):
        if isinstance(each, (int, float)):
            return _Sum(0, each)
        raise Untraceable(f"an operand of type {type(each).__name__}")
    if each.rank:
        raise Untraceable("a vector in a comparison")
    if not each.mixed:
        return _Sum(each.value, 0) if each.deps & Q else _Sum(0, each.value)
    if each.dtype not in _WHOLE:
        raise Untraceable(f"{each.op} of both tokens, of dtype {each.dtype}, which rounds")
    if each.kwargs:
        raise Untraceable(f"{each.op} with options, of both tokens")
    if each.op in ("to", "int", "long") and each.args[0].dtype in _WHOLE:
        return _number(each.args[0])
    if each.op in ("maximum", "minimum"):
        return _Of(each.op, [_number(part) for part in each.args])
    return _arithmetic(each.op, each.args)


def _arithmetic(op: str, args: Any) -> Any:
    if op in ("neg", "abs"):
        return -_sum(args[0]) if op == "neg" else _Of(op, [_sum(args[0])])
    if op in ("add", "sub", "rsub"):
        x, y = map(_sum, args)
        return x + y if op == "add" else x - y if op == "sub" else y - x
    if op in ("mod", "floordiv") and isinstance(args[1], int) and args[1] > 0:
        return _Of(op, [_sum(args[0])], args[1])
    if op == "mul" and any(isinstance(part, int) for part in args):
        factor, x = args if isinstance(args[0], int) else args[::-1]
        x = _sum(x)
        return _Sum(x.rows * factor, x.columns * factor)
    raise Untraceable(f"the function computes {op} of both tokens")


def _sum(each: Any) -> _Sum:
    number = _number(each)
    if not isinstance(number, _Sum):
        raise Untraceable(f"arithmetic on {number.op} of both tokens")
    return number


def _compared(op: str, x: Any, y: Any, space: Space, negate: bool) -> Formula:
    return _compare(_OPPOSITE[op] if negate else op, _number(x), _number(y), space)


def _compare(op: str, x: Any, y: Any, space: Space) -> Formula:
    if isinstance(y, _Of) and not isinstance(x, _Of):
        x, y, op = y, x, FLIPPED[op]
    if isinstance(x, _Sum) and x.number is not None:
        x, y, op = y, x, FLIPPED[op]
    if isinstance(y, _Sum) and isinstance(y.number, float) and (isinstance(x, _Of) or not x.floats):
        y = _whole_bound(op, y.number)
        if isinstance(y, bool):
            return _everywhere(y, space)
    if isinstance(x, _Sum):
        return _compare_sums(op, x, y, space)
    if x.op in ("maximum", "minimum"):
        return _compare_extreme(op, x, y, space)
    if isinstance(y, _Sum):
        if x.op == "abs":
            return _compare_abs(op, x.parts[0], y, space)
        if isinstance(y.number, int):
            return (_compare_mod if x.op == "mod" else _compare_floordiv)(op, x.parts[0], x.by, y.number, space)
    raise Untraceable(f"a comparison of {x.op} with another expression of both tokens")


def _whole_bound(op: str, bound: float) -> _Sum | bool:
    """What whole numbers are compared with in place of a fraction, or whether the comparison holds for all of them."""
    if math.isnan(bound):
        raise Untraceable("not a number in a comparison")
    if abs(bound) >= _FAR:
        return op == "ne" or (op != "eq" and (bound > 0) == (op in ("lt", "le")))
    if op in ("eq", "ne") and not bound.is_integer():
        return op == "ne"
    return _Sum(0, math.floor(bound) if op in ("le", "gt") else math.ceil(bound))


def _everywhere(holds: bool, space: Space) -> Fact:
    return Fact(torch.full((1, 1, 1, 1), holds, device=space.device))


def _compare_sums(op: str, x: _Sum, y: _Sum, space: Space) -> Formula:
    if not (x.one_sided and y.one_sided):
        difference = x - y
        x, y = _Sum(difference.rows, 0), -_Sum(0, difference.columns)
    left, right = (each.columns if _is_zero(each.rows) else each.rows for each in (x, y))
    axes = [_axis(each) for each in (left, right)]
    if axes in ([2, 3], [3, 2]):
        return Compare(op, left, right) if axes == [2, 3] else Compare(FLIPPED[op], right, left)
    if not isinstance(left, Tensor):
        left = torch.full((1, 1, 1, 1), left, device=space.device)
    fact: Tensor = getattr(torch, op)(left, right)
    return Fact(fact)


def _is_zero(value: Any) -> bool:
    return not isinstance(value, Tensor) and value == 0


def _axis(value: Any) -> int | None:
    """The axis of tokens along which a tensor has more than one value."""
    return next((axis for axis in (2, 3) if isinstance(value, Tensor) and value.shape[axis] > 1), None)


def _compare_extreme(op: str, x: _Of, y: Any, space: Space) -> Formula:
    """max(a, b) <= y is a <= y and b <= y."""
    if op in ("eq", "ne"):
        parts = [_compare_extreme("le" if op == "eq" else "gt", x, y, space)]
        parts.append(_compare_extreme("ge" if op == "eq" else "lt", x, y, space))
        return And(parts) if op == "eq" else Or(parts)
    parts = [_compare(op, part, y, space) for part in x.parts]
    return And(parts) if (x.op == "maximum") == (op in ("le", "lt")) else Or(parts)


def _compare_abs(op: str, x: _Sum, y: _Sum, space: Space) -> Formula:
    """|x| <= y is x <= y and x >= -y."""
    if op == "eq":
        equal = Or([_compare_sums("eq", x, y, space), _compare_sums("eq", x, -y, space)])
        return And([equal, _compare("ge", y, _Sum(0, 0), space)])
    if op == "ne":
        unequal = And([_compare_sums("ne", x, y, space), _compare_sums("ne", x, -y, space)])
        return Or([unequal, _compare("lt", y, _Sum(0, 0), space)])
    parts: list[Formula] = [_compare_sums(op, x, y, space), _compare_sums(FLIPPED[op], x, -y, space)]
    return And(parts) if op in ("le", "lt") else Or(parts)


def _compare_mod(op: str, x: _Sum, by: int, bound: int, space: Space) -> Formula:
    """(r + c) % by == bound is r % by == (bound - c) % by."""
    if op not in ("eq", "ne"):
        raise Untraceable(f"{op} of a remainder of both tokens")
    if not 0 <= bound < by:
        return _everywhere(op == "ne", space)
    return _compare_sums(op, _Sum(x.rows % by, 0), _Sum(0, (bound - x.columns) % by), space)


def _compare_floordiv(op: str, x: _Sum, by: int, bound: int, space: Space) -> Formula:
    """x // by <= bound is x < (bound + 1) by."""
    low, high = _Sum(bound * by, 0), _Sum((bound + 1) * by, 0)
    if op in ("ge", "lt"):
        return _compare_sums(op, x, low, space)
    if op in ("le", "gt"):
        return _compare_sums("lt" if op == "le" else "ge", x, high, space)
    if op == "eq":
        return And([_compare_sums("ge", x, low, space), _compare_sums("lt", x, high, space)])
    return Or([_compare_sums("lt", x, low, space), _compare_sums("ge", x, high, space)])
