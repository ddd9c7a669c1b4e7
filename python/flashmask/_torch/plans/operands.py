# SPDX-License-Identifier: Apache-2.0
"""The operators' requirements on their tensors, on any device."""

from __future__ import annotations

import torch
from torch import Tensor

from flashmask._abi.problem import DTYPES
from flashmask._arguments import sink_dtypes
from flashmask._plans.call import Call
from flashmask._plans.live_plan import Alibi, AnyBias, Bias, Read, Sinks
from flashmask.scores import OPERANDS, check_shape

_CODES = {getattr(torch, name): code for code, name in enumerate(DTYPES)}


def code_of(q: Tensor, k: Tensor, v: Tensor) -> int:
    """Returns the position in DTYPES of the dtype that all three have."""
    dtype = q.dtype
    code = _CODES.get(dtype, -1)
    if code < 0:
        raise TypeError(f"q has dtype {dtype}; expected torch.float32, bfloat16, float16 or float64")
    if k.dtype is not dtype or v.dtype is not dtype:
        raise TypeError(f"q, k and v have dtypes {dtype}, {k.dtype} and {v.dtype}; expected one dtype")
    return code


def check_sinks(sinks: Tensor, q: Tensor) -> None:
    """Refuses sinks unless there is one for each head of q, or for each of its rows, in float32 or q's dtype."""
    batch, rows, heads, _ = q.shape
    if sinks.shape not in ((heads,), (batch, heads, rows)):
        raise ValueError(
            f"sinks has shape {list(sinks.shape)}; expected [{heads}], one for each head of q, or "
            f"[{batch}, {heads}, {rows}], one for each of their rows"
        )
    if sinks.dtype is not torch.float32 and sinks.dtype is not q.dtype:
        expected = sink_dtypes("torch.float32", str(q.dtype))
        raise TypeError(f"sinks has dtype {sinks.dtype}; expected {expected}, that of q")
    if sinks.device != q.device:
        raise ValueError(f"sinks is on {sinks.device}; expected {q.device}, the device of q")


def ready_sinks(sinks: Tensor) -> tuple[Tensor, Sinks]:
    """Returns the sinks, or a contiguous copy, and their description for the C ABI."""
    sinks = sinks.contiguous()
    return sinks, (sinks.data_ptr(), _CODES[sinks.dtype], sinks.ndim)


def ready_bias(
    call: Call, q: Tensor, k: Tensor, with_gradient: bool = False
) -> tuple[list[Tensor], AnyBias | None, Tensor | None]:
    """Returns the tensors that keep what a call adds to its scores, their description, and memory for the gradient."""
    if call.reads:
        return _ready_reads(call, q, k, with_gradient)
    return _ready_added(call, q, k, with_gradient)


def _ready_added(
    call: Call, q: Tensor, k: Tensor, with_gradient: bool
) -> tuple[list[Tensor], Alibi | Bias | None, Tensor | None]:
    """Returns what ready_bias() does, without operands that a function reads by their numbers."""
    if call.bias_kind in ("", "alibi") and call.bias is None:
        return *_ready_alibi(call, q, k), None
    return _ready_tensor(call, q, k, with_gradient)


def _ready_tensor(call: Call, q: Tensor, k: Tensor, with_gradient: bool) -> tuple[list[Tensor], Bias, Tensor | None]:
    name, bias = call.bias_kind, call.bias
    if bias is None or name not in ("bias", "distance_bias"):
        raise ValueError(
            "bias and a change that adds bias or distance belong together; give a tensor and such a change, or neither"
        )
    check_bias(name, bias, q, k)
    if q.dtype is torch.float64:
        bias = bias.double().contiguous()
    elif bias.shape[3] > 1 and bias.stride(3) != 1:
        bias = bias.contiguous()
    gradient, nothing_runs = None, q.is_cuda and not q.shape[0]  # no kernel runs for a batch of 0
    if with_gradient:
        make = torch.zeros if nothing_runs else torch.empty
        gradient = make(bias.shape, dtype=bias.dtype, device=bias.device)
    described = Bias(
        bias.data_ptr(),
        _CODES[bias.dtype],
        bias.shape,
        bias.stride(),
        call.distance_origin,
        0 if gradient is None or nothing_runs else gradient.data_ptr(),
    )
    return [bias], described, gradient


def _ready_reads(
    call: Call, q: Tensor, k: Tensor, with_gradient: bool
) -> tuple[list[Tensor], AnyBias | None, Tensor | None]:
    """Returns what ready_bias() does for a function that reads operands, of any strides."""
    operands = []
    for i, each in enumerate(call.reads):
        if each.dtype not in _CODES or (each.dtype is torch.float64 and q.dtype is not torch.float64):
            raise TypeError(f"operand {i} has dtype {each.dtype}; expected torch.float32, bfloat16 or float16")
        check_devices(q.device, **{f"operand {i}": each})
        operands.append(each.double().contiguous() if q.dtype is torch.float64 else each)
    kept, bias, gradient = (_ready_tensor if with_gradient else _ready_added)(call, q, k, with_gradient)
    assert not isinstance(bias, Alibi)
    described = [Bias(each.data_ptr(), _CODES[each.dtype], each.shape, each.stride()) for each in operands]
    return [*kept, *operands], Read(bias, described), gradient


