# SPDX-License-Identifier: Apache-2.0
"""The operators under autograd: differentiable once."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.autograd import forward_ad

from flashmask._plans.call import Call, arguments_of_backward, joined, numbers_of, tensors_of
from flashmask._torch.direct import Kernels, stays_direct
from flashmask._torch.schemas import (
    SCHEMA,
    Gradients,
    Outputs,
    OutputsWithMaxScores,
    backward_operator,
    backward_with_bias_operator,
    backward_with_sinks_operator,
    forward_operator,
    forward_with_max_scores_operator,
)
from flashmask._torch.tangents import dual_attention, has_tangent

BelowAutograd = torch._C._AutoDispatchBelowAutograd


class _Attention(torch.autograd.Function):
    # forward() takes ctx, without setup_context(): apply() then binds no signature, which took 30 of 60 microseconds.
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        sinks: Tensor | None,
        bias: Tensor | None,
        call: Call,
        kernels: Kernels | None,
    ) -> Outputs:
        """`sinks` and `bias` are those of the call. Known `kernels` are called without the dispatcher."""
        if kernels is not None:
            o, lse = kernels.forward(q, k, v, call)
        else:
            with BelowAutograd():
                o, lse = forward_operator(q, k, v, *call, SCHEMA)
        _save(ctx, (q, k, v, o, lse), call, kernels)
        return o, lse

    @staticmethod
    def backward(ctx: Any, grad_o: Tensor | None, grad_lse: Tensor | None) -> Any:
        if grad_o is None and grad_lse is None:
            return (None,) * 7
        q, k, v, o, lse, *tensors = ctx.saved_tensors
        if grad_o is None:
            grad_o = torch.zeros_like(o)
        call: Call = joined(tensors, ctx.numbers)
        if not ctx.needs_input_grad[3] and q.dtype is not torch.float64:
            call = call._replace(sinks=None)  # their effect is in o and lse; the reference reads neither
        with_bias = ctx.needs_input_grad[4]
        gradients = _gradients(ctx.kernels, grad_o, grad_lse, (q, k, v, o, lse), call, with_bias)
        of_bias = gradients[-1] if with_bias else None
        of_sinks = None if call.sinks is None else gradients[3]
        return *gradients[:3], of_sinks, of_bias, None, None


def _save(ctx: Any, tensors: tuple[Tensor, ...], call: Call, kernels: Kernels | None) -> None:
    """Keeps what the backward reads: q, k, v, o and lse, and the call."""
    ctx.save_for_backward(*tensors, *tensors_of(call))
    ctx.numbers = numbers_of(call)
    ctx.kernels = kernels
    ctx.set_materialize_grads(False)


class _AttentionWithMaxScores(torch.autograd.Function):
    """Also returns the largest score of each row, which is not differentiable."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        sinks: Tensor | None,
        bias: Tensor | None,
        call: Call,
    ) -> OutputsWithMaxScores:
        with BelowAutograd():
            o, lse, max_scores = forward_with_max_scores_operator(q, k, v, *call, SCHEMA)
        _save(ctx, (q, k, v, o, lse), call, None)
        ctx.mark_non_differentiable(max_scores)
        return o, lse, max_scores

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        refuse_forward_mode()

    @staticmethod
    def backward(ctx: Any, grad_o: Tensor | None, grad_lse: Tensor | None, grad_max_scores: None) -> Any:
        return _Attention.backward(ctx, grad_o, grad_lse)[:6]


def _gradients(
    kernels: Kernels | None,
    grad_o: Tensor,
    grad_lse: Tensor | None,
    saved: tuple[Tensor, Tensor, Tensor, Tensor, Tensor],
    call: Call,
    bias_gradient: bool,
) -> Gradients:
    arguments = grad_o, grad_lse, *saved, call, False, bias_gradient
    if torch.is_grad_enabled():  # create_graph: the operator refuses a second derivative when it is asked for
        return dispatch_backward(*arguments)
    if kernels is not None and stays_direct(kernels, grad_o, grad_lse, saved, call):
        return kernels.backward(*arguments)
    with BelowAutograd():
        return dispatch_backward(*arguments)


