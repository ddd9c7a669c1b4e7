# SPDX-License-Identifier: Apache-2.0
"""The operators of flashmask.distributed, their fake kernels and autograd.

flashmask::shard_forward and shard_backward are attention under the scheme "rows"; flashmask::shard_to_heads and
shard_to_tokens are the exchanges around attention under "heads", each the gradient of the other. flashmask::shard_seed
gives every rank the dropout seed and offset that rank 0 has drawn; `after` is an input of the call, so that all ranks
run it between the same exchanges. `sharding` is uint8 [n] on the CPU, one rank's part under one mask, and `group` the
name of its process group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from flashmask._backends import OURS
from flashmask._plans.call import Call
from flashmask._torch.autograd import BelowAutograd, differentiated_once, is_differentiated, refuse_transforms
from flashmask._torch.direct import is_plain, is_recordable
from flashmask._torch.plans.operands import check_saved, lse_dtype
from flashmask._torch.schemas import LIBRARY
from flashmask.distributed._checks import entered
from flashmask.distributed._group import from_first
from flashmask.distributed._heads import exchange_of, of_all_ranks
from flashmask.distributed._parcels import kinds_of
from flashmask.distributed._rows import backward_of_rows, forward_of_rows


class Given(NamedTuple):
    """What a call is given besides its scale and `deterministic`: fields of Call, and the last arguments of operators.

    The operators have no defaults for them: see schemas.number_of.
    """

    dropout: float = 0.0
    seed_offset: Tensor | None = None
    sinks: Tensor | None = None
    change: str = ""
    alibi_slopes: Tensor | None = None
    query_positions: Tensor | None = None
    key_positions: Tensor | None = None


_GIVEN = (
    "float dropout, Tensor? seed_offset, Tensor? sinks, str change, Tensor? alibi_slopes, Tensor? query_positions, "
    "Tensor? key_positions"
)
_BEFORE_GIVEN = 5  # arguments of shard_forward behind q, k and v: sharding, group, scale, deterministic, kept
_SINKS = _BEFORE_GIVEN + Given._fields.index("sinks")
_NUMBERS = ("dropout", "change")
_TENSORS = [name for name in Given._fields if name not in _NUMBERS]
LIBRARY.define(
    "shard_forward(Tensor q, Tensor k, Tensor v, Tensor sharding, str group, float scale, bool deterministic, "
    f"SymInt kept, {_GIVEN}) -> (Tensor o, Tensor lse, Tensor kept_k, Tensor kept_v)"
)
LIBRARY.define(
    "shard_backward(Tensor grad_o, Tensor? grad_lse, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, "
    f"Tensor kept_k, Tensor kept_v, Tensor sharding, str group, float scale, bool deterministic, {_GIVEN}) -> "
    "(Tensor dq, Tensor dk, Tensor dv)"
)
LIBRARY.define("shard_seed(Tensor seed_offset, float dropout, Tensor after, Tensor sharding, str group) -> Tensor")
for _name in ("shard_to_heads", "shard_to_tokens"):
    LIBRARY.define(f"{_name}(Tensor[] tensors, Tensor sharding, str group, int ranks, SymInt tokens) -> Tensor[]")
forward_operator: Callable[..., tuple[Tensor, ...]] = torch.ops.flashmask.shard_forward.default
backward_operator: Callable[..., tuple[Tensor, ...]] = torch.ops.flashmask.shard_backward.default
seed_operator: Callable[..., Tensor] = torch.ops.flashmask.shard_seed.default


# ---- rows ----


def forward(q: Tensor, k: Tensor, v: Tensor, *others: Any) -> tuple[Tensor, ...]:
    """Runs flashmask::shard_forward, past the dispatcher if that has nothing to do: then perhaps o and lse only."""
    if _is_direct(q, k, v):
        return _differentiated_forward(True, q, k, v, *others)
    return forward_operator(q, k, v, *others)


def _is_direct(*tensors: Tensor) -> bool:
    """Returns whether an operator's kernel may be called without the operator."""
    return not torch.compiler.is_compiling() and is_recordable() and is_plain(*tensors)


def _call(scale: float, deterministic: bool, given: Given) -> Call:
    """Returns the call of a rank, without its mask."""
    return Call(scale=scale, deterministic=deterministic, cudnn=OURS, **given._asdict())


def _computed(q: Tensor, k: Tensor, v: Tensor, sharding: Tensor, name: str, *others: Any) -> tuple[Tensor, ...]:
    """Returns o, lse and, if they are kept, keys and values."""
    scale, deterministic, _, *given = others
    call = _call(scale, deterministic, Given(*given))
    local, group = entered(sharding, name, (q, k, v), "forward", call)
    return forward_of_rows(q, k, v, local, group, call._replace(mask=local.mask_tensor(call)))


def _forward(q: Tensor, k: Tensor, v: Tensor, *others: Any) -> tuple[Tensor, ...]:
    o, lse, *kept = _computed(q, k, v, *others)
    return o, lse, *(kept or (k[:, :0].clone(), v[:, :0].clone()))


