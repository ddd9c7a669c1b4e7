# SPDX-License-Identifier: Apache-2.0
"""Layers with a state over ranks: convolutions by rows, recurrences by heads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from flashmask import recurrent
from flashmask._arguments import choice, described
from flashmask._linear_attention import linear_attention as of_whole
from flashmask._nodes import Nodes
from flashmask.distributed._checks import check_call
from flashmask.distributed._exchange import Exchange
from flashmask.distributed._group import Group
from flashmask.distributed._heads import HeadExchange, exchange_of, of_all_ranks, range_of
from flashmask.distributed._linear_rows import by_rows
from flashmask.distributed._local import Local
from flashmask.distributed._make import MAIN
from flashmask.distributed._near import Near, near_of
from flashmask.distributed._parcels import kinds_of, parts_of
from flashmask.distributed._sharding import Sharding, check_plain
from flashmask.recurrent._batch import nodes_of_batch

_BY = ("heads", "rows")


def causal_conv(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, sharding: Sharding, mask: str = MAIN
) -> Tensor:
    """flashmask.recurrent.causal_conv() over a sequence that is spread over the ranks of a group; a collective.

    Each rank convolves its tokens, and fetches those of their width - 1 predecessors that other ranks hold.

    x: (batch, tokens that this rank holds, channels), as Sharding.shard() gives them. weight, bias: as there, the same
    on every rank. sharding: what shard() returned. mask: name of one of its masks, whose nodes are meant.

    Returns (batch, tokens held, channels), for each token the bits of one device. Differentiable once. The gradients of
    weight and bias are those of this rank's tokens, to be added over the ranks as those of all parameters are.
    """
    _check_held("x", x, sharding)
    nodes = nodes_of_batch(sharding.nodes(mask), "the whole x", _whole(x, sharding))
    width = weight.shape[-1]
    near = nodes.kept(("near", width), lambda: near_of(nodes, sharding._runs, sharding.rank, width))
    if near.exchange.silent:
        return recurrent.causal_conv(x, weight, bias, nodes=near.nodes)
    local = sharding._locals[mask]
    fetched: Tensor = _Fetched.apply(x, near.exchange, local, sharding._group)  # type: ignore[no-untyped-call]
    return _held(recurrent.causal_conv(fetched, weight, bias, nodes=near.nodes), near)


def over_nodes(
    run: Callable[..., Any],
    sharding: Sharding,
    *inputs: Tensor | None,
    parameters: Sequence[Tensor | None] = (),
    mask: str = MAIN,
) -> Tensor:
    """flashmask.recurrent.over_nodes() over a sequence that is spread over the ranks of a group; a collective.

    One exchange gives every rank the inputs of all tokens for its share of the heads, with which it calls `run` as one
    device would; another one brings the outputs of its tokens back, of all heads.

    Args:
        run: as in flashmask.recurrent.over_nodes(), called with the heads of this rank and, if there are `parameters`,
            with these as a keyword. Its output is (1, tokens, heads of this rank, ...).
        sharding: what shard() returned.
        inputs: tensors (batch, tokens that this rank holds, heads, ...), or None. Some may have fewer heads, a divisor
            of the most: groups whose heads follow each other, such as the keys of several value heads, or B and C of
            Mamba-2. Ranks get the groups that their heads need; where heads of a group are on several ranks, in
            unequal numbers, a rank gets the group once for each of its heads.
        parameters: tensors (heads, ...), or None, the same on every rank: A, D and bias of time steps. Each rank takes
            those of its heads; their gradients are to be added over the ranks as those of all parameters are.
        mask: name of one of the sharding's masks, whose nodes are meant.

    Returns the output, (batch, tokens held, heads, ...). Differentiable once; gradients of groups that several ranks
    need are added in the order of the ranks.

    Raises ValueError where there are fewer heads than ranks, or where heads do not fit.
    """
    bound = _with_nodes(run, sharding.nodes(mask))
    return _by_heads(bound, sharding, mask, inputs, parameters)


def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_forget: Tensor | None = None,
    log_input: Tensor | None = None,
    *,
    sharding: Sharding,
    mask: str = MAIN,
    normalize: bool = False,
    scale: float | None = None,
    by: str = "heads",
) -> Tensor:
    """flashmask.linear_attention() over a sequence that is spread over the ranks of a group; a collective.

    Tensors are (batch, tokens that this rank holds, ...) or, of log_forget, (heads), the same on every rank.

    by: "heads": each rank computes with a share of the heads, between two exchanges, as in over_nodes(). "rows": each
        rank keeps its tokens and all heads, and one state per head passes from rank to rank, which takes a second
        walk of documents that go on on the next rank: for fewer heads than ranks, and long documents. Serves one run of
        tokens per rank, partition="contiguous", and masks that do not fork.

    Returns o (batch, tokens held, heads, value dim), by heads on CPUs with the bits of one process: on a GPU the number
    of heads decides where sums are cut. Differentiable once.

    Raises ValueError by rows where ranks hold several runs, or where sequences fork.
    """
    _check_is_sharding(sharding)
    whole = sharding.masks[sharding._known(mask)]
    if _BY[choice("by", by, _BY)] == "rows" and sharding.ranks > 1:
        of_rows = q, k, v, log_forget, log_input
        for name, each in zip(("q", "k", "v", "log_forget", "log_input"), of_rows, strict=True):
            if each is not None and not (name == "log_forget" and each.ndim == 1):
                _check_held(name, each, sharding)
        return by_rows(sharding, mask, of_rows, normalize, scale)
    of_heads = log_forget is not None and log_forget.ndim == 1

    def compute(*given: Tensor | None, parameters: Sequence[Tensor | None]) -> Tensor:
        q, k, v, inside, *of_tokens = given
        forget = parameters[0] if of_heads else of_tokens[0]
        found: Tensor = of_whole(q, k, v, forget, inside, whole, normalize=normalize, scale=scale)
        return found

    inputs = (q, k, v, log_input) if of_heads else (q, k, v, log_input, log_forget)
    return _by_heads(compute, sharding, mask, inputs, (log_forget if of_heads else None,))


def _with_nodes(run: Callable[..., Any], nodes: Nodes) -> Callable[..., Tensor]:
    def compute(*inputs: Tensor | None, parameters: Sequence[Tensor | None]) -> Tensor:
        bound = partial(run, parameters=parameters) if parameters else run
        found: Tensor = recurrent.over_nodes(bound, nodes, *inputs)
        return found

    return compute


def _by_heads(
    compute: Callable[..., Tensor],
    sharding: Sharding,
    mask: str,
    inputs: Sequence[Tensor | None],
    parameters: Sequence[Tensor | None],
) -> Tensor:
    """Calls compute(*inputs, parameters=) with all tokens of this rank's heads; returns its tokens of all heads."""
    share = _share_of(sharding, mask, inputs, parameters)
    if sharding.ranks == 1:
        return compute(*inputs, parameters=parameters)
    begin, end = share.heads
    mine = [None if each is None else each[begin:end] for each in parameters]
    given = [each for each in inputs if each is not None]
    exchanged = iter(_ToHeads.apply(sharding, share.exchange, *given))  # type: ignore[no-untyped-call]
    whole = [
        None if each is None else _repeated(next(exchanged), times)
        for each, times in zip(inputs, share.times, strict=True)
    ]
    output = compute(*whole, parameters=mine)
    if output.ndim < 3 or output.shape[2] != end - begin:
        raise ValueError(
            f"run() returned shape {list(output.shape)}; expected (1, tokens, {end - begin}, ...), the heads of "
            f"rank {sharding.rank}"
        )
    back = exchange_of(sharding._locals[mask], of_all_ranks([output], [share.of_all]), share.of_all)
    held: tuple[Tensor] = _ToTokens.apply(sharding, back, output)  # type: ignore[no-untyped-call]
    return held[0]