def dispatch_backward(
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
    """Calls the operator that returns the gradients that the call asks for."""
    tensors, others = (grad_o, grad_lse, q, k, v, o, lse), (*arguments_of_backward(call), float32_key_gradients, SCHEMA)
    if bias_gradient:
        *gradients, of_sinks, of_bias = backward_with_bias_operator(*tensors, call.sinks, *others)
        return (*gradients, of_bias) if call.sinks is None else (*gradients, of_sinks, of_bias)
    if call.sinks is None:
        return backward_operator(*tensors, *others)
    return backward_with_sinks_operator(*tensors, call.sinks, *others)


# The apply() behind Function.apply(), which first looks for functorch's transforms.
record: Callable[..., Outputs] = super(torch.autograd.Function, _Attention).apply


def refuse_forward_mode() -> NoReturn:
    """Raises an error: forward-mode derivatives are not supported."""
    raise NotImplementedError(
        "flashmask does not support forward-mode derivatives (torch.autograd.forward_ad); use torch.autograd.grad"
    )


def refuse_second_derivative(why: str) -> NoReturn:
    """Raises an error that ends with the reason."""
    raise NotImplementedError(
        f"flashmask: a gradient of a gradient was asked for (create_graph, or torch.autograd.grad twice); {why}"
    )


class _OnceDifferentiable(torch.autograd.Function):
    """Runs a function that computes gradients; its results cannot be differentiated again."""

    @staticmethod
    def forward(ctx: Any, why: str, function: Callable[[], Gradients], *tensors: Tensor | None) -> Gradients:
        ctx.why = why
        with BelowAutograd():
            return function()

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        refuse_forward_mode()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        refuse_second_derivative(ctx.why)


def differentiated_once(why: str, function: Callable[[], Gradients], *tensors: Tensor | None) -> Gradients:
    """Runs a function that computes gradients from `tensors`, by operators; to differentiate its results is refused."""
    if is_differentiated(*tensors):
        gradients: Gradients = _OnceDifferentiable.apply(why, function, *tensors)  # type: ignore[no-untyped-call]
        return gradients
    with BelowAutograd():
        return function()


def once_differentiable(why: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorates the backward of an autograd.Function to refuse create_graph, under which its results are constants.

    PyTorch's decorator of this name refuses only where the incoming gradient is none, which behind a sum() it is.
    """

    def decorate(backward: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(backward)
        def refusing(ctx: Any, *grads: Any) -> Any:
            if torch.is_grad_enabled():
                refuse_second_derivative(why)
            return backward(ctx, *grads)

        return refusing

    return decorate


def is_differentiated(*tensors: Tensor | None) -> bool:
    """Whether autograd has to record an operation on these tensors."""
    if torch.is_grad_enabled():
        for tensor in tensors:
            if tensor is not None and tensor.requires_grad:
                return True
    return is_dual()  # tangents mark no tensor as requiring a gradient, and no_grad() does not stop them


def is_dual() -> bool:
    """Whether tensors may have tangents, inside forward_ad.dual_level() or torch.func.jvp."""
    return forward_ad._current_level >= 0


def forward_autograd(q: Tensor, k: Tensor, v: Tensor, call: Call) -> Outputs:
    """Runs flashmask::forward where autograd may have to record it."""
    if is_dual() or _in_jvp() or any(map(has_tangent, (q, k, v, call.sinks, call.bias))):
        refuse_transforms(but_jvp=True)
        return dual_attention(q, k, v, call, _Attention.backward)
    if is_differentiated(q, k, v, call.sinks, call.bias):
        refuse_transforms()
        outputs: Outputs = _Attention.apply(q, k, v, call.sinks, call.bias, call, None)  # type: ignore[no-untyped-call]
        return outputs
    with BelowAutograd():
        return forward_operator(q, k, v, *call, SCHEMA)


def forward_with_max_scores_autograd(q: Tensor, k: Tensor, v: Tensor, call: Call) -> OutputsWithMaxScores:
    """Runs flashmask::forward_with_max_scores where autograd may have to record it."""
    if is_differentiated(q, k, v, call.sinks, call.bias):
        refuse_transforms()
        outputs: OutputsWithMaxScores = _AttentionWithMaxScores.apply(  # type: ignore[no-untyped-call]
            q, k, v, call.sinks, call.bias, call
        )
        return outputs
    with BelowAutograd():
        return forward_with_max_scores_operator(q, k, v, *call, SCHEMA)


def refuse_transforms(but_jvp: bool = False) -> None:
    """Raises inside torch.func.grad and similar transforms, for which the Functions here have no rules.

    but_jvp: one torch.func.jvp alone is allowed. In another one around it PyTorch would take tangents for constants.
    """
    if torch._C._are_functorch_transforms_active() and not (but_jvp and _in_jvp() and len(_transforms()) == 1):
        also = " (torch.func.jvp by itself is supported)" if but_jvp else ""
        raise NotImplementedError(
            f"flashmask does not support torch.func.grad and its kin; use torch.autograd.grad{also}"
        )


def _transforms() -> list[Any]:
    """Returns the transforms of torch.func that are active, the outermost first."""
    return torch._C._functorch.get_interpreter_stack() or []


def _in_jvp() -> bool:
    """Whether the innermost transform is torch.func.jvp, in which torch.compile traces without a dual level."""
    if not torch._C._are_functorch_transforms_active():
        return False
    return bool(_transforms()[-1].key() == torch._C._functorch.TransformType.Jvp)


def backward_autograd(
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
    """Runs flashmask::backward or one that returns more gradients; they have no gradient."""
    tensors = grad_o, grad_lse, q, k, v, o, lse

    def run() -> Gradients:
        return dispatch_backward(*tensors, call, float32_key_gradients, bias_gradient)

    return differentiated_once("attention is differentiable once", run, *tensors, call.sinks, call.bias)
