# SPDX-License-Identifier: Apache-2.0
"""attention() for the tokens that a rank holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from flashmask._arguments import described, is_autocast
from flashmask._options import ScoreArguments, options_of
from flashmask._plans.call import Call
from flashmask._torch.attention import call_of
from flashmask._torch.dropout import seed_offset_of
from flashmask._torch.operators import forward as whole_forward
from flashmask._torch.schemas import Outputs
from flashmask._torch.shared import for_operators
from flashmask.distributed._checks import check_changes, entered
from flashmask.distributed._dropout import check_runs
from flashmask.distributed._make import MAIN
from flashmask.distributed._operators import TO_HEADS, TO_TOKENS, Given, exchange, forward, seed_operator
from flashmask.distributed._positions import with_own_positions
from flashmask.distributed._sharding import Sharding, check_plain
from flashmask.scores import ScoreChange

if TYPE_CHECKING:
    from typing_extensions import Unpack


class _Arguments(ScoreArguments, total=False):
    scale: float | None
    sinks: Tensor | None
    invariant: bool


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sharding: Sharding,
    *,
    mask: str = MAIN,
    return_lse: bool = False,
    dropout_p: float = 0.0,
    **options: Unpack[_Arguments],
) -> Any:
    """flashmask.attention() over a sequence that is spread over the ranks of a group; a collective.

    Differentiable once in q, k, v and sinks, through o and lse. Every rank calls it, in the same order as the others.

    Args:
        q: (batch, tokens that this rank holds, query heads, head dim), as Sharding.shard() gives them; on the CPU for
            a group with Gloo, on a GPU for one with NCCL.
        k: (batch, the same tokens, kv heads, head dim).
        v: (batch, the same tokens, kv heads, value dim).
        sharding: the Sharding that shard() returned.
        mask: name of one of the sharding's masks.
        scale: factor on the scores; None: 1 / sqrt(head dim).
        return_lse: return (o, lse) rather than o.
        dropout_p: probability with which an attention probability is dropped, in [0, 1). Decisions are those of one
            device that calls flashmask_attention() with the whole sequence: every rank draws a seed from torch's
            generator of the device, once per call, and all ranks use rank 0's. Under the scheme "rows" the tokens must
            be cut at tiles, as shard() does with aligned=True.
        sinks: logits as in flashmask.attention(): [query heads], the same on every rank, or [batch, query heads, tokens
            held]. A sink of a row is one term of the lse of the rank that holds it. Differentiable: the gradient of a
            rank is that of its tokens, or under the scheme "heads" that of its heads, to be added over the ranks as
            gradients of all parameters are.
        score: a change of scores, or its parts by keyword, as in flashmask.attention(); biases and tables by distance
            are refused. Slopes are the same on every rank, which takes those of its heads; distances are those in the
            whole sequence, or of positions [1 or batch, tokens held], as Sharding.shard() gives them.
        invariant: give every document the bits that it has alone, as flashmask.attention() does; under the scheme
            "heads", or on one rank.

    Returns:
        o (batch, tokens held, query heads, value dim); with `return_lse` also lse (batch, query heads, tokens held).

    Raises:
        ValueError, TypeError: an argument does not fit; on this rank alone, unless FLASHMASK_CHECK_RANKS is 1 in the
            environment, which makes all ranks compare their calls first.
        NotImplementedError: no kernel serves the call, `invariant` came with the scheme "rows", or a bias came.
    """
    given = options_of(attention, options, _Arguments, {"dropout": "dropout_p"}, dropout=dropout_p)
    _refuse_biases(given.score)
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        check_plain(name, tensor)
    if not isinstance(sharding, Sharding):
        raise TypeError(f"sharding is {described(sharding)}; expected what flashmask.distributed.shard() returns")
    sharding._known(mask)
    if given.invariant and sharding.ranks > 1 and sharding.scheme == "rows":
        raise NotImplementedError(
            'invariant=True came with a sharding by "rows", whose ranks add up a document\'s scores between tiles that '
            'begin where ranks do; make it by shard(..., scheme="heads")'
        )
    device = q.device.type
    if is_autocast(device) and q.dtype is not torch.float64:
        q, k, v = (each.to(torch.get_autocast_dtype(device)) for each in (q, k, v))
    deterministic = sharding.deterministic or torch.are_deterministic_algorithms_enabled()
    call = call_of(given)._replace(deterministic=deterministic)
    outputs: tuple[Tensor, ...]
    if sharding.ranks == 1:
        outputs = _whole(q, k, v, sharding, mask, call)
    elif sharding.scheme == "rows":
        outputs = _by_rows(q, k, v, sharding, mask, call)
    else:
        outputs = _by_heads(q, k, v, sharding, mask, call, return_lse)
    return outputs if return_lse else outputs[0]


def _refuse_biases(score: ScoreChange) -> None:
    if score.kind in ("bias", "distance_bias"):
        raise NotImplementedError(
            f"{score.kind} is {described(score.operands[0])}, and flashmask.distributed serves no biases: their rows "
            "and columns would have to be spread over the ranks as the tokens are; compute this layer on one device, "
            "or give what depends on distance alone and grows with it as alibi_slopes"
        )


def _by_rows(q: Tensor, k: Tensor, v: Tensor, sharding: Sharding, mask: str, call: Call) -> Outputs:
    where = sharding._tensors[mask], sharding._name
    if call.dropout:
        check_runs(sharding._runs, q, v)
        call = call._replace(seed_offset=_agreed_seed(q, sharding, mask, call.dropout))
    elif not torch.compiler.is_compiling() and sharding._locals[mask].alone:
        local, _ = entered(*where, (q, k, v), "forward", call)
        placed = with_own_positions(call, local, q.device)
        return whole_forward(q, k, v, placed._replace(mask=local.mask_tensor(call)))
    given = Given(*(getattr(call, name) for name in Given._fields))
    o, lse, *_ = forward(q, k, v, *where, call.scale, call.deterministic, sharding._kept[mask], *given)
    return o, lse


def _by_heads(
    q: Tensor, k: Tensor, v: Tensor, sharding: Sharding, mask: str, call: Call, with_lse: bool
) -> tuple[Tensor, ...]:
    where = sharding._tensors[mask], sharding._name, sharding.ranks
    check_changes(call, 0, q, k)
    q, k, v = exchange(TO_HEADS, TO_TOKENS, [q, k, v], *where, sharding.tokens)
    call = call._replace(sinks=_sinks_of_heads(call.sinks, sharding, where))
    if call.alibi_slopes is not None:
        call = _alibi_of_heads(call, call.alibi_slopes, sharding, where)
    o, lse = _whole(q, k, v, sharding, mask, call)
    if not with_lse:
        return tuple(exchange(TO_TOKENS, TO_HEADS, [o], *where, sharding._held))
    o, lse = exchange(TO_TOKENS, TO_HEADS, [o, lse.transpose(1, 2)], *where, sharding._held)
    return o, lse.transpose(1, 2)


def _sinks_of_heads(sinks: Tensor | None, sharding: Sharding, where: tuple[Any, ...]) -> Tensor | None:
    """Returns the sinks of the heads that this rank computes, for all tokens where they differ by row."""
    if sinks is None:
        return None
    if sinks.ndim == 1:
        return sinks.chunk(sharding.ranks)[sharding.rank].contiguous()
    (of_heads,) = exchange(TO_HEADS, TO_TOKENS, [sinks.transpose(1, 2)], *where, sharding.tokens)
    return of_heads.transpose(1, 2).contiguous()


def _alibi_of_heads(call: Call, slopes: Tensor, sharding: Sharding, where: tuple[Any, ...]) -> Call:
    """Returns the call with the slopes of the heads that this rank computes, and the positions of all tokens."""
    call = call._replace(alibi_slopes=slopes.chunk(sharding.ranks, -1)[sharding.rank].contiguous())
    if call.query_positions is None or call.key_positions is None:
        return call
    given = [each[:, :, None].expand(-1, -1, sharding.ranks) for each in (call.query_positions, call.key_positions)]
    rows, columns = (exchange(TO_HEADS, TO_TOKENS, [each], *where, sharding.tokens)[0] for each in given)
    return call._replace(query_positions=rows[..., 0], key_positions=columns[..., 0])


def _whole(q: Tensor, k: Tensor, v: Tensor, sharding: Sharding, mask: str, call: Call) -> Outputs:
    call = call._replace(mask=for_operators(sharding._whole_masks[mask].tensor))
    if call.dropout:
        seed = _agreed_seed(q, sharding, mask, call.dropout)
        call = call._replace(seed_offset=seed, dropout_place=sharding._place)
    return whole_forward(q, k, v, call)


def _agreed_seed(q: Tensor, sharding: Sharding, mask: str, dropout: float) -> Tensor:
    """Draws a seed on every rank and returns rank 0's: data loaders and hidden layers may draw differently by rank."""
    seed_offset = seed_offset_of(None, dropout, q.device)
    if sharding.ranks == 1:
        return seed_offset
    return seed_operator(seed_offset, dropout, q.detach(), sharding._tensors[mask], sharding._name)
