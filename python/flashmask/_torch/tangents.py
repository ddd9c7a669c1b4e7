# SPDX-License-Identifier: Apache-2.0
"""Forward-mode derivatives of attention: torch.autograd.forward_ad, torch.func.jvp."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import forward_ad

from flashmask._plans.call import Call, joined, numbers_of, tensors_of
from flashmask._torch.schemas import SCHEMA, Outputs, forward_operator, forward_tangents_operator
from flashmask.scores import OPERANDS

BelowAutograd = torch._C._AutoDispatchBelowAutograd


class _DualAttention(torch.autograd.Function):
    """Attention where forward-mode derivatives may be asked for; its backward is that of attention without them."""

    @staticmethod
    def forward(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        sinks: Tensor | None,
        bias: Tensor | None,
        call: Call,
        backward: Callable[..., Any],
        recorded: bool,
    ) -> Outputs:
        """`sinks` and `bias` are those of the call; backward(ctx, grad_o, grad_lse) returns a gradient of each.

        recorded: whether autograd records, which PyTorch turns off in here. Inside a transform the operator comes back
        to autograd, for what is below the transform.
        """
        with torch.set_grad_enabled(recorded), BelowAutograd():
            return forward_operator(q, k, v, *call, SCHEMA)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Outputs) -> None:
        q, k, v, _, _, call, ctx.gradients, _ = inputs
        kept = q, k, v, *output, *tensors_of(call)
        ctx.save_for_backward(*kept)
        ctx.save_for_forward(*kept)
        ctx.numbers = numbers_of(call)
        ctx.kernels = None
        ctx.set_materialize_grads(False)

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Any:
        of_q, of_k, of_v, of_sinks, of_bias, *_ = tangents
        for name, tangent in (("sinks", of_sinks), ("the bias", of_bias)):
            if tangent is not None:
                _refuse_tangent(name)
        q, k, v, o, lse, *tensors = ctx.saved_tensors
        return forward_tangents_operator(q, k, v, o, lse, of_q, of_k, of_v, *joined(tensors, ctx.numbers))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        if any(map(has_tangent, (*grads, *ctx.saved_tensors))):
            raise NotImplementedError(
                "flashmask: a gradient was asked for inside of forward_ad.dual_level(), where it would have a tangent, "
                "a second derivative; attention has first derivatives only: call backward() behind the level"
            )
        return *ctx.gradients(ctx, *grads), None


class _OfTangents(torch.autograd.Function):
    """Runs flashmask::forward_tangents; its results cannot be differentiated."""

    @staticmethod
    def forward(function: Callable[..., Outputs], recorded: bool, *tensors: Tensor | None) -> Outputs:
        with torch.set_grad_enabled(recorded), BelowAutograd():
            return function(*tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Outputs) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        raise NotImplementedError(
            "flashmask: a gradient through a tangent of attention was asked for; call detach() on the tangent, which "
            "is the second value that torch.func.jvp returns, inside of what torch.compile compiles"
        )


def _apply(function: type[torch.autograd.Function], *arguments: Any) -> Any:
    """Calls function.apply(), in the kernel of an operator inside torch.func.jvp too.

    There the transform has turned its tensors into dual ones already, so that nothing is left for it to do.
    """
    if not torch._C._are_functorch_transforms_active():
        return function.apply(*arguments)  # type: ignore[no-untyped-call]
    with enable_single_level_autograd_function():
        return super(torch.autograd.Function, function).apply(*arguments)  # type: ignore[misc]


def has_tangent(tensor: Tensor | None) -> bool:
    """Whether a tensor is dual; torch.compile traces forward_ad.dual_level() without telling forward_ad's own level."""
    if tensor is None:
        return False
    return forward_ad.unpack_dual(tensor, level=0).tangent is not None  # type: ignore[no-untyped-call]


def _refuse_tangent(name: str) -> NoReturn:
    raise NotImplementedError(
        f"flashmask: {name} came with a tangent; forward-mode derivatives are those by q, k and v: detach it"
    )


def dual_attention(q: Tensor, k: Tensor, v: Tensor, call: Call, backward: Callable[..., Any]) -> Outputs:
    """Runs flashmask::forward where tensors may have tangents."""
    for name in OPERANDS["alibi"]:
        if has_tangent(getattr(call, name)):
            _refuse_tangent(name)
    outputs: Outputs = _apply(_DualAttention, q, k, v, call.sinks, call.bias, call, backward, torch.is_grad_enabled())
    return outputs


def forward_tangents_autograd(
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
    """Runs flashmask::forward_tangents, of which no derivative can be computed."""

    def run(*tensors: Tensor | None) -> Outputs:
        *others, sinks, bias = tensors
        return forward_tangents_operator(*others, *call._replace(sinks=sinks, bias=bias))

    tensors = q, k, v, o, lse, tangent_q, tangent_k, tangent_v, call.sinks, call.bias
    outputs: Outputs = _apply(_OfTangents, run, torch.is_grad_enabled(), *tensors)
    return outputs
