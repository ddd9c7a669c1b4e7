# SPDX-License-Identifier: Apache-2.0
"""Plans of linear attention: a mask's nodes and a kernel, found again by what they were made from."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Sequence
from typing import NamedTuple

from flashmask._abi import structs as s
from flashmask._abi.library import call, check, create, library
from flashmask._abi.merge import Placed, packed
from flashmask._mask import Mask
from flashmask._plans.cache import PlanCache
from flashmask._plans.handle import Handle


class LinearProblem(NamedTuple):
    """Shapes, dtype and kind of one call of linear attention."""

    batch: int
    length: int
    heads: int
    key_heads: int
    key_dim: int
    value_dim: int
    code: int
    """Position of the dtype in DTYPES."""
    scale: float
    """0: 1 / sqrt(key_dim)."""
    normalize: bool

    def states(self, count: int) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Returns the shapes of `count` states, of their normalisers and of their scales."""
        return (count, self.heads, self.key_dim, self.value_dim), (count, self.heads, self.key_dim), (count, self.heads)


class LinearPlan:
    """A plan of the compiled library."""

    def __init__(self, mask: Mask, problem: LinearProblem) -> None:
        self.problem = problem
        given = s.LinearProblem(*problem[:7], s.CPU, 0, problem.scale, problem.normalize)
        handle = create("linear_plan_create", mask._handle, ctypes.byref(given), None)
        self._handle = Handle(handle, library.flashmask_linear_plan_destroy)
        view = s.LinearPlanView()
        call("linear_plan_get", self._handle.value, ctypes.byref(view))
        self.nodes: int = view.nodes
        self.roots: int = view.roots

    def forward(self, tensors: Sequence[Placed]) -> None:
        """Runs flashmask_linear_forward on tensors in the order of its struct."""
        check(library.flashmask_linear_forward(self._handle.value, _sized(tensors), None))

    def backward(self, tensors: Sequence[Placed]) -> None:
        """Runs flashmask_linear_backward on tensors in the order of its struct."""
        check(library.flashmask_linear_backward(self._handle.value, _sized(tensors), None))


def _sized(tensors: Sequence[Placed]) -> bytes:
    given = packed(*tensors)
    return struct.pack("=Q", len(given) + 8) + given


linear_plans: PlanCache[LinearPlan] = PlanCache()
os.register_at_fork(after_in_child=linear_plans.reset_lock)
