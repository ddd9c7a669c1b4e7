# SPDX-License-Identifier: Apache-2.0
"""Finds the plan of a call on a GPU, or makes it."""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from flashmask._abi.header import HEADER_BYTES, Options, read_header, says_deterministic
from flashmask._abi.problem import DTYPES, Problem
from flashmask._mask import Mask
from flashmask._plans.cache import Key, PlanCache
from flashmask._plans.call import Call, numbers_of
from flashmask._torch.plans.by_tensor import ByTensor, mask_of
from flashmask._torch.plans.cudnn_plan import CudnnPlan, cudnn_plan, resolved
from flashmask._torch.plans.device_plan import DevicePlan, plan_of_booleans, plan_of_mask, plan_of_rows, rows_of_nothing
from flashmask._torch.plans.mask_source import named_mask, packed_header
from flashmask._torch.plans.operands import check_devices, code_of
from flashmask._torch.plans.streams import capture_of, current_stream

AnyPlan: TypeAlias = DevicePlan | CudnnPlan


@dataclass
class _OfTensor:
    """Plans of a mask in a tensor, as it was at `state`, each with the block mask it was made with, if any."""

    state: tuple[int, int]
    plans: dict[Key, tuple[AnyPlan, weakref.ref[Tensor] | None]] = field(default_factory=dict)


# A mask on the host never changes, so its plans are found by its id. A mask in a tensor on a device may change, and
# checking would mean waiting for the device: its plans belong to the tensor and hold for one state of its version
# counter.
device_plans: PlanCache[AnyPlan] = PlanCache()
_of_tensors: ByTensor[_OfTensor] = ByTensor()
# A graph reads the memory of plans that were made before its capture for as long as it is run: these plans stay as long
# as the mask that the graph was captured with, or forever if there was no mask.
_captured: ByTensor[set[AnyPlan]] = ByTensor()
_captured_without_mask: set[AnyPlan] = set()


def remember_plans_of(mask: Tensor) -> None:
    """Lets plans of this mask on a device be kept with its tensor: every write to it must raise its version counter.

    Code that torch.compile generates writes without that: it reuses dead memory for other values, in the same tensor.
    """
    owner, _ = _owner(mask)
    if _of_tensors.get(owner) is None and not owner.is_inference():  # inference tensors count no versions
        _of_tensors.put(owner, _OfTensor(_state(owner)))


def _owner(mask: Tensor) -> tuple[Tensor, Hashable]:
    """Returns the tensor that plans of a mask belong to, and how the mask lies in it.

    A view of a whole tensor is made anew at each call, with that tensor's memory and version counter: plans belong to
    the whole. Plans of a partial view belong to the view; otherwise the plans of each step's part of a data set would
    stay for as long as the data set.
    """
    base = mask._base
    if base is None or base.numel() != mask.numel() or _memory(base) != _memory(mask):
        return mask, None
    return base, (mask.storage_offset(), mask.shape, mask.stride(), mask.dtype)


def _memory(tensor: Tensor) -> int:
    """Returns the address of the memory; another for a base whose `data` was replaced after the view was made."""
    return tensor.untyped_storage().data_ptr()


def _state(mask: Tensor) -> tuple[int, int]:
    """Returns version and address, which differ after any change that PyTorch knows of."""
    return mask._version, mask.data_ptr()


class Inputs(NamedTuple):
    """Shapes, dtype and device of q, k and v: what a plan depends on besides the mask and the numbers of the call."""

    q: Sequence[int]
    k: Sequence[int]
    v: Sequence[int]
    code: int
    device_index: int
    kernel: str = ""
    """What the names of the kernels begin with; "": as the call's plan says."""

    def problem(self, call: Call) -> Problem:
        """Returns the problem of a call with these inputs."""
        made = call.problem(self[:3], DTYPES[self.code])
        return made._replace(device=f"cuda:{self.device_index}")


def plan_of_call(
    q: Tensor, k: Tensor, v: Tensor, call: Call, kernel: str = "", backward_later: bool = False
) -> tuple[AnyPlan, int]:
    """Returns the plan, which the current stream may use, and that stream.

    `kernel`: what the names of the plan's kernels begin with, whatever the call's own plan says; "": any.
    `backward_later`: what is compiled for the backward waits for the first one, where a plan is made.
    """
    device = q.device
    if k.device != device or v.device != device:
        check_devices(device, k=k, v=v)
    stream = current_stream(device.index)
    capture = capture_of(device.index, stream)
    inputs = Inputs(q.shape, k.shape, v.shape, code_of(q, k, v), device.index, kernel)
    call = resolved(call, device.index)
    mask = call.mask
    if call.block_mask is None and (mask is None or mask.dtype is torch.uint8):
        plan, made_in = _of_constant(call, inputs, capture, backward_later)
    else:
        plan, made_in = _of_masks(call, inputs, capture, backward_later), capture
    plan.join(stream, made_in != capture)
    return plan, stream


def plan_of_header(header: bytes, mask: Mask, problem: Problem, options: Options) -> DevicePlan:
    """Returns the plan behind a Plan, kept where calls with the Plan's tensor find it."""
    index = int(problem.device.partition(":")[2])
    call = Call.of(problem)
    key: Key = (header, Inputs(*problem.shapes, problem.code, index), numbers_of(call))
    found = device_plans.find(key)
    if found is None:
        made = plan_of_mask(mask, problem, options)
        found = device_plans.keep(key, made, made.bytes)
    assert isinstance(found, DevicePlan)  # the key says that cudnn is not asked for
    return found


