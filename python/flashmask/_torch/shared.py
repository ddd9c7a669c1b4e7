# SPDX-License-Identifier: Apache-2.0
"""Work that several layers share."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.utils._python_dispatch import _disable_current_modes

from flashmask._torch.plans.streams import capture_of, current_stream

Result = TypeVar("Result")
_shared: dict[Hashable, tuple[tuple[weakref.ref[Tensor], ...], tuple[Hashable, ...], object]] = {}
_SHARED_AT_MOST = 16  # kinds of layers in a model, times models that run at once
_modes = torch._C._TorchDispatchModeKey
_TRACING = _modes.FAKE, _modes.PROXY, _modes.FUNCTIONAL


def is_traced() -> bool:
    """Whether operations stand for others now: in a graph, on fake tensors, in a transform such as torch.func.grad.

    What is made then serves that trace only, and what was made before it is no part of it: neither is kept or found.
    """
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return True
    return torch._C._len_torch_dispatch_stack() > 0 and any(map(torch._C._get_dispatch_mode, _TRACING))


def to_keep(values: np.ndarray[Any, np.dtype[np.uint8]]) -> Tensor:
    """Returns the tensor of an array, an ordinary one even where it is made in a trace: calls after it get it too."""
    if not is_traced():
        return torch.from_numpy(values)
    with temporarily_clear_interpreter_stack(), _disable_current_modes():
        return torch.from_numpy(values)


def for_operators(kept: Tensor) -> Tensor:
    """Returns a tensor of to_keep() as operators take it: fake where they take nothing else."""
    if torch.compiler.is_compiling() or not torch._C._len_torch_dispatch_stack():
        return kept
    mode = torch._C._get_dispatch_mode(_modes.FAKE)
    lifted: Tensor = kept if mode is None or mode.allow_non_fake_inputs else torch.ops.aten.lift_fresh.default(kept)
    return lifted


def shared(make: Callable[..., Result], tensors: tuple[Tensor, ...], **numbers: Hashable) -> Result:
    """Returns make(*tensors, **numbers), made once while these very tensors live and hold the same.

    On the CPU their contents are compared: NumPy, which may share their memory, does not tell when it writes. On a GPU
    that would mean waiting; there PyTorch has to know of a write. The result must not be a view of the tensors, which
    would keep them alive. Captures of CUDA graphs make their own.
    """
    if is_traced() or not all(map(_tells, tensors)):
        return make(*tensors, **numbers)
    key = (make, tuple(map(id, tensors)), tuple(numbers.items()))
    states = tuple(map(_state, tensors))
    references, held_states, held = _shared.get(key, ((), (), None))
    if held_states == states and all(reference() is each for reference, each in zip(references, tensors, strict=True)):
        return held  # type: ignore[return-value]
    for oldest in list(_shared)[: max(0, len(_shared) + 1 - _SHARED_AT_MOST)]:
        _shared.pop(oldest, None)
    result = make(*tensors, **numbers)
    _shared[key] = (tuple(weakref.ref(each, lambda _: _shared.pop(key, None)) for each in tensors), states, result)
    return result


def _tells(tensor: Tensor) -> bool:
    """Whether writes to a tensor can be noticed: inference tensors on a GPU count no versions."""
    return type(tensor) is Tensor and (tensor.is_cpu or not tensor.is_inference())


def _state(tensor: Tensor) -> Hashable:
    """Returns what is another after every write to a tensor."""
    return content_of(tensor) if tensor.is_cpu else (tensor._version, _capture(tensor))


def content_of(tensor: Tensor) -> Hashable:
    """Returns the shape, dtype and values of a tensor on the CPU."""
    values = tensor.contiguous()
    return tuple(values.shape), values.dtype, ctypes.string_at(values.data_ptr(), values.nbytes)


def _capture(tensor: Tensor) -> int:
    if not tensor.is_cuda:
        return 0
    device = tensor.device.index
    return capture_of(device, current_stream(device))
