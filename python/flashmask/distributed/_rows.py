"""The scheme "rows": a rank keeps its query rows and fetches the keys and values that they see."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from flashmask._plans.call import Call, arguments_of_backward
from flashmask._plans.operands import lse_dtype
from flashmask._torch.schemas import backward_operator, forward_operator
from flashmask.distributed._dropout import place_of_rows
from flashmask.distributed._exchange import Exchange
from flashmask.distributed._group import Group
from flashmask.distributed._local import Local


def forward_of_rows(
    q: Tensor, k: Tensor, v: Tensor, local: Local, group: Group, call: Call, keep: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """o, lse, and the keys and values that were computed with where `keep` says so."""
    assert local.columns is not None
    outputs = []
    for heads, kv_heads in _head_groups(local):
        whole_k, whole_v = local.columns.fetch(group, [k[:, :, kv_heads], v[:, :, kv_heads]])
        o, lse = _attend(q[:, :, heads], whole_k, whole_v, _placed(call, local, heads, q))
        outputs.append((o, lse, whole_k, whole_v))
    of_o, of_lse, *_ = zip(*outputs, strict=True)
    kept_k, kept_v = outputs[0][2:] if keep else (k[:, :0].clone(), v[:, :0].clone())
    return _joined(of_o, 2), _joined(of_lse, 1), kept_k, kept_v


def _joined(groups: Sequence[Tensor], dim: int) -> Tensor:
    return torch.cat(list(groups), dim) if len(groups) > 1 else groups[0]


def backward_of_rows(
    grad_o: Tensor,
    grad_lse: Tensor | None,
    saved: tuple[Tensor, Tensor, Tensor, Tensor, Tensor],
    kept: tuple[Tensor, Tensor],
    local: Local,
    group: Group,
    call: Call,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and v; `saved` are q, k, v, o and lse."""
    assert local.columns is not None
    gradients = []
    for heads, kv_heads in _head_groups(local):
        q, k, v, o = (each[:, :, heads if place in (0, 3) else kv_heads] for place, each in enumerate(saved[:4]))
        lse = saved[4][:, heads]
        grads = grad_o[:, :, heads], None if grad_lse is None else grad_lse[:, heads]
        whole_k, whole_v = kept if kept[0].shape[1] else local.columns.fetch(group, [k, v])
        parts = local.owners_rows is None and not local.columns.silent
        own = _placed(call, local, heads, q)
        of_group = _gradients(*grads, (q, whole_k, whole_v, o, lse), own, parts)
        if local.owners_rows is None or local.owners_mask is None:
            keys: Sequence[Tensor] = local.columns.give_back(group, of_group[1:], k.dtype)
        else:
            owners = _placed(call, local, heads, q, owners=True)._replace(mask=local.owners_mask_tensor)
            keys = _owners(*grads, (q, k, v, o, lse), local.owners_rows, group, owners)
        gradients.append((of_group[0], *keys))
    grad_q, grad_k, grad_v = (_joined(each, 2) for each in zip(*gradients, strict=True))
    return grad_q, grad_k, grad_v


def _placed(call: Call, local: Local, heads: slice, q: Tensor, *, owners: bool = False) -> Call:
    """The call of these query heads, with the decisions of dropout of the whole."""
    if not call.dropout:
        return call
    return call._replace(dropout_place=place_of_rows(local, heads, q, owners=owners))


def _owners(
    grad_o: Tensor,
    grad_lse: Tensor | None,
    saved: tuple[Tensor, Tensor, Tensor, Tensor, Tensor],
    rows: Exchange,
    group: Group,
    call: Call,
) -> tuple[Tensor, Tensor]:
    """The gradients of a rank's own keys and values from all rows that see them, summed in the order of one device."""
    q, k, v, o, lse = saved
    of_rows = [q, o, grad_o, lse.transpose(1, 2), *([] if grad_lse is None else [grad_lse.transpose(1, 2)])]
    q, o, grad_o, *of_lse = rows.fetch(group, [each.contiguous() for each in of_rows])
    lse, *rest = (each.transpose(1, 2).contiguous() for each in of_lse)
    _, grad_k, grad_v = _gradients(grad_o, rest[0] if rest else None, (q, k, v, o, lse), call)
    return grad_k, grad_v


def _head_groups(local: Local) -> Iterator[tuple[slice, slice]]:
    """The query heads and key heads of each group."""
    heads, kv_heads = (count // local.head_groups for count in local.heads)
    for group in range(local.head_groups):
        yield slice(group * heads, (group + 1) * heads), slice(group * kv_heads, (group + 1) * kv_heads)


def _attend(q: Tensor, k: Tensor, v: Tensor, call: Call) -> tuple[Tensor, Tensor]:
    if 0 in q.shape:  # a rank may have no rows
        lse = q.new_empty((q.shape[0], q.shape[2], q.shape[1]), dtype=lse_dtype(q.dtype))
        return v.new_empty((*q.shape[:3], v.shape[3])), lse
    return forward_operator(q, k, v, *call)


def _gradients(
    grad_o: Tensor,
    grad_lse: Tensor | None,
    saved: tuple[Tensor, Tensor, Tensor, Tensor, Tensor],
    call: Call,
    parts: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Of q, k and v. `parts`: those of k and v are parts of sums, not to be rounded to 16 bits before all are added."""
    q, k, v, _, _ = saved
    in_float32 = parts and k.element_size() < 4
    if 0 in q.shape or 0 in k.shape:
        dtype = torch.float32 if in_float32 else k.dtype
        return torch.zeros_like(q), torch.zeros_like(k, dtype=dtype), torch.zeros_like(v, dtype=dtype)
    grad_q, grad_k, grad_v = backward_operator(grad_o, grad_lse, *saved, *arguments_of_backward(call), in_float32)
    return grad_q, grad_k, grad_v
