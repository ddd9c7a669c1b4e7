# SPDX-License-Identifier: Apache-2.0
"""linear_attention() for torch tensors: flashmask::linear_forward and linear_backward, and their gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from flashmask._abi import structs as s
from flashmask._abi.merge import ABSENT, Placed, layout
from flashmask._abi.problem import F64
from flashmask._arguments import check_dense, described, is_autocast
from flashmask._graph_break import breaks_graph
from flashmask._linear_attention import check_gate, problem_of
from flashmask._plans.call import Call
from flashmask._plans.linear_plan import GpuWorkspace, LinearPlan, LinearProblem, linear_plans
from flashmask._plans.plan import dtype_name
from flashmask._torch.attention import mask_tensor
from flashmask._torch.autograd import (
    BelowAutograd,
    differentiated_once,
    is_differentiated,
    refuse_forward_mode,
    refuse_transforms,
)
from flashmask._torch.autograd_threads import await_at_exit
from flashmask._torch.cpu import follow_threads
from flashmask._torch.flops import count_flops, linear_backward_flops, linear_forward_flops
from flashmask._torch.operators import cast_by_autocast
from flashmask._torch.plans.mask_source import named_mask, source_of
from flashmask._torch.plans.streams import current_stream
from flashmask._torch.schemas import LIBRARY

_Outputs: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor]

_INPUTS = (
    "Tensor q, Tensor k, Tensor v, Tensor? log_forget, Tensor? log_input, Tensor? state, Tensor? normalizer, "
    "Tensor? log_scale"
)
_NUMBERS = "Tensor? mask, bool causal, float scale, bool normalize"
LIBRARY.define(
    f"linear_forward({_INPUTS}, {_NUMBERS}, SymInt nodes) -> (Tensor o, Tensor state, Tensor normalizer, "
    "Tensor log_scale)"
)
LIBRARY.define(
    f"linear_backward({_INPUTS}, {_NUMBERS}, Tensor o, Tensor grad_o, Tensor? grad_state, Tensor? grad_normalizer, "
    "bool gates) -> (Tensor q, Tensor k, Tensor v, Tensor log_forget, Tensor log_input, Tensor state, "
    "Tensor normalizer)"
)
linear_forward_operator: Callable[..., _Outputs] = torch.ops.flashmask.linear_forward.default
linear_backward_operator: Callable[..., tuple[Tensor, ...]] = torch.ops.flashmask.linear_backward.default
count_flops("linear_forward", linear_forward_flops)
count_flops("linear_backward", linear_backward_flops)
_CODES = {torch.float32: s.F32, torch.bfloat16: s.BF16, torch.float16: s.F16, torch.float64: F64}


# A graph reads the tables of its plans for as long as it is run.
_captured: set[LinearPlan] = set()


class _Inputs(NamedTuple):
    """What a call reads; gates are (batch, length, heads), float32."""

    q: Tensor
    k: Tensor
    v: Tensor
    log_forget: Tensor | None
    log_input: Tensor | None
    state: Tensor | None
    normalizer: Tensor | None
    log_scale: Tensor | None


class _Numbers(NamedTuple):
    """The mask and the numbers of a call."""

    mask: Tensor | None
    causal: bool
    scale: float
    normalize: bool


def linear_attention_of_tensors(
    arguments: Sequence[Any], mask: Any, scale: float, normalize: bool, output_final_state: bool
) -> _Outputs:
    """Returns o and the final states, which have no elements unless they are wanted."""
    names = (*_Inputs._fields[:5], *(f"initial_state's {name}" for name in _Inputs._fields[5:]))
    for name, each in zip(names, arguments, strict=True):
        _check_tensor(name, each, arguments[0])
    q, k, v, *gates = arguments[:5]
    if is_autocast(q.device.type):
        q, k, v = cast_by_autocast(q.device.type, q, k, v)
    problem = problem_of(q, k, v, scale, normalize, (dtype_name("q", q), dtype_name("k", k), dtype_name("v", v)))
    shape = problem.batch, problem.length, problem.heads
    of_gates = _state_dtype(q)
    ready = [
        None if gate is None else _gate(name, gate.to(of_gates), shape)
        for name, gate in zip(names[3:5], gates, strict=True)
    ]
    if isinstance(mask, Tensor):
        mask = mask.cpu()
    tensor, causal = (None, True) if mask is None else mask_tensor(mask, q)
    numbers = _Numbers(tensor, causal, scale, normalize)
    state, normalizer, log_scale = (None if each is None else each.to(of_gates) for each in arguments[5:])
    if state is not None and log_scale is None:
        log_scale = state.new_zeros(state.shape[:2])
    inputs = _Inputs(q, k, v, ready[0], ready[1], state, normalizer, log_scale)
    nodes = 0
    if output_final_state:
        nodes = problem.batch if mask is None and problem.length != 0 else _node_count(numbers, problem)
    return linear_forward_operator(*inputs, *numbers, nodes)


def _check_tensor(name: str, tensor: Any, q: Tensor) -> None:
    if tensor is None and name not in ("q", "k", "v"):
        return
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} is {described(tensor)}; expected a torch tensor, as q is")
    if tensor.device != q.device:
        raise ValueError(f"{name} is on {tensor.device}; expected {q.device}, the device of q")
    if not torch.compiler.is_compiling():
        check_dense(name, tensor)


def _gate(name: str, gate: Tensor, shape: tuple[int, int, int]) -> Tensor:
    check_gate(name, gate, shape)
    return gate.expand(shape)


def _state_dtype(q: Tensor) -> torch.dtype:
    """Returns the dtype of gates and states."""
    return torch.float64 if q.dtype is torch.float64 else torch.float32


@breaks_graph
def _node_count(numbers: _Numbers, problem: LinearProblem) -> int:
    count: int = _plan_of(numbers, problem).nodes
    return count


def _plan_of(numbers: _Numbers, problem: LinearProblem) -> LinearPlan:
    call = Call(numbers.mask, causal=numbers.causal)
    if call.mask is not None and call.mask.is_cuda:  # nodes are found on the host, which waits for the device here
        call = call._replace(mask=call.mask.cpu())
    key = (source_of(call), numbers.causal, problem)
    found = linear_plans.find(key)
    if found is not None:
        return found
    heads = problem.batch, problem.length, problem.key_heads, problem.key_dim
    _, mask, _, size = named_mask(call, call.problem([heads] * 3, "float32"))
    return linear_plans.keep(key, LinearPlan(mask, problem), size + 40 * problem.length)


def _problem(inputs: _Inputs, numbers: _Numbers) -> LinearProblem:
    batch, length, key_heads, key_dim = inputs.q.shape
    heads, value_dim = inputs.v.shape[2:]
    code = _CODES[inputs.q.dtype]
    made = LinearProblem(batch, length, heads, key_heads, key_dim, value_dim, code, numbers.scale, numbers.normalize)
    return made if inputs.q.device.type == "cpu" else made._replace(device_index=inputs.q.device.index)


def _ready(tensor: Tensor | None) -> Tensor | None:
    """Returns the tensor, or a copy with strides that the library accepts."""
    if tensor is None:
        return None
    if tensor.dtype is torch.float64:
        return tensor.contiguous()
    if tensor.is_cuda and tensor.dtype is not torch.float32 and not _has_whole_rows(tensor):
        return tensor.clone(memory_format=torch.contiguous_format)
    if tensor.stride(-1) == 1 or tensor.shape[-1] == 1:
        return tensor
    return tensor.contiguous()


def _has_whole_rows(tensor: Tensor) -> bool:
    """Whether kernels of a GPU can read the tensor, 16 bytes at a time."""
    *outer, last = tensor.stride()
    return last == 1 and all(outer) and all(each % 8 == 0 for each in outer) and tensor.data_ptr() % 16 == 0


def _placed(tensor: Tensor | None) -> Placed:
    if tensor is None:
        return ABSENT
    device = (s.CUDA, tensor.device.index) if tensor.is_cuda else (s.CPU, 0)
    return tensor.data_ptr(), layout(_CODES[tensor.dtype], device, tensor.shape, tensor.stride())


def _workspace(device: torch.device, plan: LinearPlan) -> GpuWorkspace | None:
    """Returns what a call on a GPU needs; on the CPU, lets the library have torch's threads."""
    if device.type == "cpu":
        follow_threads()
        return None
    if torch.cuda.is_current_stream_capturing():
        _captured.add(plan)

    def allocate(size: int) -> Tensor:
        return torch.empty(size, dtype=torch.uint8, device=device)

    return GpuWorkspace(current_stream(device.index), allocate)


