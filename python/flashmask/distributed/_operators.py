"""The operators of flashmask.distributed, their fake kernels and autograd.

flashmask::shard_forward and shard_backward are attention under the scheme "rows"; flashmask::shard_to_heads and
shard_to_tokens are the exchanges around attention under "heads", each the gradient of the other. flashmask::shard_seed
gives every rank the seed and offset of dropout that rank 0 has drawn; `after` is what a call computes with, so that all
ranks come to it between the same exchanges. `sharding` is uint8 [n] on the CPU, one rank's part under one mask, and
`group` the name of its process group.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from flashmask._plans.call import Call
from flashmask._plans.operands import check_devices, check_saved, code_of, lse_dtype
from flashmask._torch.autograd import BelowAutograd, OnceDifferentiable, is_differentiated, refuse_transforms
from flashmask._torch.direct import is_plain, is_recordable
from flashmask._torch.dropout import seed_offset_in
from flashmask._torch.schemas import LIBRARY
from flashmask.distributed._dropout import check_runs
from flashmask.distributed._group import Group, agree, digest, from_first, group_named
from flashmask.distributed._heads import to_heads, to_tokens
from flashmask.distributed._local import Local, local_of
from flashmask.distributed._rows import backward_of_rows, forward_of_rows

LIBRARY.define(
    "shard_forward(Tensor q, Tensor k, Tensor v, Tensor sharding, str group, float scale, bool deterministic, "
    "SymInt kept, float dropout=0.0, Tensor? seed_offset=None) -> (Tensor o, Tensor lse, Tensor kept_k, Tensor kept_v)"
)
LIBRARY.define(
    "shard_backward(Tensor grad_o, Tensor? grad_lse, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, "
    "Tensor kept_k, Tensor kept_v, Tensor sharding, str group, float scale, bool deterministic, float dropout=0.0, "
    "Tensor? seed_offset=None) -> (Tensor dq, Tensor dk, Tensor dv)"
)
LIBRARY.define("shard_seed(Tensor seed_offset, float dropout, Tensor after, Tensor sharding, str group) -> Tensor")
for _name in ("shard_to_heads", "shard_to_tokens"):
    LIBRARY.define(f"{_name}(Tensor[] tensors, Tensor sharding, str group, int ranks, SymInt tokens) -> Tensor[]")
forward_operator: Callable[..., tuple[Tensor, ...]] = torch.ops.flashmask.shard_forward.default
backward_operator: Callable[..., tuple[Tensor, ...]] = torch.ops.flashmask.shard_backward.default
seed_operator: Callable[..., Tensor] = torch.ops.flashmask.shard_seed.default


# ---- what a call must be like ----

_NOTHING_DROPPED = Call()
_MOST_FITTING = 64


def entered(
    sharding: Tensor, name: str, tensors: Sequence[Tensor], call: str, dropped: Call = _NOTHING_DROPPED
) -> tuple[Local, Group]:
    """The sharding and the group of a call, once it is sure that other ranks may be sent something.

    `dropped`: the dropout and the seed of the call.
    """
    group = group_named(name)
    try:
        local = local_of(sharding)
        _check_place(local, group, tensors[0])
        if call in ("forward", "to heads"):
            _check(local, *tensors)
        seed_offset = seed_offset_in(dropped)
        if seed_offset is not None:
            check_runs(local.runs, tensors[0])
    except (TypeError, ValueError, NotImplementedError) as error:
        if _compares():
            agree(group, {}, error)
        raise
    if _compares():
        shapes = [[each.shape[0], *each.shape[2:], str(each.dtype)] for each in tensors]
        seed = None if seed_offset is None else seed_offset.tolist()
        said = {
            "the shardings": local.agreed,
            "the calls": f"{call} {shapes}, dropout {dropped.dropout}",
            "the dropout seeds": f"{seed}",
        }
        agree(group, {what: digest(text.encode()) for what, text in said.items()}, None)
    return local, group


def _compares() -> bool:
    return os.environ.get("FLASHMASK_CHECK_RANKS") == "1"


def _check_place(local: Local, group: Group, q: Tensor) -> None:
    if (local.rank, local.ranks) != (group.rank, group.size):
        raise ValueError(
            f"the sharding is that of rank {local.rank} of {local.ranks}, this process is rank {group.rank} of "
            f"{group.size}; pass the one that shard() made here"
        )
    if q.device.type != group.device.type:
        raise ValueError(f"q is on {q.device}; the group exchanges tensors on {group.device.type} alone")
    if q.is_cuda and torch.cuda.is_current_stream_capturing():
        raise RuntimeError("a CUDA graph is being captured, which would freeze who sends how much; call it outside")


def _check(local: Local, q: Tensor, k: Tensor, v: Tensor) -> None:
    like = q.dtype, k.dtype, v.dtype, q.shape, k.shape, v.shape, q.device, k.device, v.device
    if like in local.fitting:
        return
    _check_anew(local, q, k, v)
    if len(local.fitting) < _MOST_FITTING:
        local.fitting.add(like)


def _check_anew(local: Local, q: Tensor, k: Tensor, v: Tensor) -> None:
    code_of(q, k, v)
    check_devices(q.device, k=k, v=v)
    held, (heads, kv_heads) = local.held, local.heads
    for name, tensor, count in (("q", q, heads), ("k", k, kv_heads), ("v", v, kv_heads)):
        shape = tensor.shape
        if len(shape) != 4 or shape[1] != held or shape[2] != count:
            raise ValueError(
                f"{name} has shape {list(shape)}; expected (batch, {held}, {count}, head dim): rank "
                f"{local.rank} holds {held} of {local.tokens} tokens, and the sharding was made for {heads} "
                f"query heads and {kv_heads} key heads"
            )
    if local.owners_rows is not None and q.dtype is torch.float64:
        raise NotImplementedError('q is float64, which gradients="owner" does not serve; use gradients="reduced"')
    if not q.shape[0] == k.shape[0] == v.shape[0] or q.shape[3] != k.shape[3]:
        raise ValueError(f"q {list(q.shape)}, k {list(k.shape)} and v {list(v.shape)} differ in batch or in head dim")
    batch = local.mask.shape.batch
    if batch not in (1, q.shape[0]):
        raise ValueError(f"q has a batch of {q.shape[0]}; the sharding's mask is for {batch}")


# ---- rows ----


def forward(q: Tensor, k: Tensor, v: Tensor, sharding: Tensor, *others: Any) -> tuple[Tensor, ...]:
    """flashmask::shard_forward, past the dispatcher and autograd where these have nothing to do."""
    if torch.compiler.is_compiling() or not _is_direct(q, k, v):
        return forward_operator(q, k, v, sharding, *others)
    if is_differentiated(q, k, v):
        return _record_rows(q, k, v, True, sharding, *others)
    with BelowAutograd():
        return _forward(q, k, v, sharding, *others)


def _is_direct(*tensors: Tensor) -> bool:
    """Whether the dispatcher would do nothing but call the kernel."""
    return is_recordable() and is_plain(*tensors)


def _call(scale: float, deterministic: bool, dropout: float = 0.0, seed_offset: Tensor | None = None) -> Call:
    return Call(scale=scale, deterministic=deterministic, dropout=dropout, seed_offset=seed_offset)


def _computed(q: Tensor, k: Tensor, v: Tensor, sharding: Tensor, name: str, *others: Any) -> tuple[Tensor, ...]:
    """o, lse, and keys and values where they are kept."""
    scale, deterministic, kept, *dropped = others
    call = _call(scale, deterministic, *dropped)
    local, group = entered(sharding, name, (q, k, v), "forward", call)
    return forward_of_rows(q, k, v, local, group, call._replace(mask=local.mask_tensor), bool(kept))


def _forward(q: Tensor, k: Tensor, v: Tensor, *others: Any) -> tuple[Tensor, ...]:
    outputs = _computed(q, k, v, *others)
    return outputs if len(outputs) == 4 else (*outputs, k[:, :0].clone(), v[:, :0].clone())


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
    q, k, v, o, lse, kept_k, kept_v, sharding, name, *others = arguments
    check_saved(grad_o, grad_lse, o, lse, q.dtype, (*q.shape[:3], v.shape[3]))
    call = _call(*others)
    local, group = entered(sharding, name, (q, k, v), "backward", call)
    call = call._replace(mask=local.mask_tensor)
    kept = (kept_k, kept_v) if kept_k is not None and kept_k.shape[1] else None
    return backward_of_rows(grad_o, grad_lse, (q, k, v, o, lse), kept, local, group, call)


def _backward_fake(
    grad_o: Tensor, grad_lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, *others: Any
) -> tuple[Tensor, ...]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, direct: bool, sharding: Tensor, *others: Any
    ) -> tuple[Tensor, ...]:
        """`direct`: past the dispatcher. `others`: group, scale, deterministic, kept, and, where anything is dropped,
        how much and the seed.
        """
        with BelowAutograd():
            o, lse, *kept = (_computed if direct else forward_operator)(q, k, v, sharding, *others)
        ctx.dropout, seed_offset = others[4:] or (0.0, None)
        ctx.save_for_backward(q, k, v, o, lse, sharding, seed_offset, *kept)
        ctx.others = others[:3]
        ctx.direct = direct
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*kept)
        return o, lse, *kept

    @staticmethod
    def backward(ctx: Any, grad_o: Tensor | None, grad_lse: Tensor | None, *others: Any) -> Any:
        if grad_o is None and grad_lse is None:
            return (None,) * len(ctx.needs_input_grad)
        *saved, sharding, seed_offset, kept_k, kept_v = (*ctx.saved_tensors, None, None)[:9]
        grad_o = torch.zeros_like(saved[3]) if grad_o is None else grad_o
        arguments = sharding, *ctx.others, ctx.dropout, seed_offset
        given = [each for each in (grad_o, grad_lse, *saved, kept_k, kept_v) if each is not None]
        if ctx.direct and not torch.is_grad_enabled() and _is_direct(*given):
            with BelowAutograd():
                gradients = _backward(grad_o, grad_lse, *saved, kept_k, kept_v, *arguments)
        else:
            if kept_k is None:
                kept_k, kept_v = (each[:, :0] for each in saved[1:3])
            gradients = backward_operator(grad_o, grad_lse, *saved, kept_k, kept_v, *arguments)
        return *gradients, *(None,) * (len(ctx.needs_input_grad) - len(gradients))


# What Function.apply() comes to outside of functorch's transforms, which it looks for.
_record_rows: Callable[..., tuple[Tensor, ...]] = super(torch.autograd.Function, _Rows).apply


def _forward_autograd(q: Tensor, k: Tensor, v: Tensor, sharding: Tensor, *others: Any) -> tuple[Tensor, ...]:
    if is_differentiated(q, k, v):
        refuse_transforms()
        outputs: tuple[Tensor, ...] = _Rows.apply(q, k, v, False, sharding, *others)  # type: ignore[no-untyped-call]
        return outputs
    with BelowAutograd():
        return forward_operator(q, k, v, sharding, *others)


def _backward_autograd(grad_o: Tensor, grad_lse: Tensor | None, *others: Any) -> tuple[Tensor, ...]:
    if is_differentiated(grad_o, grad_lse, *others[:3]):
        given = backward_operator, None, grad_o, grad_lse, *others
        gradients: tuple[Tensor, ...] = OnceDifferentiable.apply(*given)  # type: ignore[no-untyped-call]
        return gradients
    with BelowAutograd():
        return backward_operator(grad_o, grad_lse, *others)


# ---- dropout ----


def _seed(seed_offset: Tensor, dropout: float, after: Tensor, sharding: Tensor, name: str) -> Tensor:
    _, group = entered(sharding, name, [after], f"dropout {dropout}")
    return from_first(group, seed_offset)


def _seed_fake(seed_offset: Tensor, dropout: float, after: Tensor, sharding: Tensor, name: str) -> Tensor:
    return torch.empty_like(seed_offset)


# ---- heads ----


def _to_heads(tensors: list[Tensor], sharding: Tensor, name: str, ranks: int, tokens: int) -> list[Tensor]:
    local, group = entered(sharding, name, tensors, "to heads" if len(tensors) == 3 else "back to heads")
    return to_heads(tensors, local, group)


def _to_tokens(tensors: list[Tensor], sharding: Tensor, name: str, ranks: int, tokens: int) -> list[Tensor]:
    local, group = entered(sharding, name, tensors, "to tokens")
    return to_tokens(tensors, local, group)


def _to_heads_fake(tensors: list[Tensor], sharding: Tensor, name: str, ranks: int, tokens: int) -> list[Tensor]:
    return [each.new_empty((each.shape[0], tokens, each.shape[2] // ranks, *each.shape[3:])) for each in tensors]


def _to_tokens_fake(tensors: list[Tensor], sharding: Tensor, name: str, ranks: int, tokens: int) -> list[Tensor]:
    return [each.new_empty((each.shape[0], tokens, each.shape[2] * ranks, *each.shape[3:])) for each in tensors]


class _Exchanged(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, there: Way, back: Way, direct: bool, others: tuple[Any, ...], *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        """`direct`: past the dispatcher. `others`: arguments after the tensors."""
        with BelowAutograd():
            found = (there.kernel if direct else there.operator)(tensors, *others)
        sharding, name, ranks, _ = others
        ctx.save_for_backward(sharding)
        ctx.back = back, (name, ranks, tensors[0].shape[1])
        ctx.direct = direct
        return tuple(found)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        back, others = ctx.back
        arguments = grads, *ctx.saved_tensors, *others
        if ctx.direct and not torch.is_grad_enabled() and _is_direct(*grads):
            with BelowAutograd():
                found = back.kernel(*arguments)
        else:
            found = back.operator(*arguments)
        return None, None, None, None, *found


_record_exchange: Callable[..., tuple[Tensor, ...]] = super(torch.autograd.Function, _Exchanged).apply


class Way(NamedTuple):
    """An exchange: tensors, the tensor of a sharding, group, ranks, and tokens of what it returns."""

    operator: Callable[..., list[Tensor]]
    kernel: Callable[..., list[Tensor]]

    def taken(self, back: Way, tensors: list[Tensor], *others: Any) -> Sequence[Tensor]:
        """The operator, past the dispatcher and autograd where these have nothing to do. `back`: for its gradient."""
        if torch.compiler.is_compiling() or not _is_direct(*tensors):
            return self.operator(tensors, *others)
        if is_differentiated(*tensors):
            return _record_exchange(self, back, True, others, *tensors)
        with BelowAutograd():
            return self.kernel(tensors, *others)

    def autograd(self, back: Way) -> Callable[..., Sequence[Tensor]]:
        """What the operator does where autograd may have to record it."""

        def call(tensors: list[Tensor], *others: Any) -> Sequence[Tensor]:
            if is_differentiated(*tensors):
                refuse_transforms()
                return list(_Exchanged.apply(self, back, False, others, *tensors))  # type: ignore[no-untyped-call]
            with BelowAutograd():
                return list(self.operator(tensors, *others))

        return call


TO_HEADS = Way(torch.ops.flashmask.shard_to_heads.default, _to_heads)
TO_TOKENS = Way(torch.ops.flashmask.shard_to_tokens.default, _to_tokens)


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
    LIBRARY.impl("shard_forward", _forward_autograd, "Autograd")
    LIBRARY.impl("shard_backward", _backward_autograd, "Autograd")
    LIBRARY.impl("shard_to_heads", TO_HEADS.autograd(TO_TOKENS), "Autograd")
    LIBRARY.impl("shard_to_tokens", TO_TOKENS.autograd(TO_HEADS), "Autograd")


_register()
