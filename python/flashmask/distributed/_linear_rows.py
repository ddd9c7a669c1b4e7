# SPDX-License-Identifier: Apache-2.0
"""Linear attention over ranks by rows: each rank keeps its tokens, and states pass from rank to rank.

A rank first sums up its last document from a zero state, if that goes on on the next rank. One exchange gives all ranks
these sums and what each rank makes of a state that it is given, from which every rank finds the state that its first
document begins with; then it computes its tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from flashmask._linear_attention import LinearState
from flashmask._linear_attention import linear_attention as of_whole
from flashmask._mask import Mask
from flashmask._nodes import Nodes
from flashmask._nodes import nodes as nodes_of
from flashmask.distributed._checks import check_call
from flashmask.distributed._group import Group
from flashmask.distributed._lent import lend
from flashmask.distributed._local import Local
from flashmask.distributed._sharding import Sharding
from flashmask.recurrent._batch import nodes_of_batch, on_device

_LEAST = -(2.0**20)  # what linear_attention takes lower gates for


Inputs: TypeAlias = Sequence[Tensor | None]
"""q, k, v, and log_forget and log_input or None, of the tokens that a rank holds."""
Flags: TypeAlias = np.ndarray[Any, np.dtype[np.bool_]]


def by_rows(sharding: Sharding, mask: str, inputs: Inputs, normalize: bool, scale: float | None) -> Tensor:
    """Returns o (batch, tokens held, heads, value dim) of a rank's tokens; a collective if documents cross ranks."""
    q = inputs[0]
    assert q is not None
    nodes = nodes_of_batch(sharding.nodes(mask), "the whole q", torch.empty((len(q), sharding.tokens), device="meta"))
    chains: _Chains = nodes.kept(
        ("chains of ranks", sharding._name, sharding.rank, q.device),
        lambda: _chains_of(sharding, mask, nodes, len(q), q.device),
    )
    if not chains.goes_on.any():
        return _own(chains, inputs, None, normalize, scale)
    sums = _sums(chains, chains.goes_on[sharding.rank], inputs, normalize, scale)
    given = [each for each in inputs if each is not None]
    flat = torch.cat([each.reshape(-1) for each in sums])
    gathered: Tensor = _Gathered.apply(sharding._locals[mask], sharding._group, flat, *given)  # type: ignore[no-untyped-call]
    sizes = [each.numel() for each in sums]
    of_ranks = [
        _Sums(*[part.view(like.shape) for part, like in zip(each.split_with_sizes(sizes), sums, strict=True)])
        for each in gathered
    ]
    comes = bool(chains.comes[sharding.rank].any())
    first = _first_states(chains, sharding.rank, of_ranks, normalize) if comes else None
    o: Tensor = _Tied.apply(_own(chains, inputs, first, normalize, scale), gathered)  # type: ignore[no-untyped-call]
    return o


def _own(chains: _Chains, inputs: Inputs, first: LinearState | None, normalize: bool, scale: float | None) -> Tensor:
    """Returns o of this rank's tokens, given the states that its nodes begin with."""
    q, k, v, forget, inside = inputs
    assert q is not None and v is not None
    if chains.mask is None:  # no tokens
        nothing = sum(each.reshape(-1)[:0].sum() for each in inputs if each is not None)  # gradients: zeros, not None
        return v.new_empty((len(q), 0, max(q.shape[2], v.shape[2]), v.shape[3])) + nothing
    options: dict[str, Any] = {"normalize": normalize, "scale": scale}
    o: Tensor = of_whole(q, k, v, forget, inside, chains.mask, **options, initial_state=first)
    return o


# ---- which documents go on where ----


class _Chains(NamedTuple):
    """Which documents pass a state from rank to rank, and this rank's masks."""

    goes_on: Flags
    """Whether each rank's last document goes on on a later rank, (ranks, batch)."""
    comes: Flags
    """Whether each rank's first document began on an earlier rank."""
    spans: Flags
    """Whether each rank's tokens all lie in one document that both comes and goes on, or there are none."""
    mask: Mask | None = None
    """The mask of this rank's tokens; None where it holds none."""
    firsts: Tensor | None = None
    """The place of the first node of each batch entry that comes, among the nodes of this rank's tokens."""
    nodes: int = 0
    """How many these nodes are."""
    tail: int = 0
    """The first of this rank's tokens that lies in a document which goes on, in any batch entry."""
    tail_mask: Mask | None = None
    """The mask of the tokens from `tail` on."""
    lasts: Tensor | None = None
    """For each batch entry, the place of its last node among the nodes of these."""


