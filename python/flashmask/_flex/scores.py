# SPDX-License-Identifier: Apache-2.0
"""What a score_mod makes of a score, read from its trace: factor · core + bias, and where it hides the score."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import torch

from flashmask._flex.symbols import SCORE, Symbol


class Unrecognised(Exception):
    """A change of scores that no argument of attention() computes; the message names it, as "pow() of the score"."""


@dataclass
class Changed:
    """factor · core + bias where all masks hold, else -inf. Factors are multiplied, biases added.

    The core is the score, or tanh(inner · score) where `inner`, which are factors too, is not None. Each part is a
    number or a symbol.
    """

    factors: list[Any] = field(default_factory=list)
    biases: list[Any] = field(default_factory=list)
    inner: list[Any] | None = None
    masks: list[Any] = field(default_factory=list)


def depends_on_score(part: Any) -> bool:
    """Whether a part of a score_mod is a function of the score."""
    return isinstance(part, Symbol) and bool(part.deps & SCORE)


def is_minus_infinity(part: Any) -> bool:
    """Whether a part is the number -inf, a tensor of it, or full_like(score, -inf)."""
    if isinstance(part, Symbol) and part.op == "full_like":
        part = part.args[1]
    if isinstance(part, Symbol) and part.op == "leaf" and part.value is not None and part.value.numel() == 1:
        part = float(part.value)
    return isinstance(part, (int, float)) and part == -math.inf


def product(factors: Sequence[Any]) -> Any:
    """Returns the product of numbers and symbols, 1.0 of none."""
    return reduce(operator.mul, factors) if factors else 1.0


def changed(symbol: Symbol) -> Changed:
    """Reads a symbol that depends on the score; raises Unrecognised."""
    if symbol.op == "score":
        return Changed()
    reader = _READERS.get(symbol.op)
    if reader is None:
        raise Unrecognised(f"{symbol.op}() of the score")
    if symbol.kwargs:
        raise Unrecognised(f"{symbol.op}() of the score with {', '.join(symbol.kwargs)}=")
    return reader(symbol)


def _converted(symbol: Symbol) -> Changed:
    if not symbol.dtype.is_floating_point:
        raise Unrecognised(f"the score as {symbol.dtype}")
    return changed(symbol.args[0])


def _added(symbol: Symbol) -> Changed:
    return _sum(*symbol.args)


def _subtracted(symbol: Symbol) -> Changed:
    minuend, subtrahend = symbol.args if symbol.op == "sub" else reversed(symbol.args)
    return _sum(minuend, -subtrahend)


def _sum(a: Any, b: Any) -> Changed:
    if depends_on_score(a) and depends_on_score(b):
        return _sum_of_scores(changed(a), changed(b))
    score, bias = (a, b) if depends_on_score(a) else (b, a)
    found = changed(score)
    while (hiding := hidden_by(bias)) is not None:
        found.masks.append(hiding[0])
        bias = hiding[1]
    found.biases.append(bias)
    return found


def hidden_by(bias: Any) -> tuple[Any, Any] | None:
    """Reads where(condition, other, -inf), in either order, as the condition and the other bias; None for the rest."""
    if not isinstance(bias, Symbol):
        return None
    if bias.op == "where":
        condition, a, b = bias.args
        if is_minus_infinity(b):
            return condition, a
        if is_minus_infinity(a):
            return ~condition, b
    if bias.op == "masked_fill" and is_minus_infinity(bias.args[2]):
        return ~bias.args[1], bias.args[0]
    return None


def _sum_of_scores(a: Changed, b: Changed) -> Changed:
    if a.inner is not None or b.inner is not None:
        raise Unrecognised("a sum of two functions of the score, one of them tanh()")
    factor = product(a.factors) + product(b.factors)
    return Changed([factor], a.biases + b.biases, None, a.masks + b.masks)


def _negated(symbol: Symbol) -> Changed:
    return _scaled(changed(symbol.args[0]), -1.0, symbol.dtype)


def _multiplied(symbol: Symbol) -> Changed:
    a, b = symbol.args
    if depends_on_score(a) and depends_on_score(b):
        raise Unrecognised("a product of scores")
    score, factor = (a, b) if depends_on_score(a) else (b, a)
    return _scaled(changed(score), factor, symbol.dtype)


def _divided(symbol: Symbol) -> Changed:
    dividend, divisor = symbol.args
    if depends_on_score(divisor):
        raise Unrecognised("a quotient by the score")
    if isinstance(divisor, Symbol):
        divisor = divisor.to(symbol.dtype)
    elif divisor == 0:
        raise Unrecognised("the score divided by 0")
    return _scaled(changed(dividend), 1.0 / divisor, symbol.dtype)


def _scaled(found: Changed, by: Any, dtype: torch.dtype) -> Changed:
    """Multiplies in the dtype of the score, which a bias would have been added to before."""
    if found.masks and not isinstance(by, Symbol) and not by > 0:
        raise Unrecognised(f"{by} times a score that it hid by -inf")
    found.factors.append(by)
    found.biases = [(each.to(dtype) if isinstance(each, Symbol) else each) * by for each in found.biases]
    return found


def _tanh(symbol: Symbol) -> Changed:
    found = changed(symbol.args[0])
    if found.inner is not None or found.biases or found.masks:
        raise Unrecognised("tanh() of more than the score times a factor")
    return Changed(inner=found.factors)


def _masked_fill(symbol: Symbol) -> Changed:
    score, hidden, value = symbol.args
    if not depends_on_score(score):
        raise Unrecognised("masked_fill() with the score")
    return _chosen(~hidden, score, value)


def _where(symbol: Symbol) -> Changed:
    return _chosen(*symbol.args)


def _chosen(condition: Any, a: Any, b: Any) -> Changed:
    """Reads where(condition, a, b)."""
    if depends_on_score(condition):
        raise Unrecognised("a condition on the score")
    if is_minus_infinity(b):
        return _hidden_unless(condition, a)
    if is_minus_infinity(a):
        return _hidden_unless(~condition, b)
    if not (depends_on_score(a) and depends_on_score(b)):
        raise Unrecognised("a number in place of the score where a condition holds")
    return _one_of(condition, changed(a), changed(b))


def _hidden_unless(condition: Any, score: Any) -> Changed:
    found = changed(score)
    found.masks.append(condition)
    return found


def _one_of(condition: Any, a: Changed, b: Changed) -> Changed:
    if (a.inner is None) != (b.inner is None) or (a.inner and b.inner and not _same(a.inner, b.inner)):
        raise Unrecognised("where() between scores of which one is capped, or both in two ways")
    factors = a.factors
    if not _same(a.factors, b.factors):
        factors = [torch.where(condition, product(a.factors), product(b.factors))]
    zero = 0.0
    biases = [torch.where(condition, each, zero) for each in a.biases]
    biases += [torch.where(condition, zero, each) for each in b.biases]
    masks = [~condition | each for each in a.masks] + [condition | each for each in b.masks]
    return Changed(factors, biases, a.inner, masks)


def _same(a: Sequence[Any], b: Sequence[Any]) -> bool:
    def equal(x: Any, y: Any) -> bool:
        return x is y or (not (isinstance(x, Symbol) or isinstance(y, Symbol)) and bool(x == y))

    return len(a) == len(b) and all(map(equal, a, b))


_READERS: dict[str, Callable[[Symbol], Changed]] = {
    **dict.fromkeys(("to", "float", "double", "half", "bfloat16", "clone", "contiguous"), _converted),
    "add": _added,
    "sub": _subtracted,
    "rsub": _subtracted,
    "neg": _negated,
    "mul": _multiplied,
    "div": _divided,
    "tanh": _tanh,
    "masked_fill": _masked_fill,
    "where": _where,
}
