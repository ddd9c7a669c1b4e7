# SPDX-License-Identifier: Apache-2.0
"""Linear layers with their LoRA addition in one step, or, in a backward, without computing their result.

Layers of known classes change their class while a chunk runs: torch.compile distinguishes compiled code by class.
Whatever a class here does not handle goes to the forward that it replaces.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from flashmask._torch.autograd import once_differentiable
from flashmask.training._chunks import IN_CHUNKS

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class _Product(torch.autograd.Function):
    """Computes given W^T + bias + scale · given A^T B^T, or zeros in its place: the gradients are the same either way.

    The low-rank products are added into the memory of the large ones. Hu et al. 2021 (LoRA), section 4.1.
    """

    @staticmethod
    def forward(
        ctx: Any,
        given: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        a: Tensor | None,
        b: Tensor | None,
        scale: float,
        wanted: bool,
    ) -> Tensor:
        low = None if a is None else linear(given, a)
        ctx.save_for_backward(given, weight, a, b, low)
        ctx.scale = scale
        if not wanted:
            return given.new_zeros(()).expand(*given.shape[:-1], weight.shape[0])
        out = linear(given, weight, bias)
        if low is not None and b is not None:
            out.flatten(0, -2).addmm_(low.flatten(0, -2), b.mT, alpha=scale)
        return out

    @staticmethod
    @once_differentiable(IN_CHUNKS)
    def backward(ctx: Any, grad: Tensor) -> Any:
        given, weight, a, b, low = ctx.saved_tensors
        asked = ctx.needs_input_grad
        rows, grads = given.flatten(0, -2), grad.flatten(0, -2)
        dgiven = grads @ weight if asked[0] else None
        dweight = grads.mT @ rows if asked[1] else None
        dbias = grads.sum(0) if asked[2] else None
        da = db = None
        if low is not None:
            dlow = (grads @ b).mul_(ctx.scale)
            da = dlow.mT @ rows if asked[3] else None
            db = (grads.mT @ low.flatten(0, -2)).mul_(ctx.scale) if asked[4] else None
            if dgiven is not None:
                dgiven.addmm_(dlow, a)
        return None if dgiven is None else dgiven.view(given.shape), dweight, dbias, da, db, None, None


def _product(*arguments: Any) -> Tensor:
    found: Tensor = _Product.apply(*arguments)  # type: ignore[no-untyped-call]
    return found


class _SkippedLinear(nn.Linear):
    def forward(self, given: Tensor) -> Tensor:
        if _is_cast(given, self.weight):
            return super().forward(given)
        return _product(given, self.weight, self.bias, None, None, 0.0, False)


def _is_cast(given: Tensor, *weights: Tensor) -> bool:
    """Whether a product involves a cast, by autocast or because weights have another dtype than `given`."""
    return torch.is_autocast_enabled(given.device.type) or any(each.dtype != given.dtype for each in weights)


def _is_plain(layer: Any) -> bool:
    return type(layer) is nn.Linear and "forward" not in vars(layer) and not any(getattr(layer, h) for h in _HOOKS)


@functools.cache
def _adapted() -> tuple[type[nn.Module], Mapping[bool, type[nn.Module]]]:
    """Returns PEFT's class of linear layers with LoRA, and its replacements by whether the result is wanted."""
    from peft.tuners.lora import Linear

    def forward(self: Any, wanted: bool, given: Tensor, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Tensor:
        factors = None if arguments or keywords else _factors(self, given)
        if factors is None:
            own: Tensor = Linear.forward(self, given, *arguments, **keywords)
            return own
        return _product(given, self.base_layer.weight, self.base_layer.bias, *factors, wanted)

    class Joined(Linear):
        def forward(self, given: Tensor, *arguments: Any, **keywords: Any) -> Tensor:
            return forward(self, True, given, arguments, keywords)

    class Skipped(Linear):
        def forward(self, given: Tensor, *arguments: Any, **keywords: Any) -> Tensor:
            return forward(self, False, given, arguments, keywords)

    return Linear, {True: Joined, False: Skipped}


def _factors(layer: Any, given: Tensor) -> tuple[Tensor, Tensor, float] | None:
    """Returns A, B and scale of a layer that only adds their product to its own; None where PEFT does more."""
    names = [name for name in layer.active_adapters if name in layer.lora_A]
    if layer.disable_adapters or layer.merged or len(names) != 1 or names[0] in layer.lora_variant:
        return None
    a, b, dropout = (each[names[0]] for each in (layer.lora_A, layer.lora_B, layer.lora_dropout))
    if not (_is_plain(layer.base_layer) and _is_plain(a) and _is_plain(b)) or b.bias is not None:
        return None
    if isinstance(dropout, nn.Dropout) and dropout.p > 0 and dropout.training:
        return None
    if _is_cast(given, layer.base_layer.weight, a.weight, b.weight):
        return None
    return a.weight, b.weight, layer.scaling[names[0]]


def _is_adapted(layer: nn.Module) -> bool:
    """Whether a layer is PEFT's, or was before joined() changed its class; PEFT is not imported to find out."""
    if "peft.tuners.lora.layer" not in sys.modules:
        return False
    own, changed = _adapted()
    return type(layer) in (own, changed[True])


@contextmanager
def _as(classes: Iterable[tuple[nn.Module, type[nn.Module]]]) -> Iterator[None]:
    changed = [(layer, type(layer), other) for layer, other in classes]
    for layer, _, other in changed:
        layer.__class__ = other
    try:
        yield
    finally:
        for layer, own, _ in changed:
            layer.__class__ = own


def joined(layers: Iterable[nn.Module]) -> Any:
    """Makes a context in which PEFT's layers with plain LoRA add into the large product; others stay as they are."""
    return _as([(each, _adapted()[1][True]) for each in layers if _is_adapted(each)])


def skipped(layers: Iterable[nn.Module]) -> Any:
    """Makes a context in which linear layers, with or without LoRA, compute no result: only their gradients are right.

    Layers of other classes, and layers with casts or dropout, do compute it.
    """
    layers = list(layers)
    plain: list[tuple[nn.Module, type[nn.Module]]] = [(each, _SkippedLinear) for each in layers if _is_plain(each)]
    return _as(plain + [(each, _adapted()[1][False]) for each in layers if _is_adapted(each)])