def _forward_fake(q: Tensor, k: Tensor, v: Tensor, *others: Any) -> tuple[Tensor, ...]:
    batch, rows, heads, _ = q.shape
    kept = others[4]
    return (
        q.new_empty((batch, rows, heads, v.shape[3])),
        q.new_empty((batch, heads, rows), dtype=lse_dtype(q.dtype)),
        k.new_empty((batch, kept, *k.shape[2:])),
        v.new_empty((batch, kept, *v.shape[2:])),
    )


def _backward(grad_o: Tensor, grad_lse: Tensor | None, *arguments: Any) -> tuple[Tensor, ...]:
    q, k, v, o, lse, kept_k, kept_v, sharding, name, scale, deterministic, *given = arguments
    check_saved(grad_o, grad_lse, o, lse, q.dtype, (*q.shape[:3], v.shape[3]))
    call = _call(scale, deterministic, Given(*given))
    local, group = entered(sharding, name, (q, k, v), "backward", call)
    call = call._replace(mask=local.mask_tensor(call))
    return backward_of_rows(grad_o, grad_lse, (q, k, v, o, lse), (kept_k, kept_v), local, group, call)


def _backward_fake(
    grad_o: Tensor, grad_lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, *others: Any
) -> tuple[Tensor, ...]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, direct: bool, q: Tensor, k: Tensor, v: Tensor, *others: Any) -> tuple[Tensor, ...]:
        """`others`: sharding, group, scale, deterministic, kept, and the fields of Given."""
        with BelowAutograd():
            o, lse, *kept = (_computed if direct else forward_operator)(q, k, v, *others)
        sharding, *ctx.others = others[:4]
        given = Given(*others[_BEFORE_GIVEN:])
        tensors = [getattr(given, name) for name in _TENSORS]
        ctx.numbers = {name: getattr(given, name) for name in _NUMBERS}
        ctx.save_for_backward(sharding, *tensors, q, k, v, o, lse, *kept)
        ctx.direct = direct
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*kept)
        return o, lse, *kept

    @staticmethod
    def backward(ctx: Any, grad_o: Tensor | None, grad_lse: Tensor | None, *others: Any) -> Any:
        if grad_o is None and grad_lse is None:
            return (None,) * len(ctx.needs_input_grad)
        sharding, *rest = ctx.saved_tensors
        given = Given(**dict(zip(_TENSORS, rest, strict=False)), **ctx.numbers)
        q, k, v, o, lse, *kept = rest[len(_TENSORS) :]
        grad_o = torch.zeros_like(o) if grad_o is None else grad_o
        tensors = q, k, v, o, lse, *(kept or (k, v))  # k and v are never read if none are kept
        sinks = given.sinks
        if q.dtype is not torch.float64:  # their effect is in o and lse, which the reference, its kernel, does not read
            given = given._replace(sinks=None)
        arguments = grad_o, grad_lse, *tensors, sharding, *ctx.others, *given
        plain = [grad_o, *tensors] if grad_lse is None else [grad_o, grad_lse, *tensors]
        if ctx.direct and not torch.is_grad_enabled() and _is_direct(*plain):
            with BelowAutograd():
                gradients = _backward(*arguments)
        else:
            gradients = backward_operator(*arguments)
        of_others: list[Tensor | None] = [None] * (len(ctx.needs_input_grad) - 4)
        if sinks is not None and ctx.needs_input_grad[4 + _SINKS]:
            of_others[_SINKS] = gradient_of_sinks(sinks, o, lse, grad_o, grad_lse)
        return None, *gradients, *of_others


def gradient_of_sinks(sinks: Tensor, o: Tensor, lse: Tensor, grad_o: Tensor, grad_lse: Tensor | None) -> Tensor:
    """Returns the gradient of sinks from the rows that a rank holds, which are all that its sinks take from.

    A sink has the probability p = exp(sink - lse) in a row and no value: its gradient is p (∂lse - o · ∂o), summed over
    the rows that share it.
    """
    of_rows = sinks[:, None] if sinks.ndim == 1 else sinks
    probability = torch.exp(of_rows.to(lse.dtype) - lse).masked_fill(torch.isneginf(lse), 0)
    change = -(o.to(lse.dtype) * grad_o.to(lse.dtype)).sum(-1).transpose(1, 2)
    gradient = probability * (change if grad_lse is None else change + grad_lse)
    return (gradient.sum((0, 2)) if sinks.ndim == 1 else gradient).to(sinks.dtype)


def _differentiated_forward(direct: bool, q: Tensor, k: Tensor, v: Tensor, *others: Any) -> tuple[Tensor, ...]:
    """Runs the forward with autograd; `direct`: past the dispatcher."""
    if is_differentiated(q, k, v, Given(*others[_BEFORE_GIVEN:]).sinks):
        refuse_transforms()
        outputs: tuple[Tensor, ...] = _Rows.apply(direct, q, k, v, *others)  # type: ignore[no-untyped-call]
        return outputs
    with BelowAutograd():
        return (_computed if direct else forward_operator)(q, k, v, *others)


