# SPDX-License-Identifier: Apache-2.0
"""The operators flashmask::forward and flashmask::backward on the CPU."""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

import torch
from torch import Tensor

from flashmask._abi.library import library
from flashmask._abi.problem import DTYPES
from flashmask._backends import backend_of_environment
from flashmask._plans.cache import plans
from flashmask._plans.call import Call, key_on_cpu, numbers_of
from flashmask._plans.live_plan import AnyPlan, Drawn, Sinks, View, make_plan
from flashmask._torch.dropout import place_in, seed_in, seed_offset_in
from flashmask._torch.plans.mask_source import named_mask, source_of
from flashmask._torch.plans.operands import (
    check_saved,
    check_sinks,
    check_tangents,
    code_of,
    key_gradient_dtype,
    lse_dtype,
    ready_bias,
    ready_sinks,
)
from flashmask._torch.schemas import Gradients, Outputs, OutputsWithMaxScores

_CPU = torch.device("cpu")
_threads = 0


def follow_threads() -> None:
    """Gives the library's pool as many threads as torch has."""
    global _threads  # noqa: PLW0603
    threads = torch.get_num_threads()
    if threads != _threads:
        library.flashmask_set_thread_count(threads)
        _threads = threads


class _Last(NamedTuple):
    """The last call whose mask cannot change unnoticed, and its plan: the layers of a model repeat the call."""

    inputs: tuple[Any, ...]
    mask: weakref.ref[Tensor] | None
    version: int
    plan: AnyPlan

    def serves(self, inputs: tuple[Any, ...], mask: Tensor | None) -> bool:
        """Whether another call uses the same plan."""
        if self.inputs != inputs:
            return False
        if mask is None:
            return self.mask is None
        return self.mask is not None and self.mask() is mask and mask._version == self.version


def _live_plan(q: Tensor, k: Tensor, v: Tensor, call: Call) -> AnyPlan:
    mask = call.mask
    if call.block_mask is not None or (mask is not None and (mask.dtype is not torch.uint8 or mask.is_inference())):
        return _find_or_make(q, k, v, call)  # row indices are found by their contents
    inputs = q.shape, k.shape, v.shape, q.dtype, k.dtype, v.dtype, numbers_of(call)
    last: _Last | None = plans.last
    if last is not None and last.serves(inputs, mask):
        return last.plan
    plan = _find_or_make(q, k, v, call)
    reference, version = (None, 0) if mask is None else (weakref.ref(mask), mask._version)
    plans.last = _Last(inputs, reference, version, plan)
    return plan


def _find_or_make(q: Tensor, k: Tensor, v: Tensor, call: Call) -> AnyPlan:
    code = code_of(q, k, v)
    shapes = q.shape, k.shape, v.shape
    key = key_on_cpu(source_of(call), shapes, code, call)
    found = plans.find(key)
    if found is not None:
        return found
    backend_of_environment()  # decides nothing on a CPU, but a wrong name is wrong here too
    problem = call.problem(shapes, DTYPES[code])
    name, made, options, size = named_mask(call, problem)
    options = options._replace(invariant=options.invariant | call.invariant)
    return plans.keep(key, make_plan(name, made, problem, options), size)


def _view(tensor: Tensor, plan: AnyPlan) -> tuple[Tensor, View]:
    """Returns the tensor, or a copy with strides that kernels accept, and its address and strides."""
    strides = tensor.stride()
    if strides[3] != 1 or plan.contiguous:
        tensor = tensor.contiguous()
        strides = tensor.stride()
    return tensor, (tensor.data_ptr(), strides)


def _drawn(call: Call) -> Drawn | None:
    seed_offset = seed_offset_in(call)
    if seed_offset is None:
        return None
    return Drawn(*seed_in(seed_offset), 0, *place_in(call, _CPU))


def _sinks(sinks: Tensor | None, q: Tensor) -> tuple[Tensor | None, Sinks | None]:
    """Returns a call's sinks as its plan takes them: the reference computes in double precision only."""
    if sinks is None:
        return None, None
    check_sinks(sinks, q)
    return ready_sinks(sinks.double() if q.dtype is torch.float64 else sinks)


def forward_cpu(q: Tensor, k: Tensor, v: Tensor, call: Call) -> Outputs:
    """Computes o and lse."""
    o, lse = _forward(q, k, v, call, False)
    return o, lse


def forward_with_max_scores_cpu(q: Tensor, k: Tensor, v: Tensor, call: Call) -> OutputsWithMaxScores:
    """Computes o, lse and the largest score of each row."""
    o, lse, max_scores = _forward(q, k, v, call, True)
    return o, lse, max_scores