def check_bias(name: str, bias: Tensor, q: Tensor, k: Tensor) -> None:
    """Refuses a `bias`, or a table with the name `distance_bias`, that does not fit q and k."""
    check_shape(name, bias.shape, _sizes(q, k))
    if bias.dtype not in _CODES or (bias.dtype is torch.float64 and q.dtype is not torch.float64):
        raise TypeError(f"{name} has dtype {bias.dtype}; expected torch.float32, bfloat16 or float16")
    check_devices(q.device, **{name: bias})


def _ready_alibi(call: Call, q: Tensor, k: Tensor) -> tuple[list[Tensor], Alibi | None]:
    """Returns the slopes and positions of a call as its plan takes them, and their addresses; none without ALiBi.

    Numbers are float32, or float64 where q is, which the reference computes.
    """
    check_alibi(call, q, k)
    slopes = call.alibi_slopes
    if slopes is None:
        return [], None
    kept = [slopes.to(lse_dtype(q.dtype)).contiguous()]
    if call.query_positions is None or call.key_positions is None:
        return kept, Alibi(kept[0].data_ptr(), slopes.ndim)
    kept += [each.to(kept[0].dtype).contiguous() for each in (call.query_positions, call.key_positions)]
    _, of_rows, of_columns = kept
    addresses = of_rows.data_ptr(), len(of_rows), of_columns.data_ptr(), len(of_columns)
    return kept, Alibi(kept[0].data_ptr(), slopes.ndim, *addresses)


def check_alibi(call: Call, q: Tensor, k: Tensor) -> None:
    """Refuses slopes that are not one for each head of q, and positions that are not one for each token."""
    slopes = call.alibi_slopes
    if call.bias_kind != "alibi" or slopes is None:
        if call.bias_kind == "alibi" or slopes is not None:
            raise ValueError(
                "alibi_slopes and a change that adds alibi belong together; give slopes and such a change, or neither"
            )
        return
    if slopes.dtype is not torch.float32:
        raise TypeError(f"alibi_slopes has dtype {slopes.dtype}; expected torch.float32")
    if (call.query_positions is None) != (call.key_positions is None):
        raise ValueError("one of query_positions and key_positions is given; give both or none")
    for name, each in zip(OPERANDS["alibi"], (slopes, call.query_positions, call.key_positions), strict=True):
        if each is not None:
            check_shape(name, each.shape, _sizes(q, k))
            check_devices(q.device, **{name: each})


def _sizes(q: Tensor, k: Tensor) -> tuple[int, int, int, int]:
    """Returns batch, query heads, query length and key length."""
    return q.shape[0], q.shape[2], q.shape[1], k.shape[1]


def lse_dtype(dtype: torch.dtype) -> torch.dtype:
    """Returns the dtype of lse for tensors of dtype `dtype`."""
    return torch.float64 if dtype is torch.float64 else torch.float32


def key_gradient_dtype(dtype: torch.dtype, in_float32: bool) -> torch.dtype:
    """Returns the dtype of the gradients of k and v for tensors of dtype `dtype`, with float32 asked for or not."""
    if in_float32 and dtype is torch.float64:
        raise TypeError(
            "float32_key_gradients is True, and q has dtype torch.float64, of which gradients have more digits than "
            "that; leave it out"
        )
    return torch.float32 if in_float32 else dtype


def check_saved(
    grad_o: Tensor, grad_lse: Tensor | None, o: Tensor, lse: Tensor, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    """Refuses tensors that cannot come from a forward whose o has this dtype and shape."""
    batch, rows, heads, _ = shape
    fits = o.shape == grad_o.shape == shape and lse.shape == (batch, heads, rows)
    if fits and grad_lse is None and o.dtype is grad_o.dtype is dtype and lse.dtype is lse_dtype(dtype):
        return
    for name, tensor, expected, kind in (
        ("o", o, shape, dtype),
        ("grad_o", grad_o, shape, dtype),
        ("lse", lse, (batch, heads, rows), lse_dtype(dtype)),
        ("grad_lse", grad_lse, (batch, heads, rows), lse_dtype(dtype)),
    ):
        if tensor is not None and (tensor.shape != expected or tensor.dtype is not kind):
            raise ValueError(f"{name} is {tensor.dtype} {list(tensor.shape)}; expected {kind} {list(expected)}")


def check_tangents(**pairs: tuple[Tensor | None, Tensor]) -> None:
    """Refuses tangents that are not tensors of the dtype, shape and device of what they are tangents of."""
    for name, (tangent, of) in pairs.items():
        if tangent is None:
            continue
        if tangent.shape != of.shape or tangent.dtype is not of.dtype:
            raise ValueError(
                f"tangent_{name} is {tangent.dtype} {list(tangent.shape)}; expected {of.dtype} {list(of.shape)}"
            )
        check_devices(of.device, **{f"tangent_{name}": tangent})


def check_devices(device: torch.device, **tensors: Tensor | None) -> None:
    """Refuses tensors on another device than q's."""
    for name, tensor in tensors.items():
        if tensor is not None and tensor.device != device:
            raise ValueError(f"{name} is on {tensor.device}; expected {device}, the device of q")