def _of_masks(call: Call, inputs: Inputs, capture: int, backward_later: bool = False) -> AnyPlan:
    """Returns the plan of row indices or booleans on the device, of a block mask, or of both."""
    mask = call.mask
    first, second = (mask, call.block_mask) if mask is not None else (call.block_mask, None)
    assert first is not None
    owner, lies = _owner(first)
    kept, beside = _kept(owner), None
    key: Key = (capture, mask is None, inputs, numbers_of(call), lies)
    if second is not None:
        beside, second_lies = _owner(second)
        kept = None if _of_tensors.get(beside) is None else kept
        key = (*key, id(beside), *_state(beside), second_lies)
    if kept is not None:
        found, reference = kept.plans.get(key, (None, None))
        if found is not None and (reference is None or reference() is beside):
            return found
    plan = _of_cudnn(call, inputs) or _make_of_tensors(call, inputs, backward_later)
    if kept is not None:
        if capture:  # an earlier graph's plans are of no use to another
            kept.plans = {of: other for of, other in kept.plans.items() if of[0] in (0, capture)}
        kept.plans[key] = plan, None if beside is None else weakref.ref(beside)
    return plan


def _of_cudnn(call: Call, inputs: Inputs) -> CudnnPlan | None:
    """Returns the plan of a call that NVIDIA's kernels compute, None for ours."""
    return cudnn_plan(call, inputs.problem(call)) if call.cudnn else None


def _kept(mask: Tensor) -> _OfTensor | None:
    """Returns the plans of a mask as it is now; None where remember_plans_of() was not called with the mask."""
    kept = _of_tensors.get(mask)
    if kept is None:
        return None
    state = _state(mask)
    return kept if kept.state == state else _of_tensors.put(mask, _OfTensor(state))


def _make_of_tensors(call: Call, inputs: Inputs, backward_later: bool) -> AnyPlan:
    mask, block_mask, causal = call.mask, call.block_mask, call.causal
    problem = inputs.problem(call)
    device = torch.device(problem.device)
    options = Options(
        deterministic=int(call.deterministic),
        invariant=int(call.invariant),
        kernel=inputs.kernel,
        compile_when_called=1,
        compile_backward_later=int(backward_later),
    )
    if mask is not None and mask.dtype is torch.bool:
        check_devices(device, mask=mask)
        if causal or block_mask is not None:
            raise ValueError("booleans came beside causal=True or block_mask; expected all of the mask in them")
        if options.invariant:
            raise NotImplementedError(
                f"invariant=True came beside booleans on {device}, and documents are found in row indices alone there; "
                "give RowIndices, or a mask on the host: from a builder, or masks.from_dense() of a copy"
            )
        return plan_of_booleans(mask, problem, options)
    if mask is not None and mask.dtype is torch.uint8:
        raise NotImplementedError(f"block_mask beside a packed mask on {device}; AND a block map onto the Mask instead")
    check_devices(device, startend_row_indices=mask, block_mask=block_mask)
    if options.invariant and (not call.most_documents or block_mask is not None):
        return plan_of_mask(_on_host(call, problem), problem, options)
    if mask is None:
        mask = rows_of_nothing(causal, problem.query_length, problem.key_length, device)
    return plan_of_rows(mask, causal, problem, options, block_mask, call.most_documents)


def _on_host(call: Call, problem: Problem) -> Mask:
    """Copies row indices and a block mask from the device, which waits for it."""
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "a CUDA graph is being captured, and invariant=True needs to know at most how many documents the mask on "
            "the device has: make it by masks.from_cu_seqlens, or give RowIndices most_documents"
        )
    mask, block_mask = (None if each is None else each.cpu() for each in (call.mask, call.block_mask))
    return named_mask(call._replace(mask=mask, block_mask=block_mask), problem).mask


def _of_constant(call: Call, inputs: Inputs, capture: int, backward_later: bool = False) -> tuple[AnyPlan, int]:
    """Returns the plan of a mask on the host, or of no mask, and the capture that the plan was made in (0: none)."""
    mask, header = call.mask, None
    if mask is not None:
        if mask.device.type != "cpu":
            raise ValueError(
                f"mask is a packed mask on {mask.device}; leave Mask.tensor on the CPU: its plan is made where q is"
            )
        header = packed_header(mask, call.causal)
        if call.deterministic and says_deterministic(header):
            call = call._replace(deterministic=False)
    key: Key = (header, inputs, numbers_of(call))
    found = device_plans.find(key)
    if found is None:
        found = _of_cudnn(call, inputs) or _make(call, inputs, backward_later)
        if capture:
            return found, capture
        found = device_plans.keep(key, found, found.bytes)
    elif capture:
        _staying(mask).add(found)
    return found, 0


def _make(call: Call, inputs: Inputs, backward_later: bool) -> AnyPlan:
    mask = call.mask
    if mask is None:
        return _make_of_tensors(call, inputs, backward_later)
    _, options = read_header(mask[:HEADER_BYTES].numpy().tobytes())
    options = options._replace(
        deterministic=options.deterministic | call.deterministic,
        invariant=options.invariant | call.invariant,
        kernel=inputs.kernel or options.kernel,
        compile_when_called=1,
        compile_backward_later=int(backward_later),
    )
    return plan_of_mask(mask_of(mask), inputs.problem(call), options)


def _staying(mask: Tensor | None) -> set[AnyPlan]:
    """Returns the plans that stay alive for graphs with this mask."""
    if mask is None:
        return _captured_without_mask
    found = _captured.get(mask)
    return _captured.put(mask, set()) if found is None else found
