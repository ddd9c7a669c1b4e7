# SPDX-License-Identifier: Apache-2.0
"""64 and 1,024 ranks in one process: the exchanges of all of them, and attention by rows, each rank in a thread."""

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import numpy as np
import pytest
import torch
import torch.distributed as dist

import flashmask
import flashmask.distributed as fmd
from flashmask import masks
from flashmask.distributed import _group
from flashmask.distributed._exchange import Exchange
from flashmask.distributed._make import MAIN, Options, make, runs_of
from flashmask.distributed._sharding import Sharding

pytestmark = pytest.mark.slow
HEADS, KV_HEADS, DIM, TILE = 2, 1, 8, 16


def documents(tokens):
    lengths = np.random.default_rng(1).integers(20, 900, tokens)
    return masks.causal_document(lengths[: np.searchsorted(lengths.cumsum(), tokens)], tokens)


FAMILIES = {
    "documents": documents,
    "causal": lambda n: masks.causal(n, n),
    "window": lambda n: masks.sliding_window(n, n, 100),
    "shared questions": lambda n: masks.shared_question([(n // 8, [n // 8, n // 4]), (n // 10, [n // 10] * 3)], n),
}


# ---- who sends what to whom ----


def numbers(runs):
    return np.concatenate([np.arange(begin, end) for begin, end in runs] or [np.empty(0, int)])


@pytest.mark.parametrize("family, division", [("documents", "balanced"), ("window", "zigzag")])
def test_every_token_wanted_of_1024_ranks_is_sent_once_and_lands_at_its_place(family, division):
    ranks, tokens = 1024, 1024 * 2 * TILE + 5
    mask = FAMILIES[family](tokens)
    partition = fmd.partition(mask, ranks, division, tile=TILE)
    needs = partition.needs(mask)
    held = [runs_of(partition.spans(rank)) for rank in range(ranks)]
    wanted = [runs_of(partition.local_columns(needs, rank)) for rank in range(ranks)]
    exchanges = [Exchange.of(rank, held, wanted) for rank in range(ranks)]
    received = [{rank: numbers(held[rank])} for rank in range(ranks)]
    for source, exchange in enumerate(exchanges):
        for to, runs in enumerate(exchange.sends):
            if runs:
                received[to][source] = numbers(held[source])[numbers(runs)]
    for rank, exchange in enumerate(exchanges):
        begin, end = np.searchsorted(needs[:, 0], [rank, rank + 1])
        fetched = (needs[begin:end, 3] - needs[begin:end, 2]).sum()
        assert sum(map(len, received[rank].values())) == exchange.held + fetched
        placed = [received[rank][source][begin:end] for source, begin, end in exchange.pieces]
        assert np.array_equal(np.concatenate(placed), numbers(wanted[rank]))
        assert not exchange.silent
    assert len(np.unique(needs[:, 0])) > ranks // 2


# ---- attention ----


class Handle(NamedTuple):
    """What stands for a process group of one rank."""

    rank: int


class Wire:
    """all_to_all between threads, in place of torch.distributed's."""

    def __init__(self, ranks):
        self.parcels = [None] * ranks
        self.meeting = threading.Barrier(ranks, timeout=10)

    def all_to_all_single(self, received, sent, received_splits, sent_splits, group):
        self.parcels[group.rank] = sent.split(sent_splits)
        self.meeting.wait()
        for part, source in zip(received.split(received_splits), self.parcels, strict=True):
            assert len(part) == len(source[group.rank])
            part.copy_(source[group.rank])
        self.meeting.wait()


@pytest.fixture
def on_every_rank(monkeypatch):
    """Calls a function with the group of each rank, side by side, and returns what all of them returned."""

    def call(ranks, function):
        wire = Wire(ranks)
        cpu = torch.device("cpu")
        groups = [_group.Group(f"rank {at}", at, ranks, partial(Handle, at), cpu) for at in range(ranks)]
        monkeypatch.setattr(dist, "all_to_all_single", wire.all_to_all_single)
        monkeypatch.setattr(_group, "checked_alive", lambda handle: handle)
        monkeypatch.setattr(_group, "_groups", {group.name: group for group in groups})

        def run(group):
            try:
                return function(group)
            except BaseException:
                wire.meeting.abort()
                raise

        with ThreadPoolExecutor(ranks) as pool:
            return list(pool.map(run, groups))

    return call


def results(compute, q, k, v, grad_o, grad_lse):
    """o, lse, and the gradients of q, k and v."""
    leaves = [each.detach().clone().requires_grad_() for each in (q, k, v)]
    o, lse = compute(*leaves)
    seen = torch.isfinite(lse)
    ((o * grad_o).sum() + (lse[seen] * grad_lse[seen]).sum()).backward()
    return [o.detach(), lse.detach(), *(each.grad for each in leaves)]


@pytest.mark.parametrize(
    "family, gradients",
    [*((family, "reduced") for family in FAMILIES), ("documents", "owner"), ("shared questions", "owner")],
)
def test_attention_over_64_ranks_is_that_of_one(family, gradients, on_every_rank):
    ranks, tokens = 64, 64 * 2 * TILE + 5
    mask = FAMILIES[family](tokens)
    torch.manual_seed(0)
    whole = [torch.randn(1, tokens, heads, DIM) for heads in (HEADS, KV_HEADS, KV_HEADS, HEADS)]
    whole.append(torch.randn(1, HEADS, tokens))
    expected = results(partial(flashmask.attention, mask=mask, return_lse=True), *whole)
    partition = fmd.partition(mask, ranks, tile=TILE)
    options = Options(HEADS, KV_HEADS, DIM, "rows", partition, False, True, gradients, False, 1)

    def on_rank(group):
        sharding = Sharding(group, make({MAIN: mask}, [1], group, options), options)
        local = [*sharding.shard(*whole[:4]), sharding.shard(whole[4], dim=2)]
        return sharding, results(partial(fmd.attention, sharding=sharding, return_lse=True), *local)

    found = on_every_rank(ranks, on_rank)
    assert sorted(torch.cat([sharding.positions for sharding, _ in found]).tolist()) == list(range(tokens))
    for sharding, mine in found:
        for place, (name, each, of_all) in enumerate(zip(("o", "lse", "dq", "dk", "dv"), mine, expected, strict=True)):
            of_one = sharding.shard(of_all, dim=2 if place == 1 else 1)
            torch.testing.assert_close(each, of_one, rtol=1e-4, atol=2e-5, msg=f"{name} of rank {sharding.rank}")
