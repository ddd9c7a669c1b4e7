# SPDX-License-Identifier: Apache-2.0
"""The tokens that a short convolution needs beside those that a rank holds: their predecessors on other ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flashmask._arguments import IntArray
from flashmask._nodes import Nodes
from flashmask.distributed._exchange import Exchange
from flashmask.distributed._runs import Runs, union, within


@dataclass(frozen=True)
class Near:
    """A rank's tokens and up to `width` - 1 predecessors of each."""

    exchange: Exchange
    """Brings them together."""
    nodes: Nodes
    """What of the nodes lies among them, each counted among them; a token without its predecessor here begins one."""
    held: Runs
    """Where the tokens that the rank holds lie among them."""


def near_of(nodes: Nodes, runs: Sequence[Runs], rank: int, width: int) -> Near:
    """Returns a rank's tokens and their predecessors; `nodes` are those of the whole batch, `runs` what ranks hold."""
    wanted = _with_predecessors(nodes, runs, width)
    exchange = Exchange.of(rank, runs, wanted)
    return Near(exchange, _among(nodes, _length(runs), exchange.runs), within(exchange.runs, runs[rank]))


def _length(runs: Sequence[Runs]) -> int:
    return max((of_rank[-1][1] for of_rank in runs if of_rank), default=0)


def _with_predecessors(nodes: Nodes, runs: Sequence[Runs], width: int) -> list[Runs]:
    """Returns what each rank computes with: the tokens of `runs`, and those up to `width` - 1 before them in nodes."""
    length = _length(runs)
    holders = np.empty(length, np.int64)
    for rank, of_rank in enumerate(runs):
        for begin, end in of_rank:
            holders[begin:end] = rank
    of_tokens = np.tile(holders, nodes.tokens // max(length, 1))
    # A chain of predecessors leaves a rank at few tokens; from there on each step is one of all these chains.
    before = nodes.predecessors
    leaves = np.flatnonzero((before >= 0) & (of_tokens[before] != of_tokens))
    asking, at = of_tokens[leaves], before[leaves]
    found: list[IntArray] = []
    for _ in range(width - 1):
        found.append(np.stack([asking, at % max(length, 1)], 1))
        at = before[at]
        asking, at = asking[at >= 0], at[at >= 0]
    pairs = np.unique(np.concatenate(found), axis=0) if found else np.empty((0, 2), np.int64)
    return [
        union(of_rank, [(token, token + 1) for token in pairs[pairs[:, 0] == rank, 1].tolist()])
        for rank, of_rank in enumerate(runs)
    ]


def _among(nodes: Nodes, length: int, runs: Runs) -> Nodes:
    """Returns nodes of the tokens in `runs` alone, in each batch entry; roots, whatever lies above them."""
    chosen = np.concatenate([np.arange(begin, end) for begin, end in runs] or [np.empty(0, np.int64)])
    batch = nodes.tokens // max(length, 1)
    places = np.full(length + 1, -1, np.int64)  # of no token: none
    places[chosen] = np.arange(len(chosen))
    entries = np.arange(batch)[:, None]
    whole = (chosen + entries * length).reshape(-1)
    before = nodes.predecessors[whole].reshape(batch, -1)
    local = places[np.where(before < 0, length, before - entries * length)]
    predecessors = np.where(local < 0, -1, local + entries * len(chosen)).reshape(-1)
    real = np.ones(nodes.tokens, bool)
    real[nodes.padding] = False
    real = real[whole]
    begins = real & (predecessors != np.arange(len(whole)) - 1)
    begins[:1] = real[:1]  # the predecessor of none is -1 as well
    stops = np.append(begins | ~real, True)
    starts = np.flatnonzero(begins)
    ends = np.flatnonzero(stops)
    ends = ends[np.searchsorted(ends, starts, side="right")]
    roots = np.full(len(starts), -1, np.int64)
    return Nodes(len(whole), starts, ends, roots, roots + 1, predecessors)
