"""The operators flashmask::forward and flashmask::backward, their fake kernels, autograd and autocast.

torch.ops.flashmask has them once this module is imported, which the first call with a torch tensor does too. They take
plain tensors and numbers, so that a program that calls them can be traced, saved and checkpointed:

- q (batch, query length, query heads, head dim), k (batch, key length, kv heads, head dim), v (batch, key length, kv
  heads, value dim): float32, bfloat16 or float16, or float64 for the reference; any strides.
- mask: None, all is visible or, with `causal`, what is causal; uint8 [n], Mask.tensor or Plan.tensor; or int32 [batch,
  heads, columns, vectors], startend_row_indices, which `causal` belongs to.
  On a GPU also booleans [batch, heads, rows, columns], True = visible.
- block_mask: None or int32 [batch, heads, ceil(rows / 128), ceil(columns / 128)], 1 = keep.
- scale: 0 stands for 1 / sqrt(head dim). dropout: a probability. seed_offset: int64 [2] where dropout is not 0.
- deterministic: gradients that are the same bits on every run; on the CPU they always are.
- o (batch, query length, query heads, value dim), contiguous; lse (batch, query heads, query length), float32, or
  float64 where q is.

flashmask::snapshot copies a mask that lies on a GPU. Calls with the copy share a plan; with another tensor, each makes
its own, unless the package's functions were called with it outside of torch.compile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.autograd import forward_ad

from flashmask._device_operators import backward_cuda, forward_cuda
from flashmask._device_plan import rows_of_nothing
from flashmask._device_plans import remember_plans_of
from flashmask._info import kernels
from flashmask._library import library
from flashmask._live_plan import AnyPlan, Seed, View, make_plan
from flashmask._mask_source import named_mask, source_of
from flashmask._operands import check_saved, code_of, lse_dtype
from flashmask._plan_cache import Key, plans
from flashmask._problem import DTYPES, make_problem

Outputs: TypeAlias = tuple[Tensor, Tensor]
Gradients: TypeAlias = tuple[Tensor, Tensor, Tensor]

_LIBRARY: Any = torch.library.Library("flashmask", "DEF")  # type: ignore[no-untyped-call]
_MASK = (
    "Tensor? mask, Tensor? block_mask, bool causal, float scale, float dropout, Tensor? seed_offset, "
    "bool deterministic=False"
)
_LIBRARY.define(f"forward(Tensor q, Tensor k, Tensor v, {_MASK}) -> (Tensor o, Tensor lse)")
_LIBRARY.define(
    f"backward(Tensor grad_o, Tensor? grad_lse, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, {_MASK}) "
    "-> (Tensor dq, Tensor dk, Tensor dv)"
)
_LIBRARY.define("snapshot(Tensor mask) -> Tensor")
forward_operator: Callable[..., Outputs] = torch.ops.flashmask.forward.default
backward_operator: Callable[..., Gradients] = torch.ops.flashmask.backward.default
snapshot_operator: Callable[[Tensor], Tensor] = torch.ops.flashmask.snapshot.default
_BelowAutograd = torch._C._AutoDispatchBelowAutograd


# ---- threads ----

_threads = 0


def _follow_threads() -> None:
    """Gives the library's pool as many threads as torch has."""
    global _threads  # noqa: PLW0603
    threads = torch.get_num_threads()
    if threads != _threads:
        library.flashmask_set_thread_count(threads)
        _threads = threads


# ---- the CPU ----


def _live_plan(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    block_mask: Tensor | None,
    causal: bool,
    scale: float,
    p: float,
) -> AnyPlan:
    code = code_of(q, k, v)
    key: Key = (source_of(mask, block_mask, causal), q.shape, k.shape, v.shape, code, scale, p)
    found = plans.find(key)
    if found is not None:
        return found
    problem = make_problem((q.shape, k.shape, v.shape), DTYPES[code], scale or None, p)
    name, made, options, size = named_mask(mask, block_mask, causal, problem)
    return plans.keep(key, make_plan(name, made, problem, options), size)


