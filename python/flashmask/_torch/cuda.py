# SPDX-License-Identifier: Apache-2.0
"""The operators flashmask::forward and flashmask::backward on a GPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from flashmask._abi import structs as s
from flashmask._backends import BY_NAME, OURS
from flashmask._plans.call import Call
from flashmask._plans.live_plan import Drawn, SinkGradient, Sinks, View
from flashmask._torch.autograd_threads import await_at_exit
from flashmask._torch.dropout import place_in, seed_in, seed_offset_in
from flashmask._torch.plans.cudnn_plan import CudnnPlan
from flashmask._torch.plans.device_plans import plan_of_call
from flashmask._torch.plans.operands import (
    check_devices,
    check_saved,
    check_sinks,
    check_tangents,
    key_gradient_dtype,
    ready_bias,
    ready_sinks,
)
from flashmask._torch.schemas import Gradients, Outputs, OutputsWithMaxScores

# Kernels read 16 bytes at a time: eight elements of their dtypes.
_ELEMENTS = 8
_BYTES = 16
# What the names of the kernels that compute tangents begin with: sm80's, and those of smaller GPUs.
_OF_TANGENTS = "sm8"


def forward_cuda(q: Tensor, k: Tensor, v: Tensor, call: Call) -> Outputs:
    """Runs flashmask::forward; returns before the device is done."""
    o, lse = _forward(q, k, v, call, False)
    return o, lse


def forward_with_max_scores_cuda(q: Tensor, k: Tensor, v: Tensor, call: Call) -> OutputsWithMaxScores:
    """Runs flashmask::forward_with_max_scores by this library's kernels; returns before the device is done."""
    if call.cudnn == BY_NAME:
        raise NotImplementedError(
            'backend="cudnn" was asked for beside the largest score of each row, which cudnn.flex_attention does not '
            'return; leave out return_max_scores, or pass backend="flashmask"'
        )
    o, lse, max_scores = _forward(q, k, v, call._replace(cudnn=OURS), True)
    return o, lse, max_scores


def _forward(q: Tensor, k: Tensor, v: Tensor, call: Call, with_max_scores: bool) -> tuple[Tensor, ...]:
    plan, stream = plan_of_call(q, k, v, call, backward_later=not _learns(q, k, v, call.sinks, call.bias))
    if isinstance(plan, CudnnPlan):
        return plan.forward(*(_ready(each, each.shape[3]) for each in (q, k, v)))
    _kept, sinks = _sinks(call.sinks, q)
    _numbers, bias, _ = ready_bias(call, q, k)
    _seed_offset, drawn = _drawn(call, q.device)
    batch, rows, heads, _ = q.shape
    o = torch.empty(batch, rows, heads, plan.value_dim, dtype=q.dtype, device=q.device)
    lse = torch.empty(batch, heads, rows, dtype=torch.float32, device=q.device)
    max_scores = torch.empty_like(lse) if with_max_scores else None
    workspace = plan.workspace(s.FORWARD)
    q, k, v_ready = _ready(q, plan.head_dim), _ready(k, plan.head_dim), _ready(v, plan.value_dim)
    tensors = _view(q), _view(k), _view(v_ready), o.data_ptr(), lse.data_ptr()
    at_max_scores = 0 if max_scores is None else max_scores.data_ptr()
    plan.forward(*tensors, workspace, stream, drawn, sinks, bias, at_max_scores)
    outputs = _columns(o, v.shape[3]), lse
    return outputs if max_scores is None else (*outputs, max_scores)


def _learns(*tensors: Tensor | None) -> bool:
    """Whether a gradient may be asked for; in graphs, which hand over tensors without that, it is not known."""
    return any(each is not None and each.requires_grad for each in tensors)


def backward_cuda(
    grad_o: Tensor,
    grad_lse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    call: Call,
    float32_key_gradients: bool = False,
    bias_gradient: bool = False,
) -> Gradients:
    """Runs flashmask::backward; returns before the device is done."""
    await_at_exit(q.device)
    key_dtype = key_gradient_dtype(q.dtype, float32_key_gradients)
    plan, stream = plan_of_call(q, k, v, call)
    if isinstance(plan, CudnnPlan):
        if plan.serves_backward(grad_lse, float32_key_gradients):
            check_saved(grad_o, grad_lse, o, lse, q.dtype, (*q.shape[:3], v.shape[3]))
            q, k, v, o, grad_o = (_ready(each, each.shape[3]) for each in (q, k, v, o, grad_o))
            return plan.backward(grad_o, grad_lse, (q, k, v, o, lse), call.deterministic)
        return backward_cuda(*(grad_o, grad_lse, q, k, v, o, lse), call._replace(cudnn=OURS), float32_key_gradients)
    check_saved(grad_o, grad_lse, o, lse, q.dtype, (*q.shape[:3], v.shape[3]))
    check_devices(q.device, grad_o=grad_o, grad_lse=grad_lse, o=o, lse=lse)
    workspace = plan.workspace(s.BACKWARD)
    sinks, at_sinks = _sinks(call.sinks, q)
    _numbers, bias, grad_bias = ready_bias(call, q, k, bias_gradient)
    _seed_offset, drawn = _drawn(call, q.device)
    head_dim, value_dim = q.shape[3], v.shape[3]
    q, k, v = _ready(q, plan.head_dim), _ready(k, plan.head_dim), _ready(v, plan.value_dim)
    o, grad_o = _ready(o, plan.value_dim), _ready(grad_o, plan.value_dim)
    lse = lse.contiguous()
    grad_lse = None if grad_lse is None else grad_lse.contiguous()
    grad_q, grad_k, grad_v = (
        torch.empty(each.shape, dtype=dtype, device=each.device)
        for each, dtype in ((q, q.dtype), (k, key_dtype), (v, key_dtype))
    )
    # No kernel runs for a batch of 0.
    grad_sinks = None if sinks is None else (torch.empty_like if q.shape[0] else torch.zeros_like)(sinks)
    of_sinks: SinkGradient | None = None
    if at_sinks is not None and grad_sinks is not None and q.shape[0]:
        of_sinks = at_sinks, grad_sinks.data_ptr()
    plan.backward(
        (_view(q), _view(k), _view(v), _view(o), lse.data_ptr()),
        (_view(grad_o), 0 if grad_lse is None else grad_lse.data_ptr()),
        (grad_q.data_ptr(), grad_k.data_ptr(), grad_v.data_ptr()),
        workspace,
        stream,
        drawn,
        of_sinks,
        float32_key_gradients,
        bias,
    )
    gradients: Gradients = _columns(grad_q, head_dim), _columns(grad_k, head_dim), _columns(grad_v, value_dim)
    if grad_sinks is not None:
        gradients = *gradients, grad_sinks
    return gradients if grad_bias is None else (*gradients, grad_bias)


