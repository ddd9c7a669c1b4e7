# SPDX-License-Identifier: Apache-2.0
"""Masks of sparse attention: hashed, dropped and evicted tokens, BigBird, neighbourhoods, factorised patterns."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from flashmask._abi import structs as s
from flashmask._abi.library import create
from flashmask._arguments import IntArray, array, described, integer, integers, items, length, pairs, pointer, structs
from flashmask._graph_break import breaks_graph
from flashmask._mask import Mask

if TYPE_CHECKING:
    from flashmask._arguments import AnyArray, Integers, Pairs


class NeighbourhoodAxis(NamedTuple):
    """One axis of a grid of tokens: a token sees `kernel` tokens along it, `dilation` apart.

    They are the nearest tokens of its own residue modulo the dilation: at a border the window shifts inwards and keeps
    its size. kernel * dilation is at most the length; an even kernel reaches further to the left.
    """

    length: int
    kernel: int
    dilation: int = 1


def _of_heads(values: IntArray) -> IntArray:
    """Returns values [heads, tokens]; [tokens] become one head."""
    return values.reshape(1, -1) if values.ndim == 1 else values


@breaks_graph
def qk_sparse_segments(tokens: int, dropped: Pairs) -> Mask:
    """Causal, without the scores inside dropped segments (family 10).

    `dropped` [count, 2] are disjoint half-open ranges (begin, end). Their tokens see only what lies before the segment,
    and later tokens see them.
    """
    given = pairs("dropped", dropped)
    return Mask(create("mask_qk_sparse_segments", length("tokens", tokens), structs(given, s.Span), len(given)))


@breaks_graph
def hash_sparse_sorted(queries: Pairs, keys: Pairs) -> Mask:
    """A row sees the keys of its bucket at positions not after its own (family 11).

    `queries` [rows, 2] and `keys` [columns, 2] hold (bucket, position), sorted in that order. Pagliardini et al. 2023
    (SCFA); in the original order of the tokens: scfa_hash_sparse.
    """
    rows, columns = pairs("queries", queries), pairs("keys", keys)
    return Mask(
        create(
            "mask_hash_sparse_sorted",
            structs(rows, s.HashedToken),
            len(rows),
            structs(columns, s.HashedToken),
            len(columns),
        )
    )


@breaks_graph
def random_eviction(tokens: int, evicted_at: Integers) -> Mask:
    """Causal; column j is masked from row evicted_at[head][j] on, `tokens` = never (family 12).

    `evicted_at` is [tokens] or [heads, tokens].
    """
    given = _of_heads(integers("evicted_at", evicted_at, ndim=(1, 2)))
    total = length("tokens", tokens)
    if given.shape[1] != total:
        raise ValueError(f"evicted_at has {given.shape[1]} columns, tokens is {total}; expected one value per token")
    return Mask(create("mask_random_eviction", total, pointer(given), given.shape[0]))


@breaks_graph
def big_bird(
    tokens: int,
    *,
    block: int = 64,
    window_blocks: int = 1,
    global_blocks: int = 2,
    random_blocks: int = 3,
    heads: int = 1,
    seed: int = 0,
) -> Mask:
    """BigBird: each block of `block` tokens sees a window, global blocks and random ones.

    The window is `window_blocks` on either side of its own block. The first `global_blocks` see and are seen by all.
    `random_blocks` others are drawn without repetition, separately for each of `heads` mask heads; `seed`, an unsigned
    integer, gives the same blocks on every platform. Zaheer et al. 2020 (Big Bird), section 2.
    """
    pattern = s.BigBird(
        integer("block", block, minimum=1),
        length("window_blocks", window_blocks),
        length("global_blocks", global_blocks),
        length("random_blocks", random_blocks),
        integer("heads", heads, minimum=1),
        integer("seed", seed, minimum=0, maximum=2**64 - 1),
    )
    return Mask(create("mask_big_bird", length("tokens", tokens), ctypes.byref(pattern)))


@breaks_graph
def neighbourhood(axes: Iterable[NeighbourhoodAxis | tuple[int, ...]]) -> Mask:
    """Neighbourhood attention over any number of axes, the last of which runs fastest through the sequence.

    An axis is (length, kernel) or (length, kernel, dilation), as in NeighbourhoodAxis. Hassani et al. 2023
    (Neighborhood Attention Transformer), section 3.
    """
    given = items("axes", axes, "axes (length, kernel[, dilation])")
    return _neighbourhood([_axis(f"axes[{k}]", axis) for k, axis in enumerate(given)])


@breaks_graph
def neighbourhood_2d(height: NeighbourhoodAxis | tuple[int, ...], width: NeighbourhoodAxis | tuple[int, ...]) -> Mask:
    """neighbourhood() over two axes (length, kernel[, dilation])."""
    return _neighbourhood([_axis("height", height), _axis("width", width)])


@breaks_graph
def neighbourhood_3d(
    depth: NeighbourhoodAxis | tuple[int, ...],
    height: NeighbourhoodAxis | tuple[int, ...],
    width: NeighbourhoodAxis | tuple[int, ...],
) -> Mask:
    """neighbourhood() over three axes (length, kernel[, dilation])."""
    return _neighbourhood([_axis("depth", depth), _axis("height", height), _axis("width", width)])


def _axis(name: str, axis: object) -> list[int]:
    if not isinstance(axis, Sequence) or isinstance(axis, str) or len(axis) not in (2, 3):
        raise TypeError(f"{name} is {described(axis)}; expected (length, kernel) or (length, kernel, dilation)")
    sizes = dict(zip(NeighbourhoodAxis._fields, (*axis, 1), strict=False))
    return [integer(f"{name}.{field}", size) for field, size in sizes.items()]


def _neighbourhood(axes: list[list[int]]) -> Mask:
    given = (s.NeighbourhoodAxis * len(axes))(*(s.NeighbourhoodAxis(*axis) for axis in axes))
    return Mask(create("mask_neighbourhood", given, len(given)))


@breaks_graph
def strided_factorised(tokens: int, stride: int) -> Mask:
    """Causal: the last `stride` columns before self and every stride-th before those, both factors in one mask.

    Child et al. 2019 (Sparse Transformers), section 4.3.
    """
    return Mask(create("mask_strided_factorised", length("tokens", tokens), integer("stride", stride, minimum=1)))


@breaks_graph
def fixed_factorised(tokens: int, stride: int, summary: int) -> Mask:
    """Causal: the row's own block of `stride` columns and the last `summary` columns of every block, in one mask.

    Child et al. 2019 (Sparse Transformers), section 4.3.
    """
    return Mask(
        create(
            "mask_fixed_factorised",
            length("tokens", tokens),
            integer("stride", stride, minimum=1),
            length("summary", summary),
        )
    )


@breaks_graph
def scfa_hash_sparse(query_buckets: Integers, key_buckets: Integers) -> Mask:
    """A row sees the keys of its bucket at positions not after its own, aligned bottom-right.

    `query_buckets` [rows] or [heads, rows], `key_buckets` [columns] or [heads, columns]. Pagliardini et al. 2023
    (SCFA).
    """
    queries = _of_heads(integers("query_buckets", query_buckets, ndim=(1, 2)))
    keys = _of_heads(integers("key_buckets", key_buckets, ndim=(1, 2)))
    _same_heads("query_buckets", queries, "key_buckets", keys)
    heads, rows = queries.shape
    return Mask(create("mask_scfa_hash_sparse", pointer(queries), pointer(keys), rows, keys.shape[1], heads))


@breaks_graph
def scfa_qk_sparse(kept_queries: AnyArray | Sequence[bool], kept_keys: AnyArray | Sequence[bool]) -> Mask:
    """Causal among what is kept, aligned bottom-right: dropped queries see nothing, no query sees a dropped key.

    `kept_queries` [rows] or [heads, rows], `kept_keys` [columns] or [heads, columns]: booleans, or 0 and 1. Pagliardini
    et al. 2023 (SCFA).
    """
    queries, keys = _kept("kept_queries", kept_queries), _kept("kept_keys", kept_keys)
    _same_heads("kept_queries", queries, "kept_keys", keys)
    heads, rows = queries.shape
    return Mask(
        create(
            "mask_scfa_qk_sparse",
            pointer(queries, ctypes.c_uint8),
            pointer(keys, ctypes.c_uint8),
            rows,
            keys.shape[1],
            heads,
        )
    )


def _kept(name: str, value: object) -> AnyArray:
    """Returns uint8 [heads, tokens], 1 = kept."""
    kept = np.asarray(value) if isinstance(value, (list, tuple)) else array(name, value)
    if kept.size and kept.dtype.kind not in "biu":
        raise TypeError(f"{name} holds {kept.dtype} values; expected booleans, or 0 and 1")
    if kept.ndim not in (1, 2):
        raise ValueError(f"{name} has {kept.ndim} dimensions, shape {list(kept.shape)}; expected 1 or 2")
    if kept.size and not np.isin(kept, (0, 1)).all():
        raise ValueError(f"{name} holds other values than 0 and 1; expected 1 = kept, 0 = dropped")
    return np.ascontiguousarray(kept.reshape(-1, kept.shape[-1]), np.uint8)


def _same_heads(one: str, a: AnyArray, other: str, b: AnyArray) -> None:
    if a.shape[0] != b.shape[0]:
        raise ValueError(f"{one} has {a.shape[0]} heads, {other} has {b.shape[0]}; expected as many of each")
