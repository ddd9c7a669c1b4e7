# SPDX-License-Identifier: Apache-2.0
"""merge() for torch tensors: the operators flashmask::merge and flashmask::merge_backward, and their gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from flashmask._abi import merge as abi
from flashmask._abi import structs as s
from flashmask._abi.merge import ABSENT, Placed, layout
from flashmask._merge_in_double import merge_backward_in_double, merge_in_double
from flashmask._torch.autograd import (
    BelowAutograd,
    differentiated_once,
    is_differentiated,
    refuse_forward_mode,
    refuse_transforms,
)
from flashmask._torch.cpu import follow_threads
from flashmask._torch.direct import is_plain
from flashmask._torch.plans.streams import current_stream
from flashmask._torch.schemas import LIBRARY, Outputs

_Parts: TypeAlias = Sequence[Tensor]
_Gradients: TypeAlias = tuple[list[Tensor], list[Tensor]]

LIBRARY.define("merge(Tensor[] o, Tensor[] lse) -> (Tensor o, Tensor lse)")
LIBRARY.define(
    "merge_backward(Tensor[] o, Tensor[] lse, Tensor merged_o, Tensor merged_lse, Tensor grad_o, Tensor? grad_lse) "
    "-> (Tensor[] grad_o, Tensor[] grad_lse)"
)
merge_operator: Callable[[_Parts, _Parts], Outputs] = torch.ops.flashmask.merge.default
merge_backward_operator: Callable[..., _Gradients] = torch.ops.flashmask.merge_backward.default
_CODES = {torch.float32: s.F32, torch.bfloat16: s.BF16, torch.float16: s.F16}


def merge_stacked(o: Tensor, lse: Tensor, parts: int) -> Outputs:
    """Merges parts that lie in one tensor: o (batch · parts, rows, heads, dim) and lse (batch · parts, heads, rows).

    Both have no gaps. In a compiled graph, and where gradients are needed, this calls the operator.
    """
    batch, (_, rows, heads, dim) = o.shape[0] // parts, o.shape
    plain = not torch.compiler.is_compiling() and not is_differentiated(o, lse) and is_plain(o, lse)
    if not plain or o.dtype not in _CODES:
        o, lse = o.view(batch, parts, rows, heads, dim), lse.view(batch, parts, heads, rows)
        return merge_operator(o.unbind(1), lse.unbind(1))
    merged = o.new_empty(batch, rows, heads, dim), lse.new_empty(batch, heads, rows)
    size, size_of_lse = rows * heads * dim, rows * heads
    device = _device_of(o)
    layout_of_o = layout(_CODES[o.dtype], device, (batch, rows, heads, dim), (parts * size, heads * dim, dim, 1))
    layout_of_lse = layout(s.F32, device, (batch, heads, rows), (parts * size_of_lse, rows, 1))
    given: list[Placed] = []
    at, at_lse, step = o.data_ptr(), lse.data_ptr(), size * o.element_size()
    for part in range(parts):
        given.append((at + part * step, layout_of_o))
        given.append((at_lse + part * size_of_lse * 4, layout_of_lse))
    _run_merge(given, merged, o)
    return merged


def _run_merge(parts: Sequence[Placed], merged: Outputs, like: Tensor) -> None:
    if not like.is_cuda:
        follow_threads()
    abi.merge(parts, _placed(merged[0]), _placed(merged[1]), current_stream(like.device.index) if like.is_cuda else 0)


def _placed(tensor: Tensor) -> Placed:
    return tensor.data_ptr(), layout(_CODES[tensor.dtype], _device_of(tensor), tensor.shape, tensor.stride())


def _device_of(tensor: Tensor) -> tuple[int, int]:
    return (s.CUDA, tensor.device.index) if tensor.is_cuda else (s.CPU, 0)


def _ready(tensors: _Parts) -> list[Tensor]:
    """Returns the tensors, or copies with strides that the library accepts."""
    return [each if each.stride(-1) == 1 or each.shape[-1] == 1 else each.contiguous() for each in tensors]


def _pairs(o: _Parts, lse: _Parts) -> list[Placed]:
    return [_placed(each) for pair in zip(o, lse, strict=True) for each in pair]


def _forward(o: _Parts, lse: _Parts) -> Outputs:
    """Runs flashmask::merge; on a GPU it returns before the device is done."""
    o, lse = _ready(o), _ready(lse)
    if o[0].dtype is torch.float64:
        values, its = merge_in_double(_arrays(o), _arrays(lse))
        return torch.from_numpy(values), torch.from_numpy(its)
    merged = (
        torch.empty_like(o[0], memory_format=torch.contiguous_format),
        torch.empty(lse[0].shape, dtype=torch.float32, device=o[0].device),
    )
    _run_merge(_pairs(o, lse), merged, o[0])
    return merged


def _backward(
    o: _Parts, lse: _Parts, merged_o: Tensor, merged_lse: Tensor, grad_o: Tensor, grad_lse: Tensor | None
) -> _Gradients:
    """Runs flashmask::merge_backward; on a GPU it returns before the device is done."""
    o, lse = _ready(o), _ready(lse)
    merged_o, merged_lse, grad_o = _ready((merged_o, merged_lse, grad_o))
    grad_lse = None if grad_lse is None else grad_lse.contiguous()
    if o[0].dtype is torch.float64:
        merged = merged_o.numpy(), merged_lse.numpy()
        grad_of_lse = None if grad_lse is None else grad_lse.numpy()
        of_o, of_lse = merge_backward_in_double(_arrays(o), _arrays(lse), merged, grad_o.numpy(), grad_of_lse)
        return [torch.from_numpy(each) for each in of_o], [torch.from_numpy(each) for each in of_lse]
    gradients = _backward_fake(o, lse, merged_o, merged_lse, grad_o, grad_lse)
    on_gpu = o[0].is_cuda
    if not on_gpu:
        follow_threads()
    given = _placed(grad_o), ABSENT if grad_lse is None else _placed(grad_lse)
    abi.merge_backward(
        _pairs(o, lse),
        (_placed(merged_o), _placed(merged_lse), *given),
        _pairs(*gradients),
        current_stream(o[0].device.index) if on_gpu else 0,
    )
    return gradients


def _arrays(tensors: _Parts) -> list[Any]:
    if tensors[0].is_cuda:
        raise NotImplementedError(
            f"o1 is torch.float64 on {tensors[0].device}; merge() joins float32, bfloat16 and float16 there"
        )
    return [each.detach().numpy() for each in tensors]


def _fake(o: _Parts, lse: _Parts) -> Outputs:
    return o[0].new_empty(o[0].shape), lse[0].new_empty(lse[0].shape)


def _backward_fake(
    o: _Parts, lse: _Parts, merged_o: Tensor, merged_lse: Tensor, grad_o: Tensor, grad_lse: Tensor | None
) -> _Gradients:
    return [each.new_empty(each.shape) for each in o], [each.new_empty(each.shape) for each in lse]


class _Merge(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, count: int, *tensors: Tensor) -> Outputs:
        """Merges o and lse of `count` parts, given with all of o first."""
        with BelowAutograd():
            merged = merge_operator(tensors[:count], tensors[count:])
        ctx.save_for_backward(*tensors, *merged)
        ctx.count = count
        ctx.set_materialize_grads(False)
        return merged

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        refuse_forward_mode()

    @staticmethod
    def backward(ctx: Any, grad_o: Tensor | None, grad_lse: Tensor | None) -> Any:
        if grad_o is None and grad_lse is None:
            return (None,) * (2 * ctx.count + 1)
        saved, count = ctx.saved_tensors, ctx.count
        o, lse, merged = saved[:count], saved[count:-2], saved[-2:]
        if grad_o is None:
            grad_o = torch.zeros_like(merged[0])
        of_o, of_lse = merge_backward_operator(o, lse, *merged, grad_o, grad_lse)
        return None, *of_o, *of_lse


def _autograd(o: _Parts, lse: _Parts) -> Outputs:
    """Runs flashmask::merge where autograd may have to record it."""
    if is_differentiated(*o, *lse):
        refuse_transforms()
        merged: Outputs = _Merge.apply(len(o), *o, *lse)  # type: ignore[no-untyped-call]
        return merged
    with BelowAutograd():
        return merge_operator(o, lse)


def _backward_autograd(o: _Parts, lse: _Parts, *others: Tensor | None) -> _Gradients:
    """Runs flashmask::merge_backward, whose results have no gradient."""

    def run() -> tuple[Tensor, ...]:
        of_o, of_lse = merge_backward_operator(o, lse, *others)
        return *of_o, *of_lse

    why = "merge is differentiable once; write it with torch.logsumexp for more"
    gradients = differentiated_once(why, run, *o, *lse, *others)
    return list(gradients[: len(o)]), list(gradients[len(o) :])


def _register() -> None:
    """Gives the operators their kernels."""
    for name, kernel, fake in (("merge", _forward, _fake), ("merge_backward", _backward, _backward_fake)):
        torch.library.register_fake(f"flashmask::{name}", fake, lib=LIBRARY)
        for key in ("CPU", "CUDA"):
            LIBRARY.impl(name, kernel, key)
    LIBRARY.impl("merge", _autograd, "Autograd")
    LIBRARY.impl("merge_backward", _backward_autograd, "Autograd")


_register()
