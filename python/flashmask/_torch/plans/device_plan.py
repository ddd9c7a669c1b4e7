# SPDX-License-Identifier: Apache-2.0
"""Plans on a GPU: made there, on torch's current stream and in torch's memory."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import torch
from torch import Tensor

from flashmask._abi import structs as s
from flashmask._abi.header import Options
from flashmask._abi.library import call, create
from flashmask._abi.problem import DTYPES, Problem, check_mask
from flashmask._info import kernels
from flashmask._mask import Mask, MaskShape
from flashmask._plans.live_plan import (
    Addresses,
    AnyBias,
    CompiledPlan,
    Drawn,
    Saved,
    SinkGradient,
    Sinks,
    Tangents,
    View,
    execution,
)
from flashmask._rows import check_row_indices
from flashmask._torch.plans.mask_source import check_block_mask

_HEAD_DIM_STEP = 8


class DevicePlan(CompiledPlan):
    """A plan on a GPU: its memory there, and the stream that makes it."""

    def __init__(self, handle: int, problem: Problem, memory: Tensor, stream: int) -> None:
        super().__init__(handle, problem)
        self.head_dim = problem.head_dim
        self.value_dim = problem.value_dim
        self.bytes = memory.numel()
        self._memory = memory
        self._stream = stream
        self._made = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._made.record(torch.cuda.current_stream(memory.device))
        self._workspace_bytes = [-1, -1]

    def join(self, stream: int, captured_elsewhere: bool) -> None:
        """Makes the current stream wait for the plan, and keeps the plan's memory until that stream has used it.

        `captured_elsewhere`: a graph is being captured that the plan is not part of. The graph cannot wait for work
        outside of it; work from before a capture is done when the graph runs.
        """
        if stream == self._stream or captured_elsewhere:
            return
        current = torch.cuda.current_stream(self._memory.device)
        current.wait_event(self._made)
        self._memory.record_stream(current)

    def workspace(self, direction: int) -> Tensor:
        """Allocates memory for one call. Raises NotImplementedError where no kernel serves the direction."""
        size = self._workspace_bytes[direction]
        if size < 0:
            needed = ctypes.c_size_t()
            call("plan_workspace", self._handle, direction, 1, ctypes.byref(needed))
            size = self._workspace_bytes[direction] = needed.value
        return torch.empty(size, dtype=torch.uint8, device=self._memory.device)

    def tangents_workspace(self) -> Tensor:
        """Allocates memory for one call of forward_tangents(). Raises NotImplementedError where no kernel has them."""
        needed = ctypes.c_size_t()
        call("plan_tangents_workspace", self._handle, 1, ctypes.byref(needed))
        return torch.empty(needed.value, dtype=torch.uint8, device=self._memory.device)

    def forward(
        self,
        q: View,
        k: View,
        v: View,
        o: int,
        lse: int,
        workspace: Tensor,
        stream: int,
        drawn: Drawn,
        sinks: Sinks | None = None,
        bias: AnyBias | None = None,
        max_scores: int = 0,
    ) -> None:
        """Writes o and, (batch, heads, rows), lse and max_scores (0: not wanted) without gaps at these addresses."""
        self._run_forward(q, k, v, o, lse, _execution(workspace, stream, drawn), sinks, bias, max_scores)

    def backward(
        self,
        saved: Saved,
        grads: tuple[View, int],
        out: Addresses,
        workspace: Tensor,
        stream: int,
        drawn: Drawn,
        sinks: SinkGradient | None = None,
        float32_key_gradients: bool = False,
        bias: AnyBias | None = None,
    ) -> None:
        """Writes the gradients of q, k, v and the sinks, given those of o and lse (0: none) and the saved tensors."""
        where = _execution(workspace, stream, drawn)
        self._run_backward(saved, grads, out, where, sinks, float32_key_gradients, bias)

    def forward_tangents(
        self,
        saved: Saved,
        tangents: Tangents,
        out: tuple[int, int],
        workspace: Tensor,
        stream: int,
        drawn: Drawn,
        sinks: Sinks | None = None,
        bias: AnyBias | None = None,
    ) -> None:
        """Writes the tangents of o and lse, both without gaps, at the addresses `out`."""
        self._run_tangents(saved, tangents, out, _execution(workspace, stream, drawn), sinks, bias)


def _execution(workspace: Tensor, stream: int, drawn: Drawn) -> bytes:
    return execution(drawn, workspace.data_ptr(), workspace.numel(), stream)


def plan_of_mask(mask: Mask, problem: Problem, options: Options) -> DevicePlan:
    """Makes the plan of a mask on the host; does not wait for the device where row indices can express the mask."""
    check_mask("mask", mask.shape, problem)
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "a CUDA graph is being captured, and its mask, which is on the host, has no plan on the device yet; run "
            "once with the mask before the capture, or pass RowIndices made of tensors on the device"
        )
    on_host = options.reorder or options.invariant  # what decides them is found there
    if options.form != s.FORM_BITS and not on_host and mask.form == "intervals":
        try:
            values, causal = mask.to_startend_row_indices()
        except NotImplementedError:  # there is a block map beside the intervals
            pass
        else:
            rows = torch.from_numpy(values).pin_memory().to(problem.device, non_blocking=True)
            return plan_of_rows(rows, causal, problem, options)
    return _make("plan_bytes", "plan_create_at", mask._handle, problem, options)


def plan_of_rows(
    rows: Tensor,
    causal: bool,
    problem: Problem,
    options: Options,
    blocks: Tensor | None = None,
    most_documents: int = 0,
) -> DevicePlan:
    """Makes a plan from row indices, int32 [batch, heads, columns, n], on the problem's device, ANDed with blocks.

    `most_documents`: as RowIndices has it, 0 for None.
    """
    check_row_indices("startend_row_indices", rows, causal)
    check_mask("startend_row_indices", _shape(rows, problem), problem)
    if blocks is not None:
        check_block_mask(blocks, problem)
        rows, blocks = _of_common_heads(rows, blocks)
    rows = rows.contiguous()
    source = s.DeviceMask(
        kind=s.DEVICE_ROW_INDICES,
        vectors=rows.shape[3],
        causal=causal,
        shape=_shape(rows, problem).struct(),
        data=rows.data_ptr(),
        most_documents=most_documents,
    )
    if blocks is not None:
        blocks = blocks.contiguous()
        source.keep_blocks, source.keep_batch, source.keep_heads = blocks.data_ptr(), *blocks.shape[:2]
    return _make("device_mask_plan_bytes", "device_mask_plan_create", ctypes.byref(source), problem, options)


def plan_of_booleans(visible: Tensor, problem: Problem, options: Options) -> DevicePlan:
    """Makes a plan from booleans [batch, heads, rows, columns], True = visible, on the problem's device."""
    if visible.ndim != 4:
        raise ValueError(f"mask has shape {list(visible.shape)}; expected [batch, heads, rows, columns]")
    shape = MaskShape(*visible.shape)
    check_mask("mask", shape, problem)
    source = s.DeviceMask(kind=s.DEVICE_DENSE, shape=shape.struct(), data=visible.data_ptr())
    source.strides[:] = visible.stride()
    return _make("device_mask_plan_bytes", "device_mask_plan_create", ctypes.byref(source), problem, options)


