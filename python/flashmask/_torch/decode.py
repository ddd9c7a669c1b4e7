# SPDX-License-Identifier: Apache-2.0
"""decode_attention() for torch tensors: masks of new tokens after a cache, and keys split into parts."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from flashmask._arguments import lengths as token_counts
from flashmask._backends import OURS
from flashmask._draft_tree import DraftTree
from flashmask._options import CallOptions
from flashmask._plans.call import Call
from flashmask._torch.attention import call_of
from flashmask._torch.merge import merge_operator, merge_stacked
from flashmask._torch.operators import forward
from flashmask._torch.packing import can_be_read
from flashmask._torch.plans.operands import check_alibi, check_bias, lse_dtype
from flashmask._torch.plans.streams import capture_of, current_stream
from flashmask._torch.shared import is_traced, shared
from flashmask.scores import with_tensor

_TILE = 128
"""Rows, and keys, of a tile on a GPU: the unit that work is counted in."""


def decode(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lengths: Tensor | Sequence[int] | None,
    tree: DraftTree | None,
    splits: int | None,
    options: CallOptions,
    wants_lse: bool,
) -> tuple[Tensor, Tensor | None]:
    """Returns o, and lse (batch, heads, rows) if wanted; tensors (batch, sequence, heads, head dim), sinks [heads]."""
    parts = parts_of(q, k, v, splits)
    if lengths is not None:
        lengths = _lengths(lengths, q, k.shape[1])
    masks = _masks(lengths, tree, q, k.shape[1], parts)
    bias = _bias(call_of(options), lengths, tree, q, k)
    numbers, sinks = _numbers(options), options.sinks
    if tree is None or tree.is_in_order:
        return attend_in_parts(q, k, v, masks, parts, numbers, sinks, wants_lse, bias)
    depth_first = _on_device(tree, q.device)
    if bias is not None and bias.shape[2] > 1:
        bias = bias.index_select(2, depth_first.order)
    o, lse = attend_in_parts(q.index_select(1, depth_first.order), k, v, masks, parts, numbers, sinks, wants_lse, bias)
    position = depth_first.position
    return o.index_select(1, position), None if lse is None else lse.index_select(2, position)


def _lengths(given: Tensor | Sequence[int], q: Tensor, keys: int) -> Tensor:
    batch = q.shape[0]
    if not isinstance(given, Tensor):
        given = torch.tensor(token_counts("lengths", given).tolist(), dtype=torch.int64, device=q.device)
    if given.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"lengths holds {given.dtype} values; expected int32 or int64")
    if given.shape != (batch,):
        raise ValueError(f"lengths has shape {list(given.shape)}; expected [{batch}], one for each request")
    if given.device != q.device:
        raise ValueError(f"lengths is on {given.device}; expected {q.device}, the device of q")
    if can_be_read(given):
        for length in given.tolist():
            if not 0 <= length <= keys:
                raise ValueError(f"lengths holds {length}; expected 0 to {keys}, the key length")
    return given


# Biases


def _bias(call: Call, lengths: Tensor | None, tree: DraftTree | None, q: Tensor, k: Tensor) -> Tensor | None:
    """Returns what a call adds to its scores as a bias (1 or batch, 1 or heads, 1 or rows, keys)."""
    if call.bias_kind == "distance_bias" or call.query_positions is not None:
        what = "a table by distance" if call.bias_kind == "distance_bias" else "positions beside slopes"
        raise NotImplementedError(
            f"decode_attention() was given {what}, which it does not serve: it knows itself where new tokens stand; "
            "pass a bias of rows and keys"
        )
    if call.alibi_slopes is not None:
        check_alibi(call, q, k)
        return _alibi(call.alibi_slopes, lengths, tree, q, k)
    if call.bias is not None:
        check_bias("bias", call.bias, q, k)
    return call.bias


def _alibi(slopes: Tensor, lengths: Tensor | None, tree: DraftTree | None, q: Tensor, k: Tensor) -> Tensor:
    """Returns -slope · |distance| as a bias (1 or batch, heads, rows, keys), float32, or float64 where q is.

    Kernels take one slope for a head, and heads that share a key head are rows of one here.
    """
    rows, keys = q.shape[1], k.shape[1]
    key, row = (torch.arange(count, device=q.device) for count in (keys, rows))
    before = keys - rows if lengths is None else lengths[:, None] - rows  # tokens of a request before the new ones
    positions = (key - before).reshape(-1, keys)  # of the keys, among the new tokens
    of_rows = row
    if tree is not None:
        of_rows = torch.tensor(tree.depth, device=q.device)
        positions = torch.where(positions < 0, positions, of_rows[positions.clamp(0, rows - 1)])
    distance = (of_rows[:, None] - positions[:, None, :]).abs()
    factors: Tensor = slopes.to(lse_dtype(q.dtype))
    return factors[..., None, None] * -distance[:, None]


def _of_key_heads(bias: Tensor, tokens: int, group: int) -> Tensor:
    """Returns a bias of query heads as one of key heads, whose rows are (token, query head of the key head)."""
    batch, heads, rows, keys = bias.shape
    if group == 1 or heads == rows == 1:
        return bias
    grouped = (
        bias.view(batch, heads // group, group, rows, keys)
        if heads > 1
        else bias[:, :, None].expand(-1, -1, group, -1, -1)
    )
    return grouped.expand(-1, -1, -1, tokens, -1).transpose(2, 3).flatten(2, 3)


def _bias_in_parts(bias: Tensor, batch: int, parts: Parts) -> Tensor:
    """Returns a bias (1 or batch, ...) of all keys as one of parts of the keys, (batch · parts, ..., width)."""
    if parts.splits == 1:
        return bias
    windows = bias.unfold(3, parts.width, parts.step).movedim(3, 1)  # [1 or batch, parts, heads, rows, width]
    return windows.expand(batch, -1, -1, -1, -1).flatten(0, 1)


# Parts of the keys


class Parts(NamedTuple):
    """Keys split into `splits` parts; part i begins at key i · step.

    All parts are `width` long, so that they are one view of the keys; all but the last mask the keys beyond their step.
    """

    splits: int
    step: int
    width: int
    group: int
    """Query heads that share a key head; they are rows of one tile."""
    together: bool
    """Whether the parts of all requests are one view; else requests are computed one by one."""


def parts_of(q: Tensor, k: Tensor, v: Tensor, splits: int | None) -> Parts:
    """Splits the keys into parts; `splits` None: as many as keep the device busy."""
    batch, rows, heads, _ = q.shape
    keys, kv_heads = k.shape[1:3]
    group = heads // kv_heads
    if splits is None:
        best = _best_splits if torch.compiler.is_compiling() else _known_best_splits
        tiles = kv_heads * -(-rows * group // _TILE)
        splits = best(batch * tiles, keys, _workers(q))
        if splits > 1 and not _is_one_view((k, v), splits):
            # The next smaller number of parts that is one view may do; otherwise each request is split on its own.
            fitting = next((fewer for fewer in range(splits, 1, -1) if _is_one_view((k, v), fewer)), 0)
            splits = fitting if 2 * fitting > splits else best(tiles, keys, _workers(q))
    step = max(1, keys // splits)
    return Parts(splits, step, keys - (splits - 1) * step, group, splits == 1 or _is_one_view((k, v), splits))


def _is_one_view(tensors: tuple[Tensor, ...], parts: int) -> bool:
    """Whether the parts of a request, followed by those of the next, are evenly spaced in memory."""
    keys = tensors[0].shape[1]
    evenly = keys % parts == 0 and all(each.stride(0) == keys * each.stride(1) for each in tensors)
    return tensors[0].shape[0] <= 1 or evenly


def _workers(q: Tensor) -> int:
    """Returns how many tiles the device computes at a time."""
    return _multiprocessors(q.device.index) if q.is_cuda else _threads()


def _get_threads() -> int:
    return torch.get_num_threads()


# A graph keeps the number that it was traced with.
_threads: Callable[[], int] = torch.compiler.assume_constant_result(_get_threads)  # type: ignore[no-untyped-call]


@functools.cache
def _multiprocessors(device: int) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def _best_splits(tiles: int, keys: int, workers: int) -> int:
    """Returns the number of parts that takes the least time: rounds of parts over the workers, in tiles of keys.

    A part has at least two tiles, and takes the time of two more (until its keys arrive, and to store); merging takes
    the time of four, and of one more per sixteen parts.
    """
    full = (workers * rounds // tiles for rounds in range(1, 5)) if tiles else ()
    candidates = {1} | {min(parts, keys // (2 * _TILE)) for parts in full} - {0}

    def time(parts: int) -> float:
        rounds = -(-tiles * parts // workers)
        merging = 4 + parts / 16 if parts > 1 else 0
        return rounds * (-(-keys // (parts * _TILE)) + 2) + merging

    return min(sorted(candidates), key=time)


_known_best_splits = functools.lru_cache(maxsize=1024)(_best_splits)


def attend_few_rows(q: Tensor, k: Tensor, v: Tensor, visible: Tensor, options: CallOptions) -> Tensor:
    """Computes o of a few rows under row indices [batch or 1, 1, keys, 2], not causal, with the keys in parts."""
    parts = parts_of(q, k, v, None)
    masks = shared(masks_of_parts, (visible,), batch=q.shape[0], parts=parts)
    return attend_in_parts(q, k, v, masks, parts, _numbers(options), options.sinks, False)[0]


def _numbers(options: CallOptions) -> Call:
    return Call(scale=options.scale, change=with_tensor(options.score.text), cudnn=OURS)


def attend_in_parts(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    masks: Sequence[Tensor],
    parts: Parts,
    numbers: Call,
    sinks: Tensor | None,
    wants_lse: bool,
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Attends part by part; `masks` come from masks_of_parts(): one for all requests together, or one for each.

    `bias`: (1 or batch, 1 or heads, 1 or rows, keys).
    """
    if bias is not None:
        bias = _of_key_heads(bias, q.shape[1], parts.group)
    if parts.together:
        o, lse = _attend(q, k, v, masks[0], parts, numbers, bias)
    else:
        each = []
        for i, mask in enumerate(masks):
            its = bias if bias is None or len(bias) == 1 else bias[i : i + 1]
            each.append(_attend(q[i : i + 1], k[i : i + 1], v[i : i + 1], mask, parts, numbers, its))
        o, lse = torch.cat([one for one, _ in each]), torch.cat([its for _, its in each])
    if sinks is None:
        return _by_head(o, lse, parts, wants_lse)
    by_head, lse_by_head = _by_head(o, lse, parts, True)
    assert lse_by_head is not None
    return _with_sinks(by_head, lse_by_head, sinks)


