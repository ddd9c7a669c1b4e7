# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's cudnn.flex_attention behind this library's operators: its plans, and when it is chosen.

The package is nvidia-cudnn-frontend. It takes what each row sees, the ranges that Mask.to_row_ranges() writes, compiles
kernels when they are first called, and waits for the device when a plan is made.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import warnings
from typing import Any

import torch
from torch import Tensor

from flashmask._abi.header import HEADER_BYTES, Options, read_header
from flashmask._abi.problem import Problem, check_mask
from flashmask._backends import AUTOMATIC, BY_NAME, OURS, WHERE_IT_SERVES, backend_of_environment
from flashmask._mask import Mask
from flashmask._plans.call import Call
from flashmask._torch.plans.mask_source import named_mask

_INSTALL = "pip install 'nvidia-cudnn-frontend[cutedsl]>=1.32'"
_CAPABILITIES = ((9, 0), (10, 0), (10, 3))


class CudnnPlan:
    """A plan of cudnn.flex_attention for one mask and one problem."""

    def __init__(self, mask: Mask, problem: Problem) -> None:
        device = torch.device(problem.device)
        ends = _ends(mask, problem).to(device)
        plan, self._forward, self._backward = _package()
        # The package reads shapes, dtype and device of q, k and v alone: one row of memory stands for all.
        samples = (
            torch.empty(shape[3], dtype=getattr(torch, problem.dtype), device=device).as_strided(shape, (0, 0, 0, 1))
            for shape in problem.shapes
        )
        self._plan = plan(ends, *samples, build_backward=True)
        self.bytes = 4 * ends.nbytes  # what it keeps, about
        self._scale = problem.scale
        self._has_gradient_of_lse = problem.head_dim < 256 or torch.cuda.get_device_capability(device)[0] == 9
        self._device = device
        self._stream = torch.cuda.current_stream(device)
        self._made = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._made.record(self._stream)

    def join(self, stream: int, captured_elsewhere: bool) -> None:
        """Makes the current stream wait for the plan, as DevicePlan.join() does; the package keeps its memory."""
        if stream != self._stream.cuda_stream and not captured_elsewhere:
            torch.cuda.current_stream(self._device).wait_event(self._made)

    def serves_backward(self, grad_lse: Tensor | None, float32_key_gradients: bool) -> bool:
        """Whether the package has this backward; o and lse are the same to all kernels, so that ours may take over."""
        return not float32_key_gradients and (grad_lse is None or self._has_gradient_of_lse)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Returns o and lse; strides are multiples of 16 bytes but the last, which is 1."""
        o, lse, _ = self._forward(q, k, v, mask_plan=self._plan, softmax_scale=self._scale, return_lse=True)
        return o, lse

    def backward(
        self, grad_o: Tensor, grad_lse: Tensor | None, saved: tuple[Tensor, ...], deterministic: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the gradients of q, k and v; `saved` are q, k, v, o and lse, with strides as in forward()."""
        q, k, v, o, lse = saved
        grad_q, grad_k, grad_v = self._backward(
            *(q, k, v, o, grad_o, lse.contiguous()),
            mask_plan=self._plan,
            softmax_scale=self._scale,
            deterministic=deterministic,
            dlse_tensor=None if grad_lse is None else grad_lse.contiguous(),
        )
        return grad_q, grad_k, grad_v


def _package() -> tuple[Any, Any, Any]:
    """Returns create_mask_plan(), and the forward and backward that its autograd function calls."""
    plans = importlib.import_module("cudnn.flex_attention")
    execution = importlib.import_module("cudnn.flex_attention.execution")
    try:
        return plans.create_mask_plan, execution._flex_attention_forward, execution._flex_attention_backward
    except AttributeError as error:
        found = importlib.metadata.version("nvidia-cudnn-frontend")
        raise ImportError(f"nvidia-cudnn-frontend {found} lacks a part that 1.32 has: {error}") from error