def _differentiated_backward(grad_o: Tensor, grad_lse: Tensor | None, *others: Any) -> tuple[Tensor, ...]:
    tensors = (each for each in others if isinstance(each, Tensor))
    return differentiated_once(
        "attention is differentiable once",
        lambda: backward_operator(grad_o, grad_lse, *others),
        grad_o,
        grad_lse,
        *tensors,
    )


# ---- dropout ----


def _seed(seed_offset: Tensor, dropout: float, after: Tensor, sharding: Tensor, name: str) -> Tensor:
    _, group = entered(sharding, name, [after], f"dropout {dropout}")
    return from_first(group, seed_offset)


def _seed_fake(seed_offset: Tensor, dropout: float, after: Tensor, sharding: Tensor, name: str) -> Tensor:
    return torch.empty_like(seed_offset)


# ---- heads ----


def _to_heads(tensors: list[Tensor], sharding: Tensor, name: str, ranks: int, tokens: int) -> list[Tensor]:
    local, group = entered(sharding, name, tensors, "to heads" if len(tensors) == 3 else "back to heads")
    return exchange_of(local, kinds_of(tensors)).to_heads(group, tensors)


def _to_tokens(tensors: list[Tensor], sharding: Tensor, name: str, ranks: int, tokens: int) -> list[Tensor]:
    local, group = entered(sharding, name, tensors, "to tokens")
    kinds = of_all_ranks(tensors, [each.shape[2] * local.ranks for each in tensors])
    return exchange_of(local, kinds).to_tokens(group, tensors)


def _to_heads_fake(tensors: list[Tensor], sharding: Tensor, name: str, ranks: int, tokens: int) -> list[Tensor]:
    return [each.new_empty((each.shape[0], tokens, each.shape[2] // ranks, *each.shape[3:])) for each in tensors]


def _to_tokens_fake(tensors: list[Tensor], sharding: Tensor, name: str, ranks: int, tokens: int) -> list[Tensor]:
    return [each.new_empty((each.shape[0], tokens, each.shape[2] * ranks, *each.shape[3:])) for each in tensors]


class Way(NamedTuple):
    """One direction of exchange; both take tensors, a sharding's tensor, group, ranks, and tokens of the results."""

    operator: Callable[..., list[Tensor]]
    kernel: Callable[..., list[Tensor]]


TO_HEADS = Way(torch.ops.flashmask.shard_to_heads.default, _to_heads)
TO_TOKENS = Way(torch.ops.flashmask.shard_to_tokens.default, _to_tokens)


class _Exchanged(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, direct: bool, there: Way, back: Way, others: tuple[Any, ...], *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        """`others`: the operator's arguments after the tensors."""
        with BelowAutograd():
            found = (there.kernel if direct else there.operator)(tensors, *others)
        sharding, *ctx.others = others[:3]
        ctx.save_for_backward(sharding)
        ctx.direct, ctx.back, ctx.tokens = direct, back, tensors[0].shape[1]
        return tuple(found)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        arguments = grads, *ctx.saved_tensors, *ctx.others, ctx.tokens
        if ctx.direct and not torch.is_grad_enabled() and _is_direct(*grads):
            with BelowAutograd():
                found = ctx.back.kernel(*arguments)
        else:
            found = ctx.back.operator(*arguments)
        return None, None, None, None, *found


def exchange(there: Way, back: Way, tensors: Sequence[Tensor], *others: Any) -> Sequence[Tensor]:
    """Runs the operator of `there`, past the dispatcher where that has nothing to do. `back` is its gradient."""
    if _is_direct(*tensors):
        return _differentiated_exchange(True, there, back, tensors, *others)
    return there.operator(tensors, *others)


def _differentiated_exchange(
    direct: bool, there: Way, back: Way, tensors: Sequence[Tensor], *others: Any
) -> Sequence[Tensor]:
    if is_differentiated(*tensors):
        refuse_transforms()
        return list(_Exchanged.apply(direct, there, back, others, *tensors))  # type: ignore[no-untyped-call]
    with BelowAutograd():
        return list((there.kernel if direct else there.operator)(tensors, *others))


def _register() -> None:
    """Gives the operators their kernels."""
    for name, kernel, fake in (
        ("shard_forward", _forward, _forward_fake),
        ("shard_backward", _backward, _backward_fake),
        ("shard_seed", _seed, _seed_fake),
        ("shard_to_heads", _to_heads, _to_heads_fake),
        ("shard_to_tokens", _to_tokens, _to_tokens_fake),
    ):
        torch.library.register_fake(f"flashmask::{name}", fake, lib=LIBRARY)
        for key in ("CPU", "CUDA"):
            LIBRARY.impl(name, kernel, key)
    autograd: dict[str, Callable[..., Sequence[Tensor]]] = {
        "shard_forward": lambda *given: _differentiated_forward(False, *given),
        "shard_backward": _differentiated_backward,
        "shard_to_heads": lambda *given: _differentiated_exchange(False, TO_HEADS, TO_TOKENS, *given),
        "shard_to_tokens": lambda *given: _differentiated_exchange(False, TO_TOKENS, TO_HEADS, *given),
    }
    for name, function in autograd.items():
        LIBRARY.impl(name, function, "Autograd")


_register()
