# SPDX-License-Identifier: Apache-2.0
"""Registers Plan with torch: transforms see the tensor inside, and torch.load takes it as safe."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.fx._pytree import register_pytree_flatten_spec

from flashmask._abi.header import Options
from flashmask._abi.problem import Problem
from flashmask._plans.plan import Plan


@cache
def register() -> None:
    """Registers Plan, once."""
    pytree.register_pytree_node(
        Plan,
        lambda plan: ([plan.tensor], plan.problem),
        _unflatten,
        serialized_type_name="flashmask.Plan",
        to_dumpable_context=list,
        from_dumpable_context=lambda values: Problem(*values),
        flatten_with_keys_fn=lambda plan: ([(pytree.GetAttrKey("tensor"), plan.tensor)], plan.problem),
    )
    register_pytree_flatten_spec(Plan, lambda plan, spec: [plan.tensor])
    torch.serialization.add_safe_globals([Plan, Problem, Options])


def _unflatten(leaves: Iterable[Any], problem: Problem) -> Plan:
    (tensor,) = leaves
    return Plan._from_tensor(tensor, problem)
