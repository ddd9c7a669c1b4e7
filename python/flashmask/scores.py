# SPDX-License-Identifier: Apache-2.0
"""Changes of scores, which calls take as score=: steps joined by |, as scores.softcap(50.0) | scores.alibi(slopes).

A score is scale · q·k, to which the steps are done one after another. The mask comes last: what it hides stays hidden.
Sinks are not changed. GPUs have kernels for a factor, then a cap, then a bias, each of which may be missing, and
compile one for any other steps when a plan is made, by NVRTC.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from flashmask._abi.library import call
from flashmask._arguments import choice, described, integer

__all__ = ["ScoreChange", "alibi", "bias", "distance", "from_function", "function", "multiply", "softcap"]

OPERANDS = {
    "alibi": ("alibi_slopes", "query_positions", "key_positions"),
    "bias": ("bias",),
    "distance_bias": ("distance_bias",),
}
"""What a change may add to scores, by the name that keywords have for it, and what messages call its operands."""

_KINDS = {"alibi": "alibi", "bias": "bias", "distance": "distance_bias"}
"""Steps that add something, as a text writes them, and their names in OPERANDS."""


_KINDS_OF_OPERANDS = {kind: step for step, kind in _KINDS.items()}
MOST_READS = 4
"""Operands that a function may read by their numbers."""


def kind_of(text: str) -> str:
    """Returns what a change that is written as `text` adds: one of OPERANDS, or nothing."""
    for step, kind in _KINDS.items():  # a step, or what a function reads: no other name has these letters
        if step in text:
            return kind
    return ""


def step_of(kind: str) -> str:
    """Returns how a text writes one of OPERANDS; "" for nothing."""
    return next((step for step, each in _KINDS.items() if each == kind), "")


def with_tensor(text: str) -> str:
    """Returns the text of a change that adds what this one adds as a tensor of each score."""
    return " | ".join("bias" if step in _KINDS else step for step in text.split(" | "))


@dataclass(frozen=True, eq=False, repr=False)
class ScoreChange:
    """Steps that are done to scores, of which one may add a bias. Immutable; made by this module's functions and |.

    Two are equal where their steps are and their operands are the same objects.
    """

    text: str = ""
    """The steps as the library reads them, such as "softcap(50.0) | alibi"."""
    operands: tuple[Any, ...] = ()
    """What the bias is computed from, in the order of OPERANDS; positions may be None."""
    origin: int = 0
    """The entry of a table that distance 0 gets."""
    reads: tuple[Any, ...] = ()
    """The operands that a function reads by their numbers."""

    @property
    def kind(self) -> str:
        """What is added: one of OPERANDS, or nothing."""
        return kind_of(self.text)

    def __or__(self, other: ScoreChange) -> ScoreChange:
        if not isinstance(other, ScoreChange):
            return NotImplemented
        if self.kind and other.kind:
            _refuse_two(OPERANDS[self.kind][0], OPERANDS[other.kind][0])
        if self.reads and other.reads:
            raise ValueError("two functions that read operands are joined; write them as one function")
        added = other if other.kind else self
        text = " | ".join(each for each in (self.text, other.text) if each)
        return ScoreChange(text, added.operands, added.origin, self.reads or other.reads)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ScoreChange) and self._compared == other._compared

    def __hash__(self) -> int:
        return hash(self._compared)

    @property
    def _compared(self) -> tuple[Any, ...]:
        return self.text, self.origin, tuple(map(id, (*self.operands, *self.reads)))

    def __repr__(self) -> str:
        """The calls that make it: the same text for every way of making it."""
        given = [described(each) for each in self.operands if each is not None]
        if self.origin:
            given.append(f"origin={self.origin}")
        called = (f"{step}({', '.join(given)})" if step in _KINDS else step for step in self.text.split(" | "))
        if self.reads:
            return f"{' | '.join(called)} of {', '.join(map(described, self.reads))}"
        return " | ".join(called) or "unchanged"


UNCHANGED = ScoreChange()


def softcap(cap: float | None) -> ScoreChange:
    """Scores s become cap · tanh(s / cap), as Gemma 2 caps them: a number above 0, or None or 0 for no cap."""
    if cap is None:
        return UNCHANGED
    if isinstance(cap, bool) or not isinstance(cap, (int, float)):
        raise TypeError(f"softcap is {described(cap)}; expected a number above 0, or None for no cap")
    if cap != 0 and not 1e-30 <= cap <= 1e30:
        raise ValueError(f"softcap is {cap}; expected a number from 1e-30 to 1e30, or None for no cap")
    return ScoreChange(f"softcap({float(cap)})") if cap else UNCHANGED


def multiply(factor: float) -> ScoreChange:
    """Scores are multiplied by a number, whose size is from 1e-30 to 1e30."""
    if isinstance(factor, bool) or not isinstance(factor, (int, float)):
        raise TypeError(f"multiply's factor is {described(factor)}; expected a number")
    if not 1e-30 <= abs(factor) <= 1e30:
        raise ValueError(f"multiply's factor is {factor}; expected a number whose size is from 1e-30 to 1e30")
    return ScoreChange(f"multiply({float(factor)})")


def alibi(slopes: Any, query_positions: Any = None, key_positions: Any = None) -> ScoreChange:
    """Scores lose slope · |position of the query - position of the key| (Press et al. 2022). It has no gradient.

    Args:
        slopes: float32 [query heads] or [batch, query heads].
        query_positions: [1 or batch, query length], whole numbers between -2^24 and 2^24. Larger ones, which float32
            would round, are refused on the CPU; on a GPU, where looking would mean waiting, they give wrong results.
            None: query i has position i + key length - query length and key j has j. Packed documents whose queries and
            keys are the same tokens need none, since only distances count; shared questions, trees and parts of a
            sequence do.
        key_positions: [1 or batch, key length], given together with query_positions.
    """
    if (query_positions is None) != (key_positions is None):
        raise ValueError("one of query_positions and key_positions is given; give both or none")
    return ScoreChange("alibi", operands=(slopes, query_positions, key_positions))


def bias(values: Any) -> ScoreChange:
    """Scores get a tensor's values added, (1 or batch, 1 or query heads, 1 or query length, key length).

    float32, bfloat16 or float16, of any strides; -inf hides a score. Values where the mask hides scores are not used.
    Differentiable: a dimension of 1 gets the sum over all that it stands for. Tiles that -inf hides are computed all
    the same; masks.from_bias(values) skips them.
    """
    return ScoreChange("bias", operands=(values,))


def distance(table: Any, origin: int = 0) -> ScoreChange:
    """Scores get an entry of a table added, (1 or batch, 1 or query heads, 1 or query length, entries).

    The score of query i and key j gets entry (i + key length - query length) - j + origin, and stays as it is where
    there is no such entry. dtypes as for bias(). Differentiable. origin is the entry of distance 0: 0 where keys lie at
    or before their query, key length - 1 where a table of query length + key length - 1 entries holds all distances.
    """
    return ScoreChange("distance", operands=(table,), origin=integer("distance_origin", origin))


def function(text: str, *operands: Any, bias: Any = None, distance: Any = None, origin: int = 0) -> ScoreChange:
    """Scores become what an expression computes, such as "mul(score, add(1, mul(0.1, cos(sub(q, k)))))".

    attention(score=f) writes a Python function f(score, b, h, q_idx, kv_idx) as such an expression by itself.

    Args:
        text: calls of neg, abs, floor, sqrt, exp, log, tanh, erf, sin, cos, add, sub, mul, div, min, max; lt, le, eq,
            not, and, or for conditions; where(condition, number, number); of score, numbers, the place b, h, q, k of
            the score, counted from 0, and at(n, index, ...), an entry of operand n. bias and distance are the numbers
            that scores.bias and scores.distance would add. "$0 = ...;" in front names a value.
        operands: at most four, of 1 to 4 dimensions, float32, bfloat16 or float16, whose indices are cut off to whole
            numbers inside them. They have no gradient.
        bias: values as scores.bias takes them, with a gradient, where the text says bias.
        distance: a table as scores.distance takes it, with a gradient, where the text says distance.
        origin: the entry of distance 0.

    Raises:
        ValueError: the text is no expression; the message shows where. Or operands do not fit it.
    """
    if not isinstance(text, str):
        raise TypeError(f"text is {described(text)}; expected an expression, such as 'mul(score, score)'")
    change = ScoreChange(f"function({text})", reads=operands)
    call("score_check", change.text.encode())
    given = {"bias": bias, "distance_bias": distance}
    for kind, value in given.items():
        if (value is not None) != (change.kind == kind):
            name = _KINDS_OF_OPERANDS[kind]
            said = f"the text reads {name}, and none is given" if value is None else f"{name} is given, and not read"
            raise ValueError(f"function({text!r}): {said}")
    if len(operands) > MOST_READS:
        raise ValueError(f"function() has {len(operands)} operands; expected at most {MOST_READS}")
    if not change.kind:
        return change
    return ScoreChange(change.text, (given[change.kind],), integer("origin", origin), operands)


def from_function(
    function: Callable[..., Any], q: Any, k: Any, *, layout: Literal["bshd", "bhsd"] = "bshd"
) -> ScoreChange:
    """Reads a function f(score, b, h, q_idx, kv_idx) of torch functions as a change for q and k of these shapes.

    It is run once, on symbols in place of numbers. The result is text and tensors, which torch.compile, torch.export
    and plan() take; attention(score=f) makes it by itself. What the function hides by -inf is computed all the same:
    give such a part as the mask instead, by masks.from_mask_mod.

    Args:
        function: what scores become, as docs/scores.md describes.
        q: (batch, query length, query heads, head dim), of which shape, dtype and device are read; without a batch,
            (total queries, query heads, head dim), for varlen_attention.
        k: (batch, key length, kv heads, head dim), or without a batch.
        layout: "bhsd" for (batch, heads, sequence, head dim).

    Raises:
        NotImplementedError: it computes what is no function of one score; the message names it.
    """
    from flashmask._flex.with_functions import change_of, dtype_of

    heads_first = choice("layout", layout, ("bshd", "bhsd")) == 1
    shapes = [(*((1,) if len(each.shape) == 3 else ()), *each.shape) for each in (q, k)]
    if any(len(shape) != 4 for shape in shapes):
        raise ValueError(
            f"q and k have shapes {list(q.shape)} and {list(k.shape)}; expected (batch, sequence, heads, dim)"
        )
    (batch, rows, heads, head_dim), (_, columns, key_heads, _) = (
        (shape[0], shape[2], shape[1], shape[3]) if heads_first else shape for shape in shapes
    )
    sizes = batch, heads, rows, columns
    return change_of(function, sizes, key_heads, head_dim, getattr(q, "device", "cpu"), dtype_of(q))


_softcap, _bias = softcap, bias  # whose names the keywords have


def from_keywords(
    *,
    softcap: Any = None,
    alibi_slopes: Any = None,
    query_positions: Any = None,
    key_positions: Any = None,
    bias: Any = None,
    distance_bias: Any = None,
    distance_origin: Any = 0,
) -> ScoreChange:
    """Returns the change that calls say by keywords rather than by score=: one line for each."""
    change = _softcap(softcap)
    if alibi_slopes is not None:
        change = change | alibi(alibi_slopes, query_positions, key_positions)
    elif query_positions is not None or key_positions is not None:
        raise ValueError("positions are given without alibi_slopes, which is all that they are for; leave them out")
    if bias is not None:
        change = change | _bias(bias)
    if distance_bias is not None:
        change = change | distance(distance_bias, distance_origin)
    elif distance_origin != 0:
        raise ValueError(
            f"distance_origin is {distance_origin} without distance_bias, which it belongs to; leave it out"
        )
    return change


def check_shape(name: str, shape: Sequence[int], sizes: tuple[int | None, int, int, int]) -> None:
    """Refuses an operand, named as in OPERANDS, that does not fit batch, query heads, query length and key length.

    Batch None: a bias without that dimension.
    """
    (*wide, columns), (batch, heads, rows, _) = sizes, sizes
    given = tuple(shape)
    if name == "alibi_slopes":
        fits = given in ((heads,), (batch, heads))
        expected = f"[{heads}], one for each head of q, or [{batch}, {heads}]"
    elif name.endswith("positions"):
        length = rows if name == "query_positions" else columns
        fits = given in ((1, length), (batch, length))
        expected = f"[1, {length}] or [{batch}, {length}], one for each token"
    else:
        wide = [whole for whole in wide if whole is not None]
        fits = len(given) == len(wide) + 1 and all(size in (1, whole) for size, whole in zip(given, wide, strict=False))
        fits = fits and (given[-1] == columns if name == "bias" else given[-1] > 0 or not columns)
        last = str(columns) if name == "bias" else "one or more entries"
        expected = f"[{', '.join(f'1 or {whole}' for whole in wide)}, {last}]"
    if not fits:
        raise ValueError(f"{name} has shape {list(given)}; expected {expected}")


def _refuse_two(*names: str) -> None:
    raise ValueError(f"{' and '.join(names)} are given together; scores take one bias: add one to the other")