def _ends(mask: Mask, problem: Problem) -> Tensor:
    """Returns what each row sees as the package takes it: int32 [1 or query heads, ends, batch * rows]."""
    check_mask("mask", mask.shape, problem)
    ends = torch.from_numpy(mask.to_row_ranges())
    if mask.shape.heads not in (1, problem.query_heads):
        ends = ends.repeat_interleave(problem.query_heads // mask.shape.heads, 0)
    return ends if mask.shape.batch == problem.batch else ends.repeat(1, 1, problem.batch)


def cudnn_plan(call: Call, problem: Problem) -> CudnnPlan | None:
    """Makes the plan of a call that cudnn is to compute; None where it does not serve it and ours may.

    Raises NotImplementedError, with what is lacking, where cudnn was asked for by name.
    """
    reason = why_not(call, problem)
    if not reason and torch.cuda.is_current_stream_capturing():
        reason = "a CUDA graph is being captured, and making its plan waits for the GPU: run once before the capture"
    if not reason:
        try:
            return CudnnPlan(_host_mask(call, problem), problem)
        except NotImplementedError as error:  # a row with more ranges than it takes
            reason = str(error)
    if call.cudnn == BY_NAME:
        raise NotImplementedError(f'backend="cudnn" was asked for, and {reason}; leave backend out, for our kernels')
    return None


def _host_mask(call: Call, problem: Problem) -> Mask:
    """Returns the mask of a call; waits for the device where it is there."""
    mask = call.mask
    if mask is not None and mask.dtype is torch.bool:
        from flashmask.masks._imports import from_booleans

        return from_booleans("mask", mask.cpu())
    on_host = call if mask is None else call._replace(mask=mask.detach().cpu())
    return named_mask(on_host, problem).mask


def why_not(call: Call, problem: Problem) -> str:
    """Says why cudnn.flex_attention cannot compute a call; empty where it can, as far as is known without the mask."""
    index = torch.device(problem.device).index
    return why_no_gpu(index) or _why_not_here(problem) or _why_not_features(call) or _why_not_mask(call)


def why_no_gpu(device_index: int | None) -> str:
    """Says why the package computes nothing on a GPU."""
    capability = torch.cuda.get_device_capability(device_index)
    if capability not in _CAPABILITIES:
        point = _point(capability)
        return f"it has kernels for compute capability 9.0, 10.0 and 10.3, and cuda:{device_index} has {point}"
    return _why_not_installed()


def _why_not_here(problem: Problem) -> str:
    if problem.dtype not in ("bfloat16", "float16"):
        return f"q is {problem.dtype}; it computes bfloat16 and float16"
    dims = problem.head_dim, problem.value_dim
    if not (all(dim % 8 == 0 and dim <= 128 for dim in dims) or dims in ((192, 128), (256, 256))):
        return f"head dims are {dims[0]} and {dims[1]}; it takes multiples of 8 up to 128, (192, 128) and (256, 256)"
    if 0 in (problem.query_length, problem.key_length, problem.batch, problem.query_heads):
        return "there is nothing to compute"
    return ""


_SERVED = {"mask", "causal", "scale", "deterministic", "cudnn"}
"""The fields of a call that the package has; every other one is refused, those that calls get later included."""


def _why_not_features(call: Call) -> str:
    for name, default in Call._field_defaults.items():
        value = getattr(call, name)
        if name not in _SERVED and value is not default and (isinstance(value, Tensor) or value != default):
            said = f"score={value!r}" if name == "change" else f"{name} is given"
            return f"{said}, which it has not"
    return ""


def _why_not_mask(call: Call) -> str:
    mask = call.mask
    if mask is not None and mask.dtype is torch.uint8 and _options_of(mask) != Options():
        return "the mask is that of a plan, which names our kernels"
    if mask is not None and mask.dtype is torch.bool and call.cudnn != BY_NAME:
        return "the mask is booleans, which it would have to read on the host"
    return ""


def _options_of(mask: Tensor) -> Options:
    _, options = read_header(mask[:HEADER_BYTES].numpy().tobytes())
    return options._replace(deterministic=0)


def _point(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"


@functools.cache
def _why_not_installed() -> str:
    try:
        _package()
    except ImportError as error:
        return f"cudnn.flex_attention cannot be imported ({error}): {_INSTALL}"
    return ""


def resolved(call: Call, device_index: int) -> Call:
    """Returns a call that says 0 for our kernels, or 1 or 2 for cudnn's where it serves or by name."""
    if call.cudnn == AUTOMATIC:
        return call._replace(cudnn=WHERE_IT_SERVES) if _is_preferred(device_index) else call
    return call._replace(cudnn=0) if call.cudnn == OURS else call


@functools.cache
def _is_preferred(device_index: int) -> bool:
    """Whether a device's calls go to cudnn: by FLASHMASK_BACKEND, else on compute capability 10 if it is installed.

    Both are said once, when the first call comes.
    """
    chosen = backend_of_environment()
    if chosen == "flashmask" or (not chosen and torch.cuda.get_device_capability(device_index)[0] != 10):
        return False
    name, lacking = torch.cuda.get_device_name(device_index), why_no_gpu(device_index)
    if lacking and chosen:
        warnings.warn(f"FLASHMASK_BACKEND is cudnn, and {lacking}; {name} runs our kernels", stacklevel=1)
    if lacking:
        return False
    version = importlib.metadata.version("nvidia-cudnn-frontend")
    warnings.warn(
        f"{name} runs attention through cudnn.flex_attention {version} where it serves a call; FLASHMASK_BACKEND="
        "flashmask runs our kernels",
        stacklevel=1,
    )
    return True