def _with_sinks(o: Tensor, lse: Tensor, sinks: Tensor) -> tuple[Tensor, Tensor]:
    """Merges the sinks, [heads] or one per row like lse, as a part that has an lse and no values."""
    lse_of_sinks = (sinks[:, None] if sinks.ndim == 1 else sinks).to(lse.dtype).expand_as(lse)
    return merge_operator((o, torch.zeros_like(o)), (lse, lse_of_sinks))


def _by_head(o: Tensor, lse: Tensor, parts: Parts, wants_lse: bool) -> tuple[Tensor, Tensor | None]:
    """Turns rows of key heads, as _attend() returns them, into rows of query heads."""
    batch, rows, kv_heads, dim = o.shape
    tokens, group = rows // parts.group, parts.group
    o = o.view(batch, tokens, group, kv_heads, dim).transpose(2, 3).reshape(batch, tokens, group * kv_heads, dim)
    if not wants_lse:
        return o, None
    lse = lse.view(batch, kv_heads, tokens, group).transpose(2, 3)
    return o, lse.reshape(batch, group * kv_heads, tokens)


def _attend(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, parts: Parts, numbers: Call, bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Returns o (batch, rows · group, kv heads, value dim) and lse (batch, kv heads, rows · group)."""
    batch, tokens, _, dim = q.shape
    kv_heads, (splits, _, _, group, _) = k.shape[2], parts
    rows = q.view(batch, 1, tokens, kv_heads, group, dim).expand(-1, splits, -1, -1, -1, -1).transpose(3, 4)
    rows = rows.reshape(batch * splits, tokens * group, kv_heads, dim)
    call = numbers._replace(mask=mask)
    if bias is not None:
        call = call._replace(bias=_bias_in_parts(bias, batch, parts))
    if splits == 1:
        return forward(rows, k, v, call)
    o, lse = forward(rows, _in_parts(k, parts), _in_parts(v, parts), call)
    return merge_stacked(o, lse, splits)


def _in_parts(keys: Tensor, parts: Parts) -> Tensor:
    """Returns the parts as a view (batch · parts, width, kv heads, dim)."""
    batch, _, kv_heads, dim = keys.shape
    _, row, head, last = keys.stride()
    return keys.as_strided((batch * parts.splits, parts.width, kv_heads, dim), (parts.step * row, row, head, last))


# Masks


def masks_of_parts(visible: Tensor, *, batch: int, parts: Parts) -> tuple[Tensor, ...]:
    """Makes row indices for attend_in_parts() from those of all keys: int32 [batch or 1, 1, keys, 2], not causal.

    Returns one tensor int32 [batch · parts or 1, 1, width, 2], or one per request: [parts, 1, width, 2].
    """
    windows = visible[:, 0].unfold(1, parts.width, parts.step).transpose(2, 3)  # [batch or 1, parts, width, 2]
    rows = (windows * parts.group).contiguous()
    if parts.width > parts.step:
        rows[:, :-1, parts.step :, 0] = 0  # masks rows from 0 on: all of them
    if not parts.together:
        return tuple(rows[i if len(rows) > 1 else 0].unsqueeze(1) for i in range(batch))
    if parts.splits > 1:
        rows = rows.expand(batch, -1, -1, -1)
    return (rows.flatten(0, 1).unsqueeze(1),)


def _masks(lengths: Tensor | None, tree: DraftTree | None, q: Tensor, keys: int, parts: Parts) -> tuple[Tensor, ...]:
    """Returns the masks of new tokens after a cache, shared by layers that pass the same lengths, or none."""
    if not torch.compiler.is_compiling() and torch.is_inference_mode_enabled():
        # Plans are kept only with tensors that count their versions, and calls with gradients use the kept trees too.
        with torch.inference_mode(False):
            return _masks(lengths, tree, q, keys, parts)
    numbers: dict[str, Any] = {"tree": tree, "batch": q.shape[0], "rows": q.shape[1], "keys": keys, "parts": parts}
    if lengths is not None:
        return shared(_masks_of_lengths, (lengths,), **numbers)
    if is_traced():
        return _masks_of_lengths(_all_keys(keys, q.device), **numbers)
    device = q.device
    capture = capture_of(device.index, current_stream(device.index)) if q.is_cuda else 0
    return _constant_masks(device, capture, tuple(numbers.items()))


def _all_keys(keys: int, device: torch.device) -> Tensor:
    return torch.full((1,), keys, dtype=torch.int64, device=device)


@functools.lru_cache(maxsize=32)
def _constant_masks(device: torch.device, capture: int, numbers: tuple[tuple[str, Any], ...]) -> tuple[Tensor, ...]:
    """Masks made in the capture of a CUDA graph belong to it: no other capture has its number."""
    named = dict(numbers)
    return _masks_of_lengths(_all_keys(named["keys"], device), **named)


def _masks_of_lengths(
    lengths: Tensor, *, tree: DraftTree | None, batch: int, rows: int, keys: int, parts: Parts
) -> tuple[Tensor, ...]:
    # The node of each column: below 0 a token before the new ones, from `rows` on beyond the request.
    node = torch.arange(rows, rows + keys, device=lengths.device) - lengths[:, None]
    if tree is None:
        first = node.clamp_(0, rows).int()
        visible = torch.stack([torch.full_like(first, rows), first], -1)
    else:
        visible = _on_device(tree, lengths.device).visible[node.clamp_(-1, rows).add_(1)]
    return masks_of_parts(visible[:, None], batch=batch, parts=parts)


class _Tree(NamedTuple):
    """A tree on a device."""

    order: Tensor
    """The node at each position of the depth-first order, int64 [nodes]."""
    position: Tensor
    """The position of each node in that order, int64 [nodes]."""
    visible: Tensor
    """int32 [nodes + 2, 2] for a token before the nodes, each node, and any column beyond: the row from which on it is
    masked, and the row before which it is masked."""


def _made(tree: DraftTree, device: torch.device) -> _Tree:
    rows = len(tree.position)
    order = sorted(range(rows), key=tree.position.__getitem__)
    visible = [(rows, 0), *zip(tree.end, tree.position, strict=True), (0, rows)]
    return _Tree(
        torch.tensor(order, device=device),
        torch.tensor(tree.position, device=device),
        torch.tensor(visible, dtype=torch.int32, device=device),
    )


_kept: dict[tuple[DraftTree, torch.device], _Tree] = {}
_KEPT_AT_MOST = 64
# A CUDA graph reads its trees whenever it runs, so they stay.
_captured: dict[tuple[DraftTree, torch.device], _Tree] = {}


def _on_device(tree: DraftTree, device: torch.device) -> _Tree:
    if is_traced():
        return _made(tree, device)
    key = tree, device
    found = _captured.get(key) or _kept.get(key)
    capturing = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
    if found is None:
        if capturing:
            raise RuntimeError(
                "a CUDA graph is being captured, and its tree, which is on the host, is not on the device yet; run "
                "once with the tree before the capture"
            )
        while len(_kept) >= _KEPT_AT_MOST:
            _kept.pop(next(iter(_kept)))
        found = _kept[key] = _made(tree, device)
    if capturing:
        _captured[key] = found
    return found