def _chains_of(sharding: Sharding, mask: str, nodes: Nodes, batch: int, device: torch.device) -> _Chains:
    """Returns them, or raises where a state does not simply pass from a rank to the next one."""
    runs, tokens = sharding._runs, sharding.tokens
    held = [run for of_rank in runs for run in of_rank]
    if any(len(of_rank) > 1 for of_rank in runs) or held != sorted(held):
        raise ValueError(
            'by="rows" came to a sharding whose ranks hold several runs of tokens, or not in their order, and states '
            'pass from each rank to the next one; make it with partition="contiguous", or take by="heads"'
        )
    if nodes.depth > 1:
        raise ValueError(
            'by="rows" came with a mask under which sequences fork, and a rank passes on the state of its last '
            'document only; take by="heads", which serves shared prompts and trees'
        )
    follows = np.append((nodes.predecessors >= 0).reshape(batch, tokens), np.zeros((batch, 1), bool), 1)
    goes_on, comes, spans = (np.zeros((sharding.ranks, batch), bool) for _ in range(3))
    for rank, of_rank in enumerate(runs):
        for begin, end in of_rank:
            comes[rank], goes_on[rank] = follows[:, begin], follows[:, end]
        begin, end = of_rank[0] if of_rank else (0, 0)
        spans[rank] = follows[:, begin:end].all(1) & (goes_on[rank] | (begin == end))
    if not sharding._held:
        return _Chains(goes_on, comes, spans)
    own, length = runs[sharding.rank], sharding._held
    local = sharding.masks[mask].slice(own, own)
    of_own = _among(local, batch, length)
    firsts = np.searchsorted(of_own.begins, np.flatnonzero(comes[sharding.rank]) * length)
    ends = np.searchsorted(of_own.begins, (1 + np.arange(batch)) * length) - 1
    on = np.flatnonzero(goes_on[sharding.rank])
    chains = _Chains(goes_on, comes, spans, local, on_device(firsts, device), len(of_own))
    if not len(on):
        return chains
    tail = int((of_own.begins[ends[on]] - on * length).min())
    tail_mask = local if tail == 0 else local.slice([(tail, length)], [(tail, length)])
    of_tail = _among(tail_mask, batch, length - tail)
    lasts = np.searchsorted(of_tail.begins, (1 + np.arange(batch)) * (length - tail)) - 1
    return chains._replace(tail=tail, tail_mask=tail_mask, lasts=on_device(np.maximum(lasts, 0), device))


def _among(mask: Mask, batch: int, length: int) -> Nodes:
    return nodes_of_batch(nodes_of(mask), "q", torch.empty((batch, length), device="meta"))


# ---- states ----


class _Sums(NamedTuple):
    """What a rank makes of the state that it is given: e^log_forget times that, and its own."""

    state: Tensor
    """(batch, heads, key dim, value dim); what it stands for is e^log_scale times that."""
    normalizer: Tensor
    """(batch, heads, key dim), or without elements."""
    log_scale: Tensor
    """(batch, heads)."""
    log_forget: Tensor
    """(batch, heads): sums over all tokens of the rank."""


