"""The operators flashmask::forward and flashmask::backward on the CPU."""

from __future__ import annotations

import torch
from torch import Tensor

from flashmask._abi.library import library
from flashmask._abi.problem import DTYPES, make_problem
from flashmask._plans.cache import plans
from flashmask._plans.call import Call, key_on_cpu
from flashmask._plans.live_plan import AnyPlan, Seed, View, make_plan
from flashmask._plans.mask_source import named_mask, source_of
from flashmask._plans.operands import check_saved, code_of, lse_dtype
from flashmask._torch.schemas import Gradients, Outputs

_threads = 0


def _follow_threads() -> None:
    """Gives the library's pool as many threads as torch has."""
    global _threads  # noqa: PLW0603
    threads = torch.get_num_threads()
    if threads != _threads:
        library.flashmask_set_thread_count(threads)
        _threads = threads


def _live_plan(q: Tensor, k: Tensor, v: Tensor, call: Call) -> AnyPlan:
    code = code_of(q, k, v)
    shapes = q.shape, k.shape, v.shape
    key = key_on_cpu(source_of(call), shapes, code, call)
    found = plans.find(key)
    if found is not None:
        return found
    problem = make_problem(shapes, DTYPES[code], call.scale or None, call.dropout)
    name, made, options, size = named_mask(call, problem)
    return plans.keep(key, make_plan(name, made, problem, options), size)


def _ready(tensor: Tensor, plan: AnyPlan) -> Tensor:
    """The tensor, or a copy with strides that kernels take."""
    return tensor.contiguous() if plan.contiguous or tensor.stride(-1) != 1 else tensor


def _view(tensor: Tensor) -> View:
    return tensor.data_ptr(), tensor.stride()


def _seed(call: Call) -> Seed:
    dropout, seed_offset = call.dropout, call.seed_offset
    if dropout == 0:
        return 0, 0
    if seed_offset is None or seed_offset.dtype != torch.int64 or seed_offset.shape != (2,):
        given = None if seed_offset is None else f"{seed_offset.dtype} {list(seed_offset.shape)}"
        raise ValueError(f"seed_offset is {given}; expected int64 [2], since dropout is {dropout}")
    seed, offset = seed_offset.tolist()
    if not 0 <= offset < 2**32:
        raise ValueError(f"seed_offset holds the offset {offset}; expected one in [0, 2^32)")
    return seed & (2**64 - 1), offset


def forward_cpu(q: Tensor, k: Tensor, v: Tensor, call: Call) -> Outputs:
    """o and lse."""
    plan = _live_plan(q, k, v, call)
    seed = _seed(call)
    batch, rows, heads, _ = q.shape
    o = torch.empty((batch, rows, heads, v.shape[3]), dtype=q.dtype)
    lse = torch.empty((batch, heads, rows), dtype=lse_dtype(q.dtype))
    q, k, v = _ready(q, plan), _ready(k, plan), _ready(v, plan)
    _follow_threads()
    plan.forward(_view(q), _view(k), _view(v), _view(o), lse.data_ptr(), seed)
    return o, lse


def backward_cpu(
    grad_o: Tensor,
    grad_lse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    call: Call,
) -> Gradients:
    """The gradients of q, k and v."""
    plan = _live_plan(q, k, v, call)
    seed = _seed(call)
    check_saved(grad_o, grad_lse, o, lse, q.dtype, (*q.shape[:3], v.shape[3]))
    out = empty_like(q), empty_like(k), empty_like(v)
    q, k, v, o, grad_o = _ready(q, plan), _ready(k, plan), _ready(v, plan), _ready(o, plan), _ready(grad_o, plan)
    lse = lse.contiguous()
    grad_lse = None if grad_lse is None else grad_lse.contiguous()
    _follow_threads()
    plan.backward(
        (_view(q), _view(k), _view(v), _view(o), lse.data_ptr()),
        (_view(grad_o), 0 if grad_lse is None else grad_lse.data_ptr()),
        (_view(out[0]), _view(out[1]), _view(out[2])),
        seed,
    )
    return out


def empty_like(tensor: Tensor) -> Tensor:
    """A contiguous tensor of the same shape, whatever the strides."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