def _forward(*arguments: Any) -> _Outputs:
    inputs, numbers, nodes = _Inputs(*arguments[:8]), _Numbers(*arguments[8:12]), arguments[12]
    problem = _problem(inputs, numbers)
    plan = _plan_of(numbers, problem)
    if nodes not in (0, plan.nodes):
        raise ValueError(f"nodes is {nodes}; expected {plan.nodes}, those of the mask, or 0 for no final states")
    if problem.code == F64:
        _check_states(inputs, problem.states(plan.roots))
    given = [_ready(each) for each in inputs]
    outputs = _empty_outputs(inputs, nodes)
    o, state, normalizer, log_scale = outputs
    final = (state, normalizer if numbers.normalize else None, log_scale) if nodes else (None, None, None)
    plan.forward([_placed(each) for each in (*given, o, *final)], _workspace(o.device, plan))
    return outputs


def _check_states(inputs: _Inputs, expected: Sequence[tuple[int, ...]]) -> None:
    """Refuses initial states that the reference, which takes their shapes for granted, would read past."""
    given = [None if each is None else tuple(each.shape) for each in inputs[5:]]
    if any(shape not in (None, right) for shape, right in zip(given, expected, strict=True)):
        shapes = [None if shape is None else list(shape) for shape in given]
        raise ValueError(f"initial_state has shapes {shapes}; expected {[list(each) for each in expected]}")