def _shape(rows: Tensor, problem: Problem) -> MaskShape:
    return MaskShape(rows.shape[0], rows.shape[1], problem.query_length, rows.shape[2])


def _of_common_heads(rows: Tensor, blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Expands row indices to the larger batch and head count of the two, and blocks to that head count or 1."""
    batch, heads = max(len(rows), len(blocks)), max(rows.shape[1], blocks.shape[1])
    rows = rows.repeat_interleave(heads // rows.shape[1], dim=1).expand(batch, -1, -1, -1)
    if blocks.shape[1] not in (1, heads):
        blocks = blocks.repeat_interleave(heads // blocks.shape[1], dim=1)
    return rows, blocks


def rows_of_nothing(causal: bool, query_length: int, columns: int, device: torch.device) -> Tensor:
    """Returns row indices [1, 1, columns, n] that mask only what `causal` does; torch.compile can trace it."""
    ends = torch.full((1, 1, columns, 1), query_length, dtype=torch.int32, device=device)
    return ends if causal else torch.cat([ends, torch.zeros_like(ends)], dim=-1)


def _make(bytes_of: str, create_of: str, source: Any, problem: Problem, options: Options) -> DevicePlan:
    """Makes a plan with `bytes_of` and `create_of`, functions of the C ABI that take the source."""
    _check_served(problem)
    problem = _as_computed(problem)
    given = ctypes.byref(problem.struct()), ctypes.byref(options.struct())
    size = ctypes.c_size_t()
    call(bytes_of, source, *given, ctypes.byref(size))
    device = torch.device(problem.device)
    memory = torch.empty(max(size.value, 1), dtype=torch.uint8, device=device)
    stream = torch.cuda.current_stream(device).cuda_stream
    place = s.PlanPlace(stream, memory.data_ptr(), memory.numel())
    return DevicePlan(create(create_of, source, *given, ctypes.byref(place)), problem, memory, stream)


def _check_served(problem: Problem) -> None:
    """Refuses devices and dtypes that this build has no kernels for."""
    devices, dtypes = _served()
    if "cuda" not in devices:
        raise ValueError(
            f"q is on {problem.device}; this build of flashmask computes on the devices: {', '.join(devices)}; install "
            "it where CUDA's compiler, nvcc, is"
        )
    if problem.dtype not in dtypes:
        raise NotImplementedError(
            f"q is {problem.dtype} on {problem.device}; kernels there compute {' and '.join(dtypes)}: cast q, k and v "
            "to one of them, as torch.autocast does, or compute on the CPU"
        )


@functools.cache
def _served() -> tuple[list[str], list[str]]:
    """Returns the devices with kernels in this build, and the GPU kernels' dtypes. Reading the table takes time."""
    table = kernels()
    on_gpu = {kernel["dtype"] for kernel in table if kernel["device"] == "cuda"}
    dtypes = [name for name, short in zip(DTYPES, ("f32", "bf16", "f16", "f64"), strict=True) if short in on_gpu]
    return sorted({kernel["device"] for kernel in table}), dtypes


def _as_computed(problem: Problem) -> Problem:
    """Rounds head dims up to multiples of 8, which kernels take; the added columns are zeros."""
    head_dim, value_dim = (-(-dim // _HEAD_DIM_STEP) * _HEAD_DIM_STEP for dim in (problem.head_dim, problem.value_dim))
    scale = problem.scale if head_dim == problem.head_dim else problem.scale or problem.head_dim**-0.5
    return problem._replace(head_dim=head_dim, value_dim=value_dim, scale=scale)
