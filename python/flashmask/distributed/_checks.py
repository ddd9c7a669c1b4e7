# SPDX-License-Identifier: Apache-2.0
"""Checks of a call before anything is sent."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch
from torch import Tensor

from flashmask._plans.call import Call
from flashmask._torch.dropout import seed_offset_in
from flashmask._torch.plans.operands import check_alibi, check_devices, code_of
from flashmask.distributed._dropout import check_runs
from flashmask.distributed._group import Group, agree, digest, group_named
from flashmask.distributed._local import Local, local_of
from flashmask.distributed._positions import MOST_TOKENS

_MOST_FITTING = 64


def entered(
    sharding: Tensor,
    name: str,
    tensors: Sequence[Tensor],
    step: str,
    call: Call | None = None,
) -> tuple[Local, Group]:
    """Returns the sharding and the group of a call, after the checks that must pass before anything is sent."""
    group = group_named(name)
    try:
        local = local_of(sharding)
    except (TypeError, ValueError) as error:
        if _compares():
            agree(group, {}, error)
        raise
    check_call(local, group, tensors, step, call)
    return local, group


def check_call(local: Local, group: Group, tensors: Sequence[Tensor], step: str, call: Call | None = None) -> None:
    """Does the checks of a call that must pass before anything is sent."""
    call = call or Call()
    try:
        _check_place(local, group, tensors[0])
        if step in ("forward", "to heads"):
            _check(local, *tensors)
            check_changes(call, local.tokens, *tensors[:2])
        if call.dropout:
            seed_offset_in(call)
            check_runs(local.runs, tensors[0], tensors[2])
    except (TypeError, ValueError, NotImplementedError) as error:
        if _compares():
            agree(group, {}, error)
        raise
    if _compares():
        shapes = [[each.shape[0], *each.shape[2:], str(each.dtype)] for each in tensors]
        said = {
            "the shardings": local.agreed,
            "the calls": f"{step} {shapes}, dropout {call.dropout}, change {call.change}{_given(call)}",
            "the dropout seeds": f"{None if call.seed_offset is None else call.seed_offset.tolist()}",
            "the slopes": f"{None if call.alibi_slopes is None else call.alibi_slopes.tolist()}",
        }
        agree(group, {what: digest(text.encode()) for what, text in said.items()}, None)


def _given(call: Call) -> str:
    """Returns which tensors a call is given besides q, k and v, with their dimensions."""
    names = ("sinks", "alibi_slopes", "query_positions", "key_positions")
    tensors = {name: getattr(call, name) for name in names}
    return "".join(f", {each.ndim}-D {name}" for name, each in tensors.items() if each is not None)


def check_changes(call: Call, tokens: int, q: Tensor, k: Tensor) -> None:
    """Refuses sinks, slopes and positions that do not fit q and k, the tokens that this rank holds of `tokens`."""
    _check_sinks(call.sinks, q)
    check_alibi(call, q, k)
    if call.bias_kind == "alibi" and call.query_positions is None and tokens > MOST_TOKENS:
        raise ValueError(
            f"alibi_slopes came without positions, and the sequence has {tokens} tokens; kernels hold positions below "
            f"{MOST_TOKENS} exactly: pass query_positions and key_positions, those of each document from 0 on"
        )


def _check_sinks(sinks: Tensor | None, q: Tensor) -> None:
    """Refuses sinks that are not one per head of q, or one per row that this rank holds."""
    if sinks is None:
        return
    check_devices(q.device, sinks=sinks)
    batch, rows, heads, _ = q.shape
    if sinks.dtype not in (q.dtype, torch.float32) or sinks.shape not in ((heads,), (batch, heads, rows)):
        raise ValueError(
            f"sinks is {sinks.dtype} {list(sinks.shape)}; expected torch.float32 or {q.dtype}, [{heads}], one for each "
            f"head, or [{batch}, {heads}, {rows}], one for each row that this rank holds"
        )


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