class _Share(NamedTuple):
    """What a rank computes of a layer: made once per shapes of its inputs, which passed the checks."""

    of_all: int
    """Heads of the layer."""
    heads: tuple[int, int]
    """Range of this rank's."""
    times: list[list[int] | None]
    """For each input, how many heads each of its groups is repeated for; None: as it comes."""
    exchange: HeadExchange


def _share_of(
    sharding: Sharding, mask: str, inputs: Sequence[Tensor | None], parameters: Sequence[Tensor | None]
) -> _Share:
    _check_is_sharding(sharding)
    key = (
        tuple([None if each is None else (type(each), each.dtype, each.shape) for each in inputs]),
        tuple([None if each is None else len(each) for each in parameters]),
    )
    local = sharding._locals[sharding._known(mask)]
    found: _Share | None = local.exchanges.get(key)
    if found is None:
        found = local.exchanges[key] = _make_share(sharding, local, inputs, parameters)
    return found


def _make_share(
    sharding: Sharding, local: Local, inputs: Sequence[Tensor | None], parameters: Sequence[Tensor | None]
) -> _Share:
    given = [each for each in inputs if each is not None]
    for place, each in enumerate(inputs):
        if each is not None:
            _check_held(f"input {place}", each, sharding)
    heads = _count_of_heads(given, parameters, sharding)
    own = range_of(heads, heads, sharding.rank, sharding.ranks)
    times = [None if each is None else _times(each.shape[2], heads, own) for each in inputs]
    return _Share(heads, own, times, exchange_of(local, kinds_of(given), heads))


# ---- checks ----


