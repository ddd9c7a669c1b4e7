# SPDX-License-Identifier: Apache-2.0
"""Registers the operators with PyTorch's dispatcher, and has forward(), through which the package calls them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from flashmask._arguments import check_dense
from flashmask._backends import BY_NAME
from flashmask._info import kernels
from flashmask._plans.call import OF_BACKWARD, Call, call_of_backward
from flashmask._torch.autograd import (
    BelowAutograd,
    backward_autograd,
    forward_autograd,
    forward_with_max_scores_autograd,
    is_differentiated,
    is_dual,
    record,
)
from flashmask._torch.cpu import backward_cpu, forward_cpu, forward_tangents_cpu, forward_with_max_scores_cpu
from flashmask._torch.cuda import backward_cuda, forward_cuda, forward_tangents_cuda, forward_with_max_scores_cuda
from flashmask._torch.direct import is_recordable, kernels_of
from flashmask._torch.flops import backward_flops, count_flops, forward_flops, forward_tangents_flops
from flashmask._torch.plans.device_plan import rows_of_nothing
from flashmask._torch.plans.device_plans import remember_plans_of
from flashmask._torch.plans.streams import in_graph_tree
from flashmask._torch.schemas import (
    LIBRARY,
    SCHEMA,
    Outputs,
    OutputsWithMaxScores,
    forward_operator,
    forward_with_max_scores_operator,
    snapshot_operator,
)
from flashmask._torch.shapes import (
    backward_fake,
    forward_fake,
    forward_tangents_fake,
    forward_with_max_scores_fake,
    snapshot_fake,
)
from flashmask._torch.tangents import forward_tangents_autograd


def forward(q: Tensor, k: Tensor, v: Tensor, call: Call) -> Outputs:
    """Runs flashmask::forward, bypassing the dispatcher and autograd where they have nothing to do."""
    call = _checked(q, k, call)
    if torch.compiler.is_compiling():
        return forward_operator(q, k, v, *call, SCHEMA)
    kernels = kernels_of(q, k, v, call)
    if kernels is None:
        for name, tensor in (("q", q), ("k", k), ("v", v)):
            check_dense(name, tensor)
    if is_differentiated(q, k, v, call.sinks, call.bias):
        if kernels is not None and is_recordable() and not is_dual():
            return record(q, k, v, call.sinks, None, call, kernels)
        return forward_operator(q, k, v, *call, SCHEMA)
    if kernels is not None:
        return kernels.forward(q, k, v, call)
    with BelowAutograd():
        return forward_operator(q, k, v, *call, SCHEMA)


def forward_with_max_scores(q: Tensor, k: Tensor, v: Tensor, call: Call) -> OutputsWithMaxScores:
    """Runs flashmask::forward_with_max_scores."""
    call = _checked(q, k, call)
    if torch.compiler.is_compiling():
        return forward_with_max_scores_operator(q, k, v, *call, SCHEMA)
    kernels = kernels_of(q, k, v, call)
    if kernels is None:
        for name, tensor in (("q", q), ("k", k), ("v", v)):
            check_dense(name, tensor)
    elif not is_differentiated(q, k, v, call.sinks, call.bias):
        return kernels.forward_with_max_scores(q, k, v, call)
    return forward_with_max_scores_operator(q, k, v, *call, SCHEMA)


def _checked(q: Tensor, k: Tensor, call: Call) -> Call:
    """Returns the call as operators are given it; refuses what no document has alone, and cuDNN on a CPU."""
    if torch.are_deterministic_algorithms_enabled():
        call = call._replace(deterministic=True)
    if call.invariant:
        _check_invariant(call)
    if q.is_cuda:
        return _shared_by_layers(q, k, call)
    if call.cudnn == BY_NAME and q.is_cpu:
        raise NotImplementedError('backend="cudnn" was asked for, and q is on cpu; it has kernels for NVIDIA\'s GPUs')
    return call


def _check_invariant(call: Call) -> None:
    """Refuses what no document has alone."""
    if call.bias is not None and call.bias.requires_grad and torch.is_grad_enabled():
        raise NotImplementedError(
            "the bias requires a gradient, and invariant=True was asked for: its gradient is a sum over the whole "
            "call, which no document has alone; leave invariant out, or detach the bias"
        )
    if call.sinks is not None and call.sinks.requires_grad and torch.is_grad_enabled():
        raise NotImplementedError(
            "sinks require a gradient, and invariant=True was asked for: the gradient of a sink is a sum over the "
            "whole call, which no document has alone; leave invariant out, or pass sinks.detach()"
        )


def _shared_by_layers(q: Tensor, k: Tensor, call: Call) -> Call:
    """Returns the call with masks on a GPU whose plans all layers share."""
    if not torch.compiler.is_compiling():
        for each in (call.mask, call.block_mask):
            if each is not None and each.dtype is not torch.uint8:
                remember_plans_of(each)
        return call
    mask, block_mask = call.mask, call.block_mask
    if mask is None and block_mask is None:
        mask = rows_of_nothing(call.causal, q.shape[1], k.shape[1], q.device)
    return call._replace(mask=_shared(mask), block_mask=_shared(block_mask))


def _shared(mask: Tensor | None) -> Tensor | None:
    """Returns a copy inside a graph, the same one for all layers."""
    return mask if mask is None or mask.dtype is torch.uint8 else snapshot_operator(mask)


def _snapshot(mask: Tensor) -> Tensor:
    """Returns a copy that is never written to, so that its plans can be kept. Equal calls in a graph become one."""
    copied = mask.clone(memory_format=torch.contiguous_format)
    if not (copied.is_cuda and in_graph_tree(copied.device.index)):
        remember_plans_of(copied)
    return copied


def cast_by_autocast(device_type: str, *tensors: Tensor) -> list[Tensor]:
    """Casts q, k and v to the autocast dtype, as scaled_dot_product_attention does; float64 stays."""
    dtype = torch.get_autocast_dtype(device_type)
    return [
        each.to(dtype) if each.is_floating_point() and each.dtype is not torch.float64 else each for each in tensors
    ]


def _autocast(device_type: str, operator: Callable[..., Any]) -> Any:
    excluded = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, f"Autocast{device_type.upper()}"))

    def forward_autocast(q: Tensor, k: Tensor, v: Tensor, *arguments: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(excluded):
            return operator(*cast_by_autocast(device_type, q, k, v), *arguments)

    return forward_autocast


def _refuse_vmap(*arguments: Any) -> Any:
    raise NotImplementedError(
        "flashmask does not support torch.func.vmap; pass the mapped dimension as the batch dimension of q, k and v"
    )


def _refuse_device(*arguments: Any) -> Any:
    device = next((a.device for a in arguments if isinstance(a, Tensor) and a.device.type != "cpu"), "no device")
    devices = sorted({kernel["device"] for kernel in kernels()})
    raise ValueError(f"a tensor is on {device}; this build of flashmask computes on the devices: {', '.join(devices)}")


def _of_forward(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Adapts a kernel of tensors and a Call to the dispatcher, which leaves out last arguments at their defaults."""
    end = 3 + len(Call._fields)
    return lambda *arguments: kernel(*arguments[:3], Call(*arguments[3:end]))