def _sums(chains: _Chains, goes_on: Flags, inputs: Inputs, normalize: bool, scale: float | None) -> _Sums:
    """Returns what a rank makes of a state; its own is zero where none of its documents goes on."""
    q, k, v, forget, _ = inputs
    assert q is not None and k is not None and v is not None
    batch, tokens, heads = len(q), q.shape[1], max(q.shape[2], v.shape[2])
    dtype = torch.float64 if q.dtype is torch.float64 else torch.float32
    zeros = torch.zeros((batch, heads), dtype=dtype, device=q.device)
    left = zeros
    if forget is not None:
        of_tokens = forget.expand(batch, tokens, heads) if forget.ndim == 1 else forget
        left = of_tokens.clamp(min=_LEAST).sum(1, dtype=torch.float64).to(dtype)
    sizes = batch, heads, q.shape[3], v.shape[3]
    if not goes_on.any():
        return _Sums(zeros.new_zeros(sizes), zeros.new_zeros(sizes[:3] if normalize else 0), zeros, left)
    tail = [each if each is None or each.ndim == 1 else each[:, chains.tail :] for each in inputs]
    options: dict[str, Any] = {"normalize": normalize, "scale": scale, "output_final_state": True}
    behind: LinearState = of_whole(tail[0], tail[1], tail[2], tail[3], tail[4], chains.tail_mask, **options)[1]
    last = chains.lasts
    normalizer = behind.normalizer.index_select(0, last) if normalize else zeros.new_zeros(0)
    return _Sums(behind.state.index_select(0, last), normalizer, behind.log_scale.index_select(0, last), left)


def _first_states(chains: _Chains, rank: int, sums: Sequence[_Sums], normalize: bool) -> LinearState:
    """Returns what each of this rank's nodes begins with: zero, but for the first ones of entries that come."""
    like = sums[rank]
    states = [each.new_zeros((chains.nodes, *each.shape[1:])) for each in like[:3]]
    assert chains.firsts is not None
    entries = np.flatnonzero(chains.comes[rank]).tolist()
    found = zip(*[_coming(chains, rank, entry, sums, normalize) for entry in entries], strict=True)
    state, normalizer, log_scale = (
        whole if part[0] is None else whole.index_copy(0, chains.firsts, torch.stack(part))
        for whole, part in zip(states, found, strict=True)
    )
    return LinearState(state, normalizer if normalize else None, log_scale)


def _coming(
    chains: _Chains, rank: int, entry: int, sums: Sequence[_Sums], normalize: bool
) -> tuple[Tensor | None, ...]:
    """Returns the state, normaliser and scale that an entry's first document has before this rank's tokens.

    Reads the ranks that hold this document, and no other's numbers, NaN or not.
    """
    first = rank - 1
    while chains.spans[first, entry]:
        first -= 1
    state, normalizer, scale, _ = (each[entry] if each.numel() else None for each in sums[first])
    assert state is not None and scale is not None
    scale = scale.detach()
    for each in sums[first + 1 : rank]:
        kept, own = scale + each.log_forget[entry], each.log_scale[entry].detach()
        scale = torch.maximum(kept.detach(), own)
        before, added = torch.exp(kept - scale), torch.exp(own - scale)
        state = before[:, None, None] * state + added[:, None, None] * each.state[entry]
        if normalizer is not None:
            normalizer = before[:, None] * normalizer + added[:, None] * each.normalizer[entry]
    return state, normalizer, scale


# ---- the exchange ----


class _Gathered(torch.autograd.Function):
    """What every rank gives, (numbers) -> (ranks, numbers); gradients are added in the order of the ranks.

    The inputs of the layer are inputs here too, so that the backward runs on every rank, whatever its numbers are.
    """

    @staticmethod
    def forward(ctx: Any, local: Local, group: Group, own: Tensor, *inputs: Tensor) -> Tensor:
        check_call(local, group, inputs, "states by rows")
        ctx.local, ctx.group, ctx.inputs = local, group, len(inputs)
        found = own.new_empty((group.size, own.numel()))
        dist.all_gather(list(found), own.detach(), group=group.handle)
        lend(own, found)
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        given = grad.contiguous()
        check_call(ctx.local, ctx.group, [given], "gradients of states by rows")
        found = torch.empty_like(given)
        dist.all_to_all_single(found.view(-1), given.view(-1), group=ctx.group.handle)
        lend(found, given)
        total = found[0]
        for each in found[1:]:
            total = total + each
        return None, None, total, *(None,) * ctx.inputs


class _Tied(torch.autograd.Function):
    """o, which depends on what was gathered, so that every rank takes part in the backward of that."""

    @staticmethod
    def forward(ctx: Any, o: Tensor, gathered: Tensor) -> Tensor:
        return o.view_as(o)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None  # zeros