def _check_is_sharding(sharding: Sharding) -> None:
    if not isinstance(sharding, Sharding):
        raise TypeError(f"sharding is {described(sharding)}; expected what flashmask.distributed.shard() returns")


def _check_held(name: str, tensor: Tensor, sharding: Sharding) -> None:
    _check_is_sharding(sharding)
    check_plain(name, tensor)
    if tensor.ndim < 3 or tensor.shape[1] != sharding._held:
        raise ValueError(
            f"{name} has shape {list(tensor.shape)}; expected (batch, {sharding._held}, ...), the tokens that rank "
            f"{sharding.rank} holds"
        )


def _whole(tensor: Tensor, sharding: Sharding) -> Tensor:
    """Returns a tensor without memory, (batch, all tokens)."""
    return torch.empty(tensor.shape[0], sharding.tokens, device="meta")


def _count_of_heads(given: Sequence[Tensor], parameters: Sequence[Tensor | None], sharding: Sharding) -> int:
    if not given:
        raise ValueError("over_nodes: there are no inputs; expected at least one tensor (batch, tokens held, heads)")
    heads = max(each.shape[2] for each in given)
    for each in given:
        if not each.shape[2] or heads % each.shape[2]:
            raise ValueError(
                f"an input has shape {list(each.shape)}; expected a number of heads that divides {heads}, the most"
            )
    for parameter in parameters:
        if parameter is not None and len(parameter) != heads:
            raise ValueError(f"a parameter has shape {list(parameter.shape)}; expected ({heads}, ...), the heads")
    if heads < sharding.ranks:
        raise ValueError(
            f"the layer has {heads} heads, and the sequence is spread over {sharding.ranks} ranks, each of which "
            "computes with some of them; spread it over fewer"
        )
    return heads


# ---- groups of heads ----


def _times(groups: int, heads: int, own: tuple[int, int]) -> list[int] | None:
    """Returns how many heads of a rank are in each of its groups, None where these are equally many."""
    begin, end = own
    size = heads // groups
    first, last = begin // size, -(-end // size)
    if last - first == 1 or (begin % size == 0 and end % size == 0):
        return None
    return [min(end, (at + 1) * size) - max(begin, at * size) for at in range(first, last)]


def _repeated(tensor: Tensor, times: list[int] | None) -> Tensor:
    """Returns (batch, tokens, groups, ...) as `run` takes it: each group once for each head if heads share unevenly."""
    if times is None:
        return tensor
    parts = zip(tensor.split_with_sizes([1] * len(times), 2), times, strict=True)
    return torch.cat([part.expand(-1, -1, count, *part.shape[3:]) for part, count in parts], 2)


# ---- exchanges with gradients ----


def _held(y: Tensor, near: Near) -> Tensor:
    parts = parts_of(y, near.held or [(0, 0)])
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


class _Fetched(torch.autograd.Function):
    """x (batch, tokens held, channels) -> (batch, tokens computed with, channels)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, exchange: Exchange, local: Local, group: Group) -> Tensor:
        check_call(local, group, [x], "fetch predecessors")
        ctx.exchange, ctx.where = exchange, (local, group)
        return exchange.fetch(group, [x.contiguous()])[0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        local, group = ctx.where
        check_call(local, group, [grad], "give gradients back")
        return ctx.exchange.give_back(group, [grad.clone()], apart=False)[0], None, None, None


class _ToHeads(torch.autograd.Function):
    """Tensors (batch, tokens held, heads, ...) -> (batch, all tokens, heads of this rank, ...)."""

    @staticmethod
    def forward(ctx: Any, sharding: Sharding, exchange: HeadExchange, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.sharding, ctx.exchange = sharding, exchange
        check_call(exchange.local, sharding._group, tensors, "states to heads")
        return tuple(exchange.to_heads(sharding._group, tensors))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        wanted = [place for place, needed in enumerate(ctx.needs_input_grad[2:]) if needed]
        chosen, group = [grads[place] for place in wanted], ctx.sharding._group
        check_call(ctx.exchange.local, group, chosen, "gradients to tokens")
        found = dict(zip(wanted, ctx.exchange.chosen(wanted).to_tokens(group, chosen), strict=True))
        return None, None, *(found.get(place) for place in range(len(grads)))


class _ToTokens(torch.autograd.Function):
    """Tensors (batch, all tokens, heads of this rank, ...) -> (batch, tokens held, heads, ...)."""

    @staticmethod
    def forward(ctx: Any, sharding: Sharding, exchange: HeadExchange, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.sharding, ctx.exchange = sharding, exchange
        check_call(exchange.local, sharding._group, tensors, "states to tokens")
        return tuple(exchange.to_tokens(sharding._group, tensors))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        group = ctx.sharding._group
        check_call(ctx.exchange.local, group, grads, "gradients to heads")
        return None, None, *ctx.exchange.to_heads(group, grads)