def _empty_outputs(inputs: _Inputs, nodes: Any) -> _Outputs:
    q, v = inputs.q, inputs.v
    state, normalizer, log_scale = (
        v.new_empty(sizes, dtype=_state_dtype(q))
        for sizes in (
            (nodes, v.shape[2], q.shape[3], v.shape[3]),
            (nodes, v.shape[2], q.shape[3]),
            (nodes, v.shape[2]),
        )
    )
    return v.new_empty(v.shape), state, normalizer, log_scale


def _forward_fake(*arguments: Any) -> _Outputs:
    return _empty_outputs(_Inputs(*arguments[:8]), arguments[12])


def _differentiated(inputs: _Inputs, gates: bool) -> list[Tensor | None]:
    """Returns the inputs whose gradients are computed; those of gates only where they are wanted."""
    given = list(inputs[:7])
    if not gates:
        given[3:5] = None, None
    return given


def _empty_gradients(inputs: _Inputs, gates: bool) -> list[Tensor]:
    """Returns what the gradients are written to, without elements where there is nothing to differentiate."""
    return [
        inputs.q.new_empty(0, dtype=torch.float32) if each is None else each.new_empty(each.shape)
        for each in _differentiated(inputs, gates)
    ]


def _backward(*arguments: Any) -> tuple[Tensor, ...]:
    inputs, numbers = _Inputs(*arguments[:8]), _Numbers(*arguments[8:12])
    o, grad_o, grad_state, grad_normalizer, gates = arguments[12:]
    plan = _plan_of(numbers, _problem(inputs, numbers))
    given = [_ready(each) for each in inputs]
    of_states = (None if each is None or each.numel() == 0 else each for each in (grad_state, grad_normalizer))
    saved = [_ready(each) for each in (o, grad_o, *of_states)]
    if saved[2] is not None and saved[3] is None and numbers.normalize:
        saved[3] = saved[2].new_zeros(saved[2].shape[:3])
    gradients = _empty_gradients(inputs, gates)
    if o.is_cuda:
        await_at_exit(o.device)
    differentiated = _differentiated(inputs, gates)
    placed = [ABSENT if each is None else _placed(to) for each, to in zip(differentiated, gradients, strict=True)]
    plan.backward([*map(_placed, (*given, *saved)), *placed], _workspace(o.device, plan))
    return tuple(gradients)


