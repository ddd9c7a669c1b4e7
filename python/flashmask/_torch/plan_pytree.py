# SPDX-License-Identifier: Apache-2.0
"""Registers Plan with torch: transforms see the tensor inside, and torch.load takes it as safe."""

from __future__ import annotations

from functools import cache

import torch

from flashmask._abi.header import Options
from flashmask._abi.problem import Problem
from flashmask._plans.plan import Plan
from flashmask._torch.leaf import register_leaf


@cache
def register() -> None:
    """Registers Plan, once."""
    register_leaf(Plan, "tensor", lambda plan: plan.problem, Plan._from_tensor, lambda values: Problem(*values))
    torch.serialization.add_safe_globals([Plan, Problem, Options])
