# SPDX-License-Identifier: Apache-2.0
"""The scheme "rows": a rank keeps its query rows and fetches the keys and values that they see."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from flashmask._plans.call import Call
from flashmask._torch.cpu import backward_cpu, forward_cpu
from flashmask._torch.cuda import backward_cuda, forward_cuda
from flashmask._torch.plans.operands import lse_dtype
from flashmask.distributed._dropout import place_of_rows
from flashmask.distributed._exchange import Exchange
from flashmask.distributed._group import Group
from flashmask.distributed._local import Local
from flashmask.distributed._positions import fetch_keys, with_own_positions


def forward_of_rows(q: Tensor, k: Tensor, v: Tensor, local: Local, group: Group, call: Call) -> tuple[Tensor, ...]:
    """Returns o, lse and, if the sharding keeps them, the keys and values that were computed with."""
    assert local.columns is not None
    outputs = []
    for part in range(local.head_groups):
        of_q, of_k, of_v = (_heads(each, part, local) for each in (q, k, v))
        whole_k, whole_v, fetched = fetch_keys(group, local.columns, of_k, of_v, call, apart=local.keeps)
        o, lse = _attend(of_q, whole_k, whole_v, _placed(fetched, local, part, q, v))
        if local.keeps:  # there is one group of heads then
            return o, lse, whole_k, whole_v
        outputs.append((o, lse))
    of_o, of_lse = zip(*outputs, strict=True)
    return _joined(of_o, 2), _joined(of_lse, 1)


def backward_of_rows(
    grad_o: Tensor,
    grad_lse: Tensor | None,
    saved: tuple[Tensor, Tensor, Tensor, Tensor, Tensor],
    kept: tuple[Tensor, Tensor],
    local: Local,
    group: Group,
    call: Call,
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the gradients of q, k and v; `saved` are q, k, v, o, lse. `kept` is read if the sharding keeps keys."""
    gradients = []
    for part in range(local.head_groups):
        q, k, v, o, lse = (_heads(each, part, local, 1 if place == 4 else 2) for place, each in enumerate(saved))
        grads = _heads(grad_o, part, local), None if grad_lse is None else _heads(grad_lse, part, local, 1)
        gradients.append(_backward_of_heads(*grads, (q, k, v, o, lse), kept, local, group, call, part))
    grad_q, grad_k, grad_v = (_joined(each, 2) for each in zip(*gradients, strict=True))
    return grad_q, grad_k, grad_v


def _heads(tensor: Tensor, part: int, local: Local, dim: int = 2) -> Tensor:
    """Returns the heads of group `part`."""
    if local.head_groups == 1:
        return tensor
    count = tensor.shape[dim] // local.head_groups
    return tensor.narrow(dim, part * count, count)


def _joined(groups: Sequence[Tensor], dim: int) -> Tensor:
    return torch.cat(list(groups), dim) if len(groups) > 1 else groups[0]


def _backward_of_heads(
    grad_o: Tensor,
    grad_lse: Tensor | None,
    saved: tuple[Tensor, Tensor, Tensor, Tensor, Tensor],
    kept: tuple[Tensor, Tensor],
    local: Local,
    group: Group,
    call: Call,
    part: int,
) -> tuple[Tensor, ...]:
    """backward_of_rows() for one group of heads."""
    q, k, v, o, lse = saved
    columns = local.columns
    assert columns is not None
    if local.keeps:
        whole_k, whole_v = kept
        positions = None if call.key_positions is None else columns.fetch(group, [call.key_positions])[0]
        fetched = call._replace(key_positions=positions)
    else:
        whole_k, whole_v, fetched = fetch_keys(group, columns, k, v, call)
    own = _placed(fetched, local, part, q, v)
    in_parts = local.owners_rows is None and not columns.silent
    grad_q, *partials = _gradients(grad_o, grad_lse, (q, whole_k, whole_v, o, lse), own, in_parts)
    del whole_k, whole_v  # freed before others' gradients arrive
    if local.owners_rows is None:
        return grad_q, *columns.give_back(group, partials, k.dtype)
    del partials  # they hold nothing
    owners = _placed(call, local, part, q, v, owners=True)._replace(mask=local.owners_mask_tensor(call))
    return grad_q, *_owners(grad_o, grad_lse, saved, local.owners_rows, group, owners, call.query_positions)


def _placed(call: Call, local: Local, part: int, q: Tensor, v: Tensor, *, owners: bool = False) -> Call:
    """Returns the call for one group of heads: its sinks, slopes and positions, and the whole problem's dropout."""
    if call.sinks is not None:  # [heads] or [batch, heads, rows]
        call = call._replace(sinks=_heads(call.sinks, part, local, call.sinks.ndim // 2))
    if call.alibi_slopes is not None:  # [heads] or [batch, heads]
        call = call._replace(alibi_slopes=_heads(call.alibi_slopes, part, local, -1))
        call = with_own_positions(call, local, q.device, owners=owners)
    if not call.dropout:
        return call
    count = local.heads[0] // local.head_groups
    heads = slice(part * count, (part + 1) * count)
    return call._replace(dropout_place=place_of_rows(local, heads, q, v, owners=owners))


def _owners(
    grad_o: Tensor,
    grad_lse: Tensor | None,
    saved: tuple[Tensor, Tensor, Tensor, Tensor, Tensor],
    rows: Exchange,
    group: Group,
    call: Call,
    positions: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Returns the gradients of a rank's own keys and values from all rows that see them, summed as on one device.

    `positions`: those that the caller gave the rows that the rank holds.
    """
    q, k, v, o, lse = saved
    of_rows = [q, o, grad_o, lse.transpose(1, 2), *([] if grad_lse is None else [grad_lse.transpose(1, 2)])]
    of_rows += [] if positions is None else [positions]
    q, o, grad_o, *of_lse = rows.fetch(group, of_rows)
    if positions is not None:
        call = call._replace(query_positions=of_lse.pop())
    lse, *rest = (each.transpose(1, 2) for each in of_lse)
    _, grad_k, grad_v = _gradients(grad_o, rest[0] if rest else None, (q, k, v, o, lse), call)
    return grad_k, grad_v


# The kernels are called past the dispatcher: what observes operators has already seen the one that calls these.


def _attend(q: Tensor, k: Tensor, v: Tensor, call: Call) -> tuple[Tensor, Tensor]:
    if 0 in q.shape:  # a rank may have no rows
        lse = q.new_empty((q.shape[0], q.shape[2], q.shape[1]), dtype=lse_dtype(q.dtype))
        return v.new_empty((*q.shape[:3], v.shape[3])), lse
    return (forward_cuda if q.is_cuda else forward_cpu)(q, k, v, call)


def _gradients(
    grad_o: Tensor,
    grad_lse: Tensor | None,
    saved: tuple[Tensor, Tensor, Tensor, Tensor, Tensor],
    call: Call,
    parts: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the gradients of q, k and v.

    `parts`: those of k and v are parts of sums, which must not be rounded to 16 bits before all are added.
    """
    q, k, v, _, _ = saved
    in_float32 = parts and k.element_size() < 4
    if 0 in q.shape or 0 in k.shape:
        dtype = torch.float32 if in_float32 else k.dtype
        return torch.zeros_like(q), torch.zeros_like(k, dtype=dtype), torch.zeros_like(v, dtype=dtype)
    backward = backward_cuda if q.is_cuda else backward_cpu
    grad_q, grad_k, grad_v, *_ = backward(grad_o, grad_lse, *saved, call, in_float32)
    return grad_q, grad_k, grad_v
