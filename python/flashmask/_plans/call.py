# SPDX-License-Identifier: Apache-2.0
"""Call: what an attention call is given besides q, k and v. A new argument is a field, and code that uses it."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from flashmask._abi.problem import Problem, make_problem
from flashmask._plans.cache import Key
from flashmask.scores import OPERANDS, ScoreChange, kind_of

if TYPE_CHECKING:
    from torch import Tensor


class Call(NamedTuple):
    """The arguments of the operators after their tensors, in order; flashmask.operators says what each means.

    The operators' schemas, the keys of plans and what a gradient saves are made of these fields and their types. A new
    field has a default, so that older callers and graphs stay valid.
    """

    mask: Tensor | None = None
    block_mask: Tensor | None = None
    causal: bool = False
    scale: float = 0.0
    dropout: float = 0.0
    seed_offset: Tensor | None = None
    deterministic: bool = False
    sinks: Tensor | None = None
    dropout_place: Tensor | None = None
    invariant: bool = False
    change: str = ""
    alibi_slopes: Tensor | None = None
    query_positions: Tensor | None = None
    key_positions: Tensor | None = None
    cudnn: int = 0
    bias: Tensor | None = None
    distance_origin: int = 0
    most_documents: int = 0
    operand0: Tensor | None = None
    operand1: Tensor | None = None
    operand2: Tensor | None = None
    operand3: Tensor | None = None

    @classmethod
    def of(cls, problem: Problem) -> Call:
        """Returns the numbers of a call that a plan's problem describes."""
        return cls(scale=problem.scale or 0.0, dropout=problem.dropout, change=problem.change)

    @property
    def bias_kind(self) -> str:
        """What is added to the scores: one of scores.OPERANDS, or nothing."""
        return kind_of(self.change)

    def problem(self, shapes: Sequence[Sequence[int]], dtype: str) -> Problem:
        """Returns the problem of the call with tensors of these shapes; raises where they do not fit."""
        return make_problem(shapes, dtype, self.scale or None, self.dropout)._replace(change=self.change)

    @property
    def reads(self) -> tuple[Tensor, ...]:
        """The operands that a function reads by their numbers."""
        return tuple(each for each in (self.operand0, self.operand1, self.operand2, self.operand3) if each is not None)

    def biased(self, score: ScoreChange) -> Call:
        """Returns the call with the operands of a change of scores."""
        operands = dict(zip(OPERANDS.get(score.kind, ()), score.operands, strict=True))
        if score.kind == "distance_bias":
            operands = {"bias": score.operands[0], "distance_origin": score.origin}
        return self._replace(**operands, **{f"operand{i}": each for i, each in enumerate(score.reads)})


TYPES: dict[str, str] = {name: kind.__forward_arg__ for name, kind in Call.__annotations__.items()}
"""Types of the fields, as they are written above."""


def _fields(chosen: Sequence[str]) -> Any:
    return itemgetter(*map(Call._fields.index, chosen))


_TENSORS = [name for name, kind in TYPES.items() if kind.startswith("Tensor")]
_NUMBERS = [name for name in Call._fields if name not in _TENSORS]
tensors_of = _fields(_TENSORS)
"""The tensors of a call, in order."""
numbers_of = _fields(_NUMBERS)
"""Everything else: what a plan depends on besides its mask."""
_ELSEWHERE = ("deterministic", "cudnn", "distance_origin", "most_documents")
_numbers_on_cpu = _fields([name for name in _NUMBERS if name not in _ELSEWHERE])
OF_BACKWARD = [name for name in Call._fields if name != "sinks"]
arguments_of_backward = _fields(OF_BACKWARD)
"""The fields that flashmask::backward takes; it needs no sinks, since o and lse contain their effect."""
_in_order = itemgetter(*((_TENSORS + _NUMBERS).index(name) for name in Call._fields))


def joined(tensors: Sequence[Tensor | None], numbers: tuple[Any, ...]) -> Call:
    """Rebuilds a call from its tensors_of() and numbers_of()."""
    return Call._make(_in_order((*tensors, *numbers)))


def call_of_backward(arguments: Sequence[Any], sinks: Tensor | None = None) -> Call:
    """Rebuilds a call from its arguments_of_backward(); the last ones may be missing."""
    return Call(**dict(zip(OF_BACKWARD, arguments, strict=False)), sinks=sinks)


def key_on_cpu(source: Hashable, shapes: Sequence[Sequence[int]], code: int, call: Call) -> Key:
    """Returns the key of a plan for the CPU; `source` identifies the mask, and `code` is a position in DTYPES.

    It leaves out `deterministic`, as gradients on the CPU are the same bits on every run anyway, `cudnn` and
    `most_documents`, which are for GPUs, and `distance_origin`, which comes with the table.
    """
    return (source, *shapes, code, _numbers_on_cpu(call))
