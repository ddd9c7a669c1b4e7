# SPDX-License-Identifier: Apache-2.0
"""Plans of linear attention: a mask's nodes and a kernel, found again by what they were made from."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from flashmask._abi import structs as s
from flashmask._abi.library import call, check, create, library
from flashmask._abi.merge import Placed, packed
from flashmask._abi.problem import F64
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
    device_index: int | None = None
    """None: the CPU; else of the GPU."""

    @property
    def device(self) -> tuple[int, int]:
        """The device as tensors name it."""
        return (s.CPU, 0) if self.device_index is None else (s.CUDA, self.device_index)

    def states(self, count: int) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Returns the shapes of `count` states, of their normalisers and of their scales."""
        return (count, self.heads, self.key_dim, self.value_dim), (count, self.heads, self.key_dim), (count, self.heads)


class GpuWorkspace(NamedTuple):
    """The stream of a call on a GPU, and what allocates that many bytes there, as a torch tensor."""

    stream: int
    allocate: Callable[[int], Any]


class LinearPlan:
    """A plan of the compiled library, or for float64 its reference."""

    def __init__(self, mask: Mask, problem: LinearProblem) -> None:
        self.problem = problem
        self._mask = mask if problem.code == F64 else None
        code = s.F32 if problem.code == F64 else problem.code
        self._given = given = s.LinearProblem(*problem[:6], code, *problem.device, problem.scale, problem.normalize)
        handle = create("linear_plan_create", mask._handle, ctypes.byref(given), None)
        self._handle = Handle(handle, library.flashmask_linear_plan_destroy)
        view = s.LinearPlanView()
        call("linear_plan_get", self._handle.value, ctypes.byref(view))
        self.nodes: int = view.nodes
        self.roots: int = view.roots

    def forward(self, tensors: Sequence[Placed], workspace: GpuWorkspace | None = None) -> None:
        """Runs flashmask_linear_forward on tensors in the order of its struct; on a GPU with a workspace."""
        self._run("linear_forward", tensors, workspace)

    def backward(self, tensors: Sequence[Placed], workspace: GpuWorkspace | None = None) -> None:
        """Runs flashmask_linear_backward on tensors in the order of its struct; on a GPU with a workspace."""
        self._run("linear_backward", tensors, workspace)

    def _run(self, name: str, tensors: Sequence[Placed], workspace: GpuWorkspace | None) -> None:
        if self._mask is not None:
            self._run_reference(name, tensors)
            return
        given = _sized(tensors)
        execution = None
        if workspace is not None:
            bytes_needed = ctypes.c_size_t()
            call(f"{name}_workspace", self._handle.value, given, ctypes.byref(bytes_needed))
            memory = workspace.allocate(bytes_needed.value)
            execution = bytes(
                s.Execution(workspace=memory.data_ptr(), workspace_bytes=bytes_needed.value, stream=workspace.stream)
            )
        check(getattr(library, f"flashmask_{name}")(self._handle.value, given, execution))

    def _run_reference(self, name: str, tensors: Sequence[Placed]) -> None:
        assert self._mask is not None
        fields = (s.LinearForwardTensors if name == "linear_forward" else s.LinearBackwardTensors)._fields_
        addresses = {field[0]: address for field, (address, _) in zip(fields, tensors, strict=True)}
        given = s.ReferenceLinearTensors(**addresses)
        call(f"reference_{name}", self._mask._handle, ctypes.byref(self._given), ctypes.byref(given))


def _sized(tensors: Sequence[Placed]) -> bytes:
    given = packed(*tensors)
    return struct.pack("=Q", len(given) + 8) + given


linear_plans: PlanCache[LinearPlan] = PlanCache()
os.register_at_fork(after_in_child=linear_plans.reset_lock)
