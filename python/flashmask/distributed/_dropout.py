# SPDX-License-Identifier: Apache-2.0
"""Dropout over ranks: decisions belong to the heads and tokens of the whole sequence, whoever computes them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from flashmask._abi.problem import make_problem
from flashmask._arguments import IntArray
from flashmask._torch.dropout import pack_place
from flashmask.distributed._local import Local
from flashmask.distributed._make import tile_of
from flashmask.distributed._runs import Runs, tokens

_TOKENS = 8  # columns that one draw decides about; places number rows and columns in such groups


def check_runs(runs: Sequence[Runs], q: Tensor, v: Tensor) -> None:
    """Refuses runs of any rank that do not begin at a tile: kernels read one place of rows and columns per tile."""
    head_dim = _head_dim(q, v)
    tile = tile_of(q.device.type, head_dim)
    for rank, of_rank in enumerate(runs):
        for begin, _ in of_rank:
            if begin % tile:
                raise ValueError(
                    f'dropout_p is not 0, and rank {rank} holds tokens from {begin} on; under the scheme "rows" runs '
                    f"of a rank have to begin at multiples of {tile} then: call shard() with aligned=True and "
                    f'head_dim={head_dim}, or with scheme="heads"'
                )


def _head_dim(q: Tensor, v: Tensor) -> int:
    """Returns the larger head dim, which decides the kernel and its tiles."""
    return max(q.shape[3], v.shape[3])


def place_of_rows(local: Local, heads: slice, q: Tensor, v: Tensor, *, owners: bool = False) -> Tensor | None:
    """Returns int32 [n] on q's device: where these query heads of a rank's part lie in the whole problem.

    `owners`: for the part with which a rank computes the gradients of its own keys. None if the part has no rows or
    no columns.
    """
    own = local.runs[local.rank]
    exchange = local.owners_rows if owners else local.columns
    assert exchange is not None
    rows, columns = (exchange.runs, own) if owners else (own, exchange.runs)
    if not tokens(rows) or not tokens(columns):
        return None
    head_dim = _head_dim(q, v)
    key = heads.start, heads.stop, q.device, head_dim, owners
    place = local.places.get(key)
    if place is None:
        place = local.places[key] = _place(local.heads[0], heads, rows, columns, q.device, head_dim)
    return place


def place_of_heads(local: Local, device: torch.device) -> Tensor:
    """Returns the place under the scheme "heads": all tokens, and the rank's share of the heads."""
    heads, whole = local.heads[0], [(0, local.tokens)]
    own = slice(local.rank * heads // local.ranks, (local.rank + 1) * heads // local.ranks)
    return _place(heads, own, whole, whole, device, 1)


def _place(all_heads: int, heads: slice, rows: Runs, columns: Runs, device: torch.device, head_dim: int) -> Tensor:
    shapes = [(1, tokens(runs), heads.stop - heads.start, head_dim) for runs in (rows, columns, columns)]
    problem = make_problem(shapes, "float32", None, 0.0)._replace(device=str(device))
    return pack_place(problem, heads.start, all_heads, _eights(rows), _eights(columns)).to(device)


def _eights(runs: Runs) -> IntArray:
    """Returns int32: for every eight tokens of the runs, which eight tokens of the sequence they are."""
    assert not any(begin % _TOKENS for begin, _ in runs)
    return np.concatenate([np.arange(begin // _TOKENS, -(-end // _TOKENS), dtype=np.int32) for begin, end in runs])
