# SPDX-License-Identifier: Apache-2.0
"""Site: what is known of a call while it is traced."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from jax import Array

from flashmask.scores import MOST_READS

Arrays: TypeAlias = Sequence[Array]

_TENSORS = ("q", "k", "v", "o", "grad_o")
_ROWS = ("lse", "grad_lse")
_AXES = {"mask": "bh--", "bias": "bh--", "query_positions": "b-", "key_positions": "b-"}
READS = tuple(f"operand{i}" for i in range(MOST_READS))
"""Operands that a function of scores reads by their numbers."""
SHARED = tuple(_AXES)
"""Operands of which an axis of size 1 serves all that the axis counts."""


class Options(NamedTuple):
    """What a call says besides arrays. Hashable: jit keeps one program for each."""

    causal: bool = False
    """Whether a mask of row indices hides the keys behind each row too; other masks leave it False."""
    scale: float = 0.0
    """0: 1 / sqrt(head dim)."""
    dropout: float = 0.0
    deterministic: bool = False
    invariant: bool = False
    heads_first: bool = False
    mask_name: tuple[int, int] = (0, 0)
    """Names a mask whose contents are known while tracing, by a hash of them; zeros: they are not known."""
    change: str = ""
    """How scores are changed: ScoreChange.text."""
    distance_origin: int = 0
    """The entry of a table by distance that distance 0 gets; the operand `bias` is the table."""
    most_documents: int = 0
    """For an invariant call: as RowIndices says; 0: not known, or not a mask of row indices that are traced."""


class Site(NamedTuple):
    """One call of the library: its options, its direction, and which operands it has, in order."""

    options: Options
    backward: bool
    names: tuple[str, ...]
    """Some of operators.NAMES, in that order; and for a backward o, lse, grad_o, grad_lse."""
    wanted: tuple[str, ...] = ()
    """For a backward: which of sinks and bias, in that order, a gradient is wanted of beside those of q, k and v."""

    @property
    def target(self) -> str:
        """The name that the handler is registered under."""
        return "flashmask_backward" if self.backward else "flashmask_forward"

    @property
    def results(self) -> tuple[str, ...]:
        """The operands that the results look like."""
        if not self.backward:
            return "o", "lse"
        return ("q", "k", "v", *self.wanted)

    def given(self, arrays: Arrays) -> dict[str, Any]:
        """The operands by name."""
        return dict(zip(self.names, arrays, strict=True))

    def without_plan(self) -> Site:
        """The site without its plan, for shapes that the plan was not made for."""
        return self._replace(names=tuple(name for name in self.names if name != "plan"))

    def without_mask_name(self) -> Site:
        """The site without its mask's name, for a part of that mask."""
        return self._replace(options=self.options._replace(mask_name=(0, 0)))

    def axes(self, name: str, rank: int) -> str:
        """The axes of an array, a letter each: batch, heads, tokens; "-" is none of them."""
        if name in _TENSORS:
            return "bht-" if self.options.heads_first else "bth-"
        if name in _ROWS:
            return "bht"
        if name == "sinks":
            return "h" if rank == 1 else "bht"
        if name == "alibi_slopes":
            return "h" if rank == 1 else "bh"
        if name in READS:
            return "-" * rank
        return _AXES.get(name, "-")

    def check_unsplit(self, place: str, how: str) -> None:
        """Refuses what would change the numbers of batch entries ("b") or heads ("h") that a function reads."""
        if "function(" in self.options.change and re.search(rf"\b{place}\b", self.options.change):
            raise NotImplementedError(
                f"flashmask.jax.attention: {how}, where a function of scores reads {place}, the number of a "
                f"{'batch entry' if place == 'b' else 'head'} in the call; write it without {place}"
            )

    def sizes(self, arrays: Arrays) -> tuple[int, int, int]:
        """Batch, query heads and query length."""
        q = self.given(arrays)["q"]
        sizes = dict(zip(self.axes("q", 4), q.shape, strict=True))
        return sizes["b"], sizes["h"], sizes["t"]
