"""The operators as PyTorch's dispatcher has them, and forward(), through which the package's functions call them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from flashmask._info import kernels
from flashmask._plans.device_plan import rows_of_nothing
from flashmask._plans.device_plans import remember_plans_of
from flashmask._torch.autograd import BelowAutograd, backward_autograd, forward_autograd, is_differentiated
from flashmask._torch.cpu import backward_cpu, forward_cpu
from flashmask._torch.cuda import backward_cuda, forward_cuda
from flashmask._torch.schemas import LIBRARY, Outputs, forward_operator, snapshot_operator
from flashmask._torch.shapes import backward_fake, forward_fake, snapshot_fake


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    block_mask: Tensor | None,
    causal: bool,
    scale: float,
    dropout: float,
    seed_offset: Tensor | None,
    deterministic: bool = False,
) -> Outputs:
    """flashmask::forward, past autograd where that has nothing to do: a quarter of the call's overhead."""
    deterministic = deterministic or torch.are_deterministic_algorithms_enabled()
    if q.is_cuda:
        if block_mask is None and mask is None and torch.compiler.is_compiling():
            mask = rows_of_nothing(causal, q.shape[1], k.shape[1], q.device)
        mask, block_mask = _shared_by_layers(mask), _shared_by_layers(block_mask)
    if torch.compiler.is_compiling() or is_differentiated(q, k, v):
        return forward_operator(q, k, v, mask, block_mask, causal, scale, dropout, seed_offset, deterministic)
    with BelowAutograd():
        return forward_operator(q, k, v, mask, block_mask, causal, scale, dropout, seed_offset, deterministic)


def _shared_by_layers(mask: Tensor | None) -> Tensor | None:
    """A mask that lies on a GPU, so that all who get it there share a plan."""
    if mask is None or mask.dtype is torch.uint8:
        return mask
    if torch.compiler.is_compiling():
        return snapshot_operator(mask)
    remember_plans_of(mask)
    return mask


def _snapshot(mask: Tensor) -> Tensor:
    """A copy that nobody writes to, so that its plans can be kept. Equal calls in a graph become one."""
    copied = mask.clone(memory_format=torch.contiguous_format)
    remember_plans_of(copied)
    return copied


def _autocast(device_type: str) -> Any:
    excluded = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, f"Autocast{device_type.upper()}"))

    def cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
        eligible = tensor.is_floating_point() and tensor.dtype is not torch.float64
        return tensor.to(dtype) if eligible else tensor

    def forward_autocast(q: Tensor, k: Tensor, v: Tensor, *arguments: Any) -> Any:
        """q, k and v in the autocast dtype, as scaled_dot_product_attention does; float64 stays."""
        dtype = torch.get_autocast_dtype(device_type)
        with torch._C._ExcludeDispatchKeyGuard(excluded):
            return forward_operator(cast(q, dtype), cast(k, dtype), cast(v, dtype), *arguments)

    return forward_autocast


def _refuse_vmap(*arguments: Any) -> Any:
    raise NotImplementedError(
        "flashmask does not support torch.func.vmap; pass the mapped dimension as the batch dimension of q, k and v"
    )


def _refuse_device(*arguments: Any) -> Any:
    device = next((a.device for a in arguments if isinstance(a, Tensor) and a.device.type != "cpu"), "no device")
    devices = sorted({kernel["device"] for kernel in kernels()})
    raise ValueError(f"a tensor is on {device}; this build of flashmask computes on the devices: {', '.join(devices)}")


def _register() -> None:
    torch.library.register_fake("flashmask::forward", forward_fake, lib=LIBRARY)
    torch.library.register_fake("flashmask::backward", backward_fake, lib=LIBRARY)
    torch.library.register_fake("flashmask::snapshot", snapshot_fake, lib=LIBRARY)
    LIBRARY.impl("snapshot", _snapshot, "CompositeExplicitAutograd")
    for name, cpu, cuda, autograd in (
        ("forward", forward_cpu, forward_cuda, forward_autograd),
        ("backward", backward_cpu, backward_cuda, backward_autograd),
    ):
        LIBRARY.impl(name, cpu, "CPU")
        LIBRARY.impl(name, cuda, "CUDA")
        LIBRARY.impl(name, autograd, "Autograd")
        LIBRARY.impl(name, _refuse_device, "CompositeExplicitAutograd")
        LIBRARY.impl(name, _refuse_vmap, "FuncTorchBatched")
    LIBRARY.impl("forward", _autocast("cpu"), "AutocastCPU")
    LIBRARY.impl("forward", _autocast("cuda"), "AutocastCUDA")


_register()