def _of_tangents(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Adapts a kernel of eight tensors and a Call."""
    return lambda *arguments: kernel(*arguments[:8], Call(*arguments[8:]))


def _of_backward(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Adapts a backward kernel in the same way; float32_key_gradients follows the fields of the call."""
    end = 7 + len(OF_BACKWARD)
    return lambda *arguments: kernel(*arguments[:7], call_of_backward(arguments[7:end]), *arguments[end : end + 1])


def _of_backward_with_sinks(kernel: Callable[..., Any]) -> Callable[..., Any]:
    end = 8 + len(OF_BACKWARD)
    return lambda *arguments: kernel(
        *arguments[:7], call_of_backward(arguments[8:end], sinks=arguments[7]), *arguments[end : end + 1]
    )


def _of_backward_with_bias(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Adapts a backward kernel that also returns the gradient of the bias; without sinks, theirs is empty."""
    end = 8 + len(OF_BACKWARD)

    def run(*arguments: Any) -> Any:
        call = call_of_backward(arguments[8:end], sinks=arguments[7])
        *gradients, of_bias = kernel(*arguments[:7], call, *(arguments[end : end + 1] or (False,)), True)
        if call.sinks is None:
            gradients.append(gradients[0].new_empty(0))
        return *gradients, of_bias

    return run


def _register() -> None:
    """Gives the operators their kernels."""
    torch.library.register_fake("flashmask::snapshot", snapshot_fake, lib=LIBRARY)
    LIBRARY.impl("snapshot", _snapshot, "CompositeExplicitAutograd")
    backward = backward_fake, backward_cpu, backward_cuda, backward_autograd
    tangents = forward_tangents_fake, forward_tangents_cpu, forward_tangents_cuda, forward_tangents_autograd
    with_max_scores = (
        *(forward_with_max_scores_fake, forward_with_max_scores_cpu),
        *(forward_with_max_scores_cuda, forward_with_max_scores_autograd),
    )
    for name, of_arguments, (fake, cpu, cuda, autograd) in (
        ("forward", _of_forward, (forward_fake, forward_cpu, forward_cuda, forward_autograd)),
        ("forward_with_max_scores", _of_forward, with_max_scores),
        ("forward_tangents", _of_tangents, tangents),
        ("backward", _of_backward, backward),
        ("backward_with_sinks", _of_backward_with_sinks, backward),
        ("backward_with_bias", _of_backward_with_bias, backward),
    ):
        torch.library.register_fake(f"flashmask::{name}", of_arguments(fake), lib=LIBRARY)
        for key, kernel in (("CPU", cpu), ("CUDA", cuda), ("Autograd", autograd)):
            LIBRARY.impl(name, of_arguments(kernel), key)
        LIBRARY.impl(name, _refuse_device, "CompositeExplicitAutograd")
        LIBRARY.impl(name, _refuse_vmap, "FuncTorchBatched")
    for name, operator in (
        ("forward", forward_operator),
        ("forward_with_max_scores", forward_with_max_scores_operator),
    ):
        count_flops(name, _of_forward(forward_flops))
        for device in ("cpu", "cuda"):
            LIBRARY.impl(name, _autocast(device, operator), f"Autocast{device.upper()}")
    count_flops("forward_tangents", _of_tangents(forward_tangents_flops))
    count_flops("backward", _of_backward(backward_flops))
    for name in ("backward_with_sinks", "backward_with_bias"):
        count_flops(name, _of_backward_with_sinks(backward_flops))


_register()