def forward_tangents_cuda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    tangent_q: Tensor | None,
    tangent_k: Tensor | None,
    tangent_v: Tensor | None,
    call: Call,
) -> Outputs:
    """Runs flashmask::forward_tangents by the kernels of mma.sync; returns before the device is done."""
    check_saved(o, None, o, lse, q.dtype, (*q.shape[:3], v.shape[3]))
    check_devices(q.device, o=o, lse=lse)
    check_tangents(q=(tangent_q, q), k=(tangent_k, k), v=(tangent_v, v))
    plan, stream = plan_of_call(q, k, v, call._replace(cudnn=OURS), _OF_TANGENTS)
    assert not isinstance(plan, CudnnPlan)
    _kept, sinks = _sinks(call.sinks, q)
    _numbers, bias, _ = ready_bias(call, q, k)
    _seed_offset, drawn = _drawn(call, q.device)
    value_dim = v.shape[3]
    workspace = plan.tangents_workspace()
    tangent_o = torch.empty(*q.shape[:3], plan.value_dim, dtype=q.dtype, device=q.device)
    tangent_lse = torch.empty_like(lse, memory_format=torch.contiguous_format)
    dims = plan.head_dim, plan.head_dim, plan.value_dim
    tangents = [
        None if each is None else _ready(each, dim)
        for each, dim in zip((tangent_q, tangent_k, tangent_v), dims, strict=True)
    ]
    of_q, of_k, of_v = (None if each is None else _view(each) for each in tangents)
    q, k, v, o = (_ready(each, dim) for each, dim in zip((q, k, v, o), (*dims, plan.value_dim), strict=True))
    lse = lse.contiguous()
    plan.forward_tangents(
        (_view(q), _view(k), _view(v), _view(o), lse.data_ptr()),
        (of_q, of_k, of_v),
        (tangent_o.data_ptr(), tangent_lse.data_ptr()),
        workspace,
        stream,
        drawn,
        sinks,
        bias,
    )
    return _columns(tangent_o, value_dim), tangent_lse


def _sinks(sinks: Tensor | None, q: Tensor) -> tuple[Tensor | None, Sinks | None]:
    if sinks is None:
        return None, None
    check_sinks(sinks, q)
    return ready_sinks(sinks)


def _drawn(call: Call, device: torch.device) -> tuple[Tensor | None, Drawn]:
    """Returns the seed; kernels read one on the device as they run: nothing waits, and graphs use new seeds."""
    seed_offset = seed_offset_in(call)
    if seed_offset is None:
        return None, Drawn()
    if seed_offset.device.type == "cpu":
        return None, Drawn(*seed_in(seed_offset), 0, *place_in(call, device))
    check_devices(device, seed_offset=seed_offset)
    seed_offset = seed_offset.contiguous()
    return seed_offset, Drawn(0, 0, seed_offset.data_ptr(), *place_in(call, device))


def _ready(tensor: Tensor, dim: int) -> Tensor:
    """Returns the tensor, or a copy without gaps where kernels cannot read it; zeros fill it up to `dim` columns."""
    given = tensor.shape[3]
    if given != dim:
        wider = tensor.new_zeros((*tensor.shape[:3], dim))
        wider[..., :given] = tensor
        return wider
    batch, row, head, last = tensor.stride()
    whole = (batch | row | head) % _ELEMENTS == 0 and tensor.data_ptr() % _BYTES == 0
    if whole and last == 1 and batch and row and head:
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)


def _columns(tensor: Tensor, dim: int) -> Tensor:
    return tensor if tensor.shape[3] == dim else tensor[..., :dim].contiguous()


def _view(tensor: Tensor) -> View:
    return tensor.data_ptr(), tensor.stride()


def _refuse_rocm(*arguments: object) -> Any:
    raise NotImplementedError(
        f"flashmask has kernels for NVIDIA's GPUs, and this PyTorch is for AMD's (ROCm {torch.version.hip}); move the "
        "tensors to the CPU"
    )


if torch.version.hip:  # ROCm's devices are called cuda too
    forward_cuda = forward_with_max_scores_cuda = backward_cuda = _refuse_rocm  # type: ignore[assignment]
    forward_tangents_cuda = _refuse_rocm  # type: ignore[assignment]
