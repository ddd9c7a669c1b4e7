# SPDX-License-Identifier: Apache-2.0
"""Runs the kernel of a call without PyTorch's dispatcher, where that would do nothing but call it.

The dispatcher takes as long as everything else in a small call. Where anything listens to operators (modes, transforms,
tracing, autocast, profilers) or tensors are of another kind, this is noticed and the call left to the dispatcher.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter

from flashmask._plans.call import Call
from flashmask._torch.cpu import backward_cpu, forward_cpu, forward_with_max_scores_cpu
from flashmask._torch.cuda import backward_cuda, forward_cuda, forward_with_max_scores_cuda
from flashmask._torch.schemas import Gradients, Outputs, OutputsWithMaxScores

_Key: Any = torch._C.DispatchKey
_Keys: Any = torch._C.DispatchKeySet
_is_excluded: Callable[[Any], bool] = torch._C._dispatch_tls_is_dispatch_key_excluded
_is_autocast: Callable[[], bool] = torch._C._is_any_autocast_enabled
_function_modes: Callable[[], int] = torch._C._len_torch_function_stack
_is_profiled: Callable[[], bool] = torch._C._autograd._profiler_enabled


class Kernels(NamedTuple):
    """The kernels of a device."""

    forward: Callable[[Tensor, Tensor, Tensor, Call], Outputs]
    forward_with_max_scores: Callable[[Tensor, Tensor, Tensor, Call], OutputsWithMaxScores]
    backward: Callable[..., Gradients]
    on_cpu: bool


# Key sets as numbers: to PyTorch 2.6 two equal sets are different objects, and later versions compare them slowly.
def _keys_of(*names: str) -> int:
    keys = _Keys(getattr(_Key, names[0]))
    for name in names[1:]:
        keys = keys | _Keys(getattr(_Key, name))
    return int(keys.raw_repr())


def _keys(tensor: Tensor) -> int:
    bits: int = torch._C._dispatch_keys(tensor).raw_repr()
    return bits


def _included() -> int:
    bits: int = torch._C._dispatch_tls_local_include_set().raw_repr()
    return bits


# Keys of ordinary tensors; those of inference mode have no autograd keys.
_CPU = _keys_of("CPU", "ADInplaceOrView", "AutogradCPU", "AutocastCPU"), _keys_of("CPU", "AutocastCPU")
_CUDA = _keys_of("CUDA", "ADInplaceOrView", "AutogradCUDA", "AutocastCUDA"), _keys_of("CUDA", "AutocastCUDA")
# Keys of a thread in which nothing listens to operators, outside of inference mode and in it.
_QUIET = _keys_of("BackendSelect", "ADInplaceOrView"), _keys_of("BackendSelect")
_AUTOGRAD = _Key.AutogradOther  # excluded with the autograd keys of all devices, which TLS does not list one by one
_ON_CPU = Kernels(forward_cpu, forward_with_max_scores_cpu, backward_cpu, True)
_ON_CUDA = Kernels(forward_cuda, forward_with_max_scores_cuda, backward_cuda, False)


def kernels_of(q: Tensor, k: Tensor, v: Tensor, call: Call) -> Kernels | None:
    """Returns the kernels that the dispatcher would come to; None where it may have to do more."""
    if not (type(q) is type(k) is type(v) is Tensor):
        return None
    keys = _keys(q)
    if keys in _CPU:
        kernels = _ON_CPU
    elif keys in _CUDA:
        kernels = _ON_CUDA
    else:
        return None
    if _keys(k) == keys and _keys(v) == keys and _has_plain_tensors(call, kernels) and _is_quiet():
        return kernels
    return None


def is_plain(*tensors: Tensor) -> bool:
    """Whether an operation on these, without gradients, would only run the kernel of their device."""
    keys = _keys(tensors[0])
    alike = all(type(each) is Tensor and _keys(each) == keys for each in tensors)
    return alike and (keys in _CPU or keys in _CUDA) and _is_quiet()


def stays_direct(
    kernels: Kernels, grad_o: Tensor, grad_lse: Tensor | None, saved: tuple[Tensor, ...], call: Call
) -> bool:
    """Whether the backward of a call may go straight to its kernel: hooks may have put other tensors into `saved`."""
    keys = _CPU if kernels.on_cpu else _CUDA
    for tensor in saved:
        if type(tensor) is not Tensor or not (tensor.is_cpu if kernels.on_cpu else tensor.is_cuda):
            return False
    if type(grad_o) is not Tensor or _keys(grad_o) not in keys:
        return False
    if grad_lse is not None and (type(grad_lse) is not Tensor or _keys(grad_lse) not in keys):
        return False
    return _has_plain_tensors(call, kernels) and _is_quiet()


def is_recordable() -> bool:
    """Whether autograd can record here; False in kernels of other operators, which run below autograd."""
    return not _is_excluded(_AUTOGRAD)


def _has_plain_tensors(call: Call, kernels: Kernels) -> bool:
    if call.block_mask is not None or call.seed_offset is not None or call.bias_kind or call.reads:
        return False
    sinks = call.sinks
    if sinks is not None and (
        type(sinks) not in (Tensor, Parameter) or _keys(sinks) not in (_CPU if kernels.on_cpu else _CUDA)
    ):
        return False
    mask = call.mask
    return mask is None or (type(mask) is Tensor and (mask.is_cpu or not kernels.on_cpu))


def _is_quiet() -> bool:
    """Whether nothing listens to operators."""
    return _included() in _QUIET and not (_is_autocast() or _function_modes() or _is_profiled())
