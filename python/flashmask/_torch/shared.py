# SPDX-License-Identifier: Apache-2.0
"""Work that several layers share."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from typing import TypeVar

import torch
from torch import Tensor

from flashmask._torch.plans.streams import capture_of, current_stream

Result = TypeVar("Result")
_shared: dict[Hashable, tuple[tuple[weakref.ref[Tensor], ...], object]] = {}
_SHARED_AT_MOST = 16  # kinds of layers in a model, times models that run at once


def shared(make: Callable[..., Result], tensors: tuple[Tensor, ...], **numbers: Hashable) -> Result:
    """Returns make(*tensors, **numbers), made once while these very tensors live and are not written to.

    The result must not be a view of the tensors, which would keep them alive. Captures of CUDA graphs make their own.
    """
    if torch.compiler.is_compiling() or any(each.is_inference() for each in tensors):
        return make(*tensors, **numbers)  # inference tensors do not tell when they are written to
    given = tuple((id(each), each._version, _capture(each)) for each in tensors)
    key = (make, given, tuple(numbers.items()))
    held = _shared.get(key)
    if held is not None and all(reference() is each for reference, each in zip(held[0], tensors, strict=True)):
        return held[1]  # type: ignore[return-value]
    for oldest in list(_shared)[: max(0, len(_shared) + 1 - _SHARED_AT_MOST)]:
        _shared.pop(oldest, None)
    result = make(*tensors, **numbers)
    _shared[key] = (tuple(weakref.ref(each, lambda _: _shared.pop(key, None)) for each in tensors), result)
    return result


def _capture(tensor: Tensor) -> int:
    if not tensor.is_cuda:
        return 0
    device = tensor.device.index
    return capture_of(device, current_stream(device))