def _forward(q: Tensor, k: Tensor, v: Tensor, call: Call, with_max_scores: bool) -> tuple[Tensor, ...]:
    plan = _live_plan(q, k, v, call)
    drawn = _drawn(call)
    _kept, sinks = _sinks(call.sinks, q)
    _numbers, bias, _ = ready_bias(call, q, k)
    batch, rows, heads, _ = q.shape
    # Separate sizes are read twice as fast as a tuple of them.
    o = torch.empty(batch, rows, heads, v.shape[3], dtype=q.dtype)
    lse = torch.empty(batch, heads, rows, dtype=lse_dtype(q.dtype))
    q, at_q = _view(q, plan)
    k, at_k = _view(k, plan)
    v, at_v = _view(v, plan)
    follow_threads()
    max_scores = torch.empty_like(lse) if with_max_scores else None
    at_max_scores = 0 if max_scores is None else max_scores.data_ptr()
    plan.forward(at_q, at_k, at_v, o.data_ptr(), lse.data_ptr(), drawn, sinks, bias, at_max_scores)
    return (o, lse) if max_scores is None else (o, lse, max_scores)


def forward_tangents_cpu(
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
    """Computes the tangents of o and lse."""
    plan = _live_plan(q, k, v, call)
    drawn = _drawn(call)
    _kept, sinks = _sinks(call.sinks, q)
    _numbers, bias, _ = ready_bias(call, q, k)
    check_saved(o, None, o, lse, q.dtype, (*q.shape[:3], v.shape[3]))
    check_tangents(q=(tangent_q, q), k=(tangent_k, k), v=(tangent_v, v))
    tangent_o, tangent_lse = empty_like(o), torch.empty(*lse.shape, dtype=lse.dtype)
    kept = [None if each is None else _view(each, plan) for each in (tangent_q, tangent_k, tangent_v)]
    of_q, of_k, of_v = (None if each is None else each[1] for each in kept)
    q, at_q = _view(q, plan)
    k, at_k = _view(k, plan)
    v, at_v = _view(v, plan)
    o, at_o = _view(o, plan)
    lse = lse.contiguous()
    follow_threads()
    plan.forward_tangents(
        (at_q, at_k, at_v, at_o, lse.data_ptr()),
        (of_q, of_k, of_v),
        (tangent_o.data_ptr(), tangent_lse.data_ptr()),
        drawn,
        sinks,
        bias,
    )
    return tangent_o, tangent_lse


def backward_cpu(
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
    """Computes the gradients of q, k and v, of the sinks where the call has some, and of the bias where asked for."""
    key_dtype = key_gradient_dtype(q.dtype, float32_key_gradients)
    plan = _live_plan(q, k, v, call)
    drawn = _drawn(call)
    sinks, at_sinks = _sinks(call.sinks, q)
    grad_sinks = None if sinks is None else torch.empty_like(sinks)
    _numbers, bias, grad_bias = ready_bias(call, q, k, bias_gradient)
    check_saved(grad_o, grad_lse, o, lse, q.dtype, (*q.shape[:3], v.shape[3]))
    grad_q, grad_k, grad_v = empty_like(q), empty_like(k, key_dtype), empty_like(v, key_dtype)
    q, at_q = _view(q, plan)
    k, at_k = _view(k, plan)
    v, at_v = _view(v, plan)
    o, at_o = _view(o, plan)
    grad_o, at_grad_o = _view(grad_o, plan)
    lse = lse.contiguous()
    grad_lse = None if grad_lse is None else grad_lse.contiguous()
    follow_threads()
    plan.backward(
        (at_q, at_k, at_v, at_o, lse.data_ptr()),
        (at_grad_o, 0 if grad_lse is None else grad_lse.data_ptr()),
        (grad_q.data_ptr(), grad_k.data_ptr(), grad_v.data_ptr()),
        drawn,
        None if at_sinks is None or grad_sinks is None else (at_sinks, grad_sinks.data_ptr()),
        float32_key_gradients,
        bias,
    )
    gradients: Gradients = (grad_q, grad_k, grad_v)
    if grad_sinks is not None and call.sinks is not None:
        gradients = *gradients, grad_sinks.to(call.sinks.dtype)
    if grad_bias is not None and call.bias is not None:
        gradients = *gradients, grad_bias.to(call.bias.dtype)
    return gradients


def empty_like(tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Allocates a tensor of the same 4 sizes without gaps on the CPU. `dtype` None: the same dtype."""
    return torch.empty(*tensor.shape, dtype=dtype or tensor.dtype)