def _backward_fake(*arguments: Any) -> tuple[Tensor, ...]:
    return tuple(_empty_gradients(_Inputs(*arguments[:8]), arguments[16]))


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> _Outputs:
        with BelowAutograd():
            outputs = linear_forward_operator(*arguments)
        ctx.save_for_backward(*arguments[:9], outputs[0])
        ctx.numbers = arguments[9:12]
        ctx.mark_non_differentiable(outputs[3])
        ctx.set_materialize_grads(False)
        return outputs

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        refuse_forward_mode()

    @staticmethod
    def backward(
        ctx: Any, grad_o: Tensor | None, grad_state: Tensor | None, grad_normalizer: Tensor | None, _: Any
    ) -> Any:
        *given, o = ctx.saved_tensors
        if grad_o is None and grad_state is None and grad_normalizer is None:
            return (None,) * 13
        if grad_o is None:
            grad_o = torch.zeros_like(o)
        if grad_state is None and grad_normalizer is not None:
            nodes, heads, key_dim = grad_normalizer.shape
            grad_state = grad_normalizer.new_zeros(nodes, heads, key_dim, o.shape[3])
        gates = any(ctx.needs_input_grad[3:5])
        gradients = linear_backward_operator(*given, *ctx.numbers, o, grad_o, grad_state, grad_normalizer, gates)
        wanted = [
            gradient if needed and each is not None else None
            for gradient, needed, each in zip(gradients, ctx.needs_input_grad, given, strict=False)
        ]
        return *wanted, *(None,) * 6


def _autograd(*arguments: Any) -> _Outputs:
    """Runs flashmask::linear_forward where autograd may have to record it."""
    if is_differentiated(*arguments[:8]):
        refuse_transforms()
        outputs: _Outputs = _Linear.apply(*arguments)  # type: ignore[no-untyped-call]
        return outputs
    with BelowAutograd():
        return linear_forward_operator(*arguments)


def _backward_autograd(*arguments: Any) -> tuple[Tensor, ...]:
    """Runs flashmask::linear_backward, whose results have no gradient."""
    why = "linear_attention is differentiable once; write its recurrence in PyTorch's operations for more"
    tensors = (each for each in arguments if isinstance(each, Tensor))
    return differentiated_once(why, lambda: linear_backward_operator(*arguments), *tensors)


def _refuse_device(*arguments: Any) -> Any:
    raise NotImplementedError(
        f"q is on {arguments[0].device}; linear_attention runs on CPUs and on NVIDIA's GPUs: pass q.cpu() and the "
        "others likewise"
    )


def _register() -> None:
    """Gives the operators their kernels."""
    for name, kernel, fake in (
        ("linear_forward", _forward, _forward_fake),
        ("linear_backward", _backward, _backward_fake),
    ):
        torch.library.register_fake(f"flashmask::{name}", fake, lib=LIBRARY)
        LIBRARY.impl(name, kernel, "CPU")
        LIBRARY.impl(name, kernel, "CUDA")
        LIBRARY.impl(name, _refuse_device, "CompositeExplicitAutograd")
    LIBRARY.impl("linear_forward", _autograd, "Autograd")
    LIBRARY.impl("linear_backward", _backward_autograd, "Autograd")


_register()