def _ready(tensor: Tensor, plan: AnyPlan) -> Tensor:
    """The tensor, or a copy with strides that kernels take."""
    return tensor.contiguous() if plan.contiguous or tensor.stride(-1) != 1 else tensor


def _view(tensor: Tensor) -> View:
    return tensor.data_ptr(), tensor.stride()


def _seed(dropout: float, seed_offset: Tensor | None) -> Seed:
    if dropout == 0:
        return 0, 0
    if seed_offset is None or seed_offset.dtype != torch.int64 or seed_offset.shape != (2,):
        given = None if seed_offset is None else f"{seed_offset.dtype} {list(seed_offset.shape)}"
        raise ValueError(f"seed_offset is {given}; expected int64 [2], since dropout is {dropout}")
    seed, offset = seed_offset.tolist()
    if not 0 <= offset < 2**32:
        raise ValueError(f"seed_offset holds the offset {offset}; expected one in [0, 2^32)")
    return seed & (2**64 - 1), offset


def _forward_cpu(
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
    plan = _live_plan(q, k, v, mask, block_mask, causal, scale, dropout)
    seed = _seed(dropout, seed_offset)
    batch, rows, heads, _ = q.shape
    o = torch.empty((batch, rows, heads, v.shape[3]), dtype=q.dtype)
    lse = torch.empty((batch, heads, rows), dtype=lse_dtype(q.dtype))
    q, k, v = _ready(q, plan), _ready(k, plan), _ready(v, plan)
    _follow_threads()
    plan.forward(_view(q), _view(k), _view(v), _view(o), lse.data_ptr(), seed)
    return o, lse


def _backward_cpu(
    grad_o: Tensor,
    grad_lse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    mask: Tensor | None,
    block_mask: Tensor | None,
    causal: bool,
    scale: float,
    dropout: float,
    seed_offset: Tensor | None,
    deterministic: bool = False,
) -> Gradients:
    plan = _live_plan(q, k, v, mask, block_mask, causal, scale, dropout)
    seed = _seed(dropout, seed_offset)
    check_saved(grad_o, grad_lse, o, lse, q.dtype, (*q.shape[:3], v.shape[3]))
    out = _empty_like(q), _empty_like(k), _empty_like(v)
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


def _empty_like(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)


def _refuse_device(*arguments: Any) -> Any:
    device = next((a.device for a in arguments if isinstance(a, Tensor) and a.device.type != "cpu"), "no device")
    devices = sorted({kernel["device"] for kernel in kernels()})
    raise ValueError(f"a tensor is on {device}; this build of flashmask computes on the devices: {', '.join(devices)}")


# ---- shapes without data ----


def _forward_fake(q: Tensor, k: Tensor, v: Tensor, *arguments: Any) -> Outputs:
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.ndim != 4:
            raise ValueError(f"{name} has shape {list(tensor.shape)}; expected (batch, sequence, heads, head dim)")
    batch, rows, heads, _ = q.shape
    return q.new_empty((batch, rows, heads, v.shape[3])), q.new_empty((batch, heads, rows), dtype=lse_dtype(q.dtype))


def _backward_fake(
    grad_o: Tensor, grad_lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, *arguments: Any
) -> Gradients:
    return _empty_like(q), _empty_like(k), _empty_like(v)


def _snapshot_fake(mask: Tensor) -> Tensor:
    return mask.new_empty(mask.shape)


# ---- autograd ----


class _Attention(torch.autograd.Function):
    # forward() with ctx, not setup_context(): apply() then binds no signature, which took 30 of 60 microseconds.
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Outputs:
        with _BelowAutograd():
            o, lse = forward_operator(*arguments)
        q, k, v, mask, block_mask, causal, scale, dropout, seed_offset, deterministic = arguments
        ctx.save_for_backward(q, k, v, o, lse, mask, block_mask, seed_offset)
        ctx.numbers = causal, scale, dropout
        ctx.deterministic = deterministic
        ctx.set_materialize_grads(False)
        return o, lse

    @staticmethod
    def backward(ctx: Any, grad_o: Tensor | None, grad_lse: Tensor | None) -> Any:
        if grad_o is None and grad_lse is None:
            return (None,) * 10
        q, k, v, o, lse, mask, block_mask, seed_offset = ctx.saved_tensors
        if grad_o is None:
            grad_o = torch.zeros_like(o)
        arguments = (grad_o, grad_lse, q, k, v, o, lse, mask, block_mask, *ctx.numbers, seed_offset, ctx.deterministic)
        if torch.is_grad_enabled():  # create_graph: the operator refuses a second derivative when it is asked for
            gradients = backward_operator(*arguments)
        else:
            with _BelowAutograd():
                gradients = backward_operator(*arguments)
        return (*gradients, *(None,) * 7)


class _OnceDifferentiable(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Gradients:
        with _BelowAutograd():
            return backward_operator(*arguments)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise NotImplementedError(
            "flashmask: a gradient of a gradient was asked for (create_graph, or torch.autograd.grad twice); attention "
            "is differentiable once"
        )


def _is_differentiated(*tensors: Tensor | None) -> bool:
    """Whether autograd has to hear of an operation on these."""
    # Forward-mode derivatives mark no tensor as requiring a gradient; the Function refuses them.
    return torch.is_grad_enabled() and (
        any(tensor is not None and tensor.requires_grad for tensor in tensors) or forward_ad._current_level >= 0
    )


def _forward_autograd(q: Tensor, k: Tensor, v: Tensor, *arguments: Any) -> Outputs:
    if _is_differentiated(q, k, v):
        if torch._C._are_functorch_transforms_active():
            _refuse_transforms()
        if len(arguments) == 6:  # dispatch leaves out a last argument that has its default
            arguments = (*arguments, False)
        outputs: Outputs = _Attention.apply(q, k, v, *arguments)  # type: ignore[no-untyped-call]
        return outputs
    with _BelowAutograd():
        return forward_operator(q, k, v, *arguments)


def _refuse_transforms() -> None:
    raise NotImplementedError("flashmask does not support torch.func.grad and its kin; use torch.autograd.grad")


def _backward_autograd(
    grad_o: Tensor, grad_lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, *rest: Any
) -> Gradients:
    if _is_differentiated(grad_o, grad_lse, q, k, v):
        gradients: Gradients = _OnceDifferentiable.apply(grad_o, grad_lse, q, k, v, *rest)  # type: ignore[no-untyped-call]
        return gradients
    with _BelowAutograd():
        return backward_operator(grad_o, grad_lse, q, k, v, *rest)


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
    if torch.compiler.is_compiling() or _is_differentiated(q, k, v):
        return forward_operator(q, k, v, mask, block_mask, causal, scale, dropout, seed_offset, deterministic)
    with _BelowAutograd():
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


# ---- autocast and vmap ----


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


def _register() -> None:
    torch.library.register_fake("flashmask::forward", _forward_fake, lib=_LIBRARY)
    torch.library.register_fake("flashmask::backward", _backward_fake, lib=_LIBRARY)
    torch.library.register_fake("flashmask::snapshot", _snapshot_fake, lib=_LIBRARY)
    _LIBRARY.impl("snapshot", _snapshot, "CompositeExplicitAutograd")
    for name, cpu, cuda, autograd in (
        ("forward", _forward_cpu, forward_cuda, _forward_autograd),
        ("backward", _backward_cpu, backward_cuda, _backward_autograd),
    ):
        _LIBRARY.impl(name, cpu, "CPU")
        _LIBRARY.impl(name, cuda, "CUDA")
        _LIBRARY.impl(name, autograd, "Autograd")
        _LIBRARY.impl(name, _refuse_device, "CompositeExplicitAutograd")
        _LIBRARY.impl(name, _refuse_vmap, "FuncTorchBatched")
    _LIBRARY.impl("forward", _autocast("cpu"), "AutocastCPU")
    _LIBRARY.impl("forward", _autocast("cuda"), "AutocastCUDA")


_register()
