# SPDX-License-Identifier: Apache-2.0
"""decode_attention(): few queries per request against many keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, overload

from flashmask._arguments import check_dense, described, integer, is_tensor, sink_dtypes
from flashmask._draft_tree import draft_tree
from flashmask._options import DecodeArguments, options_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor
    from typing_extensions import Unpack

    from flashmask._arguments import Integers
    from flashmask._mask import Mask

MOST_ROWS = 256


@overload
def decode_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lengths: Tensor | Sequence[int] | None = None,
    tree: Integers | Mask | None = None,
    *,
    return_lse: Literal[False] = False,
    splits: int | None = None,
    **options: Unpack[DecodeArguments],
) -> Tensor: ...
@overload
def decode_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lengths: Tensor | Sequence[int] | None = None,
    tree: Integers | Mask | None = None,
    *,
    return_lse: Literal[True],
    splits: int | None = None,
    **options: Unpack[DecodeArguments],
) -> tuple[Tensor, Tensor]: ...
@overload
def decode_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lengths: Tensor | Sequence[int] | None = None,
    tree: Integers | Mask | None = None,
    *,
    return_lse: bool,
    splits: int | None = None,
    **options: Unpack[DecodeArguments],
) -> Any: ...
def decode_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lengths: Tensor | Sequence[int] | None = None,
    tree: Integers | Mask | None = None,
    *,
    return_lse: bool = False,
    splits: int | None = None,
    **options: Unpack[DecodeArguments],
) -> Any:
    """Computes attention of each request's last tokens to its cache: decoding, and verifying drafted tokens.

    Keys are split into parts that are computed side by side and merged (Flash-Decoding, Dao et al. 2023); query heads
    that share a key head become rows of one tile. The result is that of attention() under the same mask, except for the
    order of sums.

    Args:
        q: (batch, rows, query heads, head dim), 1 to 256 rows: the new tokens of each request. A torch tensor as
            attention() takes it.
        k: (batch, key length, kv heads, head dim): the cache, in which the new tokens' keys come last.
        v: (batch, key length, kv heads, value dim).
        lengths: how many keys each request has, including the new tokens: int32 or int64 [batch] on the device of q,
            which the host does not read, or a sequence of ints; 0 to key length, which is checked on the CPU. Keys past
            a request's length are never seen, whatever finite numbers they hold, and a request of length 0 sees
            nothing. None: all keys.
        tree: None: the new tokens are causal, row i is token lengths - rows + i. Otherwise the rows are nodes of a tree
            or forest; each sees all tokens before the nodes, its ancestors and itself. Either parents [rows] on the
            host, each an earlier row or -1, as masks.medusa_parents() returns them; or the Mask of masks.medusa_tree()
            or masks.tree_in_order() without a prefix.
        splits: how many parts the keys are split into; None: as many as keep the device busy.
        scale: factor on the scores; None: 1 / sqrt(head dim).
        sinks: one logit per query head that takes probability and has no value, [query heads], float32 or the dtype of
            q; a row that sees nothing has the lse of its sink alone.
        layout: "bshd" as above, or "bhsd": q, k, v and o are (batch, heads, sequence, head dim).
        return_lse: return (o, lse) rather than o.
        score: a change of scores, or its parts by keyword, as for attention(). A bias has the rows of q. ALiBi takes no
            positions: a node of a tree stands as far behind the cache as it has ancestors; it is made into a bias, a
            float32 for each query head, row and key. Tables by distance are not served.

    Returns:
        o (batch, rows, query heads, value dim), with `return_lse` also lse (batch, query heads, rows): what attention()
        returns. A row that sees nothing has o = 0 and lse = -inf. Differentiable in q, k, v, sinks and bias.

    Raises:
        ValueError, TypeError: an argument is not as described, or the arguments do not fit each other.
        NotImplementedError: no kernel serves the request.
    """
    layout = options.get("layout", "bshd")
    for name, each in (("q", q), ("k", k), ("v", v)):
        if not is_tensor(each):
            raise TypeError(f"{name} is {described(each)}; expected a torch tensor")
        check_dense(name, each)
        if each.ndim != 4:
            raise ValueError(
                f"{name} has shape {list(each.shape)}; expected four dimensions, as layout={layout!r} says"
            )
    from flashmask._torch.decode import decode

    given = options_of(decode_attention, options, DecodeArguments)
    if given.heads_first:
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
    _check(q, k, v, splits)
    nodes = None if tree is None else draft_tree(tree, q.shape[1])
    if given.sinks is not None:
        _check_sinks(given.sinks, q)
    o, lse = decode(q, k, v, lengths, nodes, splits, given, return_lse)
    if given.heads_first:
        o = o.transpose(1, 2)
    return (o, lse) if return_lse else o


def _check_sinks(sinks: object, q: Tensor) -> None:
    if not is_tensor(sinks):
        raise TypeError(f"sinks is {described(sinks)}; expected a torch tensor")
    given: Any = sinks
    if given.shape != (q.shape[2],):
        raise ValueError(f"sinks has shape {list(given.shape)}; expected [{q.shape[2]}], one for each query head")
    if str(given.dtype) not in ("torch.float32", str(q.dtype)):
        expected = sink_dtypes("torch.float32", str(q.dtype))
        raise TypeError(f"sinks holds {given.dtype} values; expected {expected}, the dtype of q")
    if given.device != q.device:
        raise ValueError(f"sinks is on {given.device}; expected {q.device}, the device of q")


def _check(q: Tensor, k: Tensor, v: Tensor, splits: int | None) -> None:
    batch, rows, heads, head_dim = q.shape
    if not 1 <= rows <= MOST_ROWS:
        raise ValueError(f"q has {rows} rows a request; expected 1 to {MOST_ROWS}: more are attention()'s")
    if k.shape[0] != batch or k.shape[3] != head_dim or k.shape[2] == 0 or heads % k.shape[2]:
        raise ValueError(
            f"k has shape {list(k.shape)} beside a q of {list(q.shape)}; expected ({batch}, keys, kv heads, "
            f"{head_dim}) with kv heads that divide {heads}"
        )
    if v.shape[:3] != k.shape[:3]:
        raise ValueError(
            f"v has shape {list(v.shape)}; expected ({batch}, {k.shape[1]}, {k.shape[2]}, value dim), as k"
        )
    if splits is not None:
        integer("splits", splits, minimum=1, maximum=max(1, k.shape[1]))
