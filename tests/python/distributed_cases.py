# SPDX-License-Identifier: Apache-2.0
"""What test_distributed.py has every rank run: cases by name, in the order in which all ranks run them."""

import os
import re
import time
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.utils.checkpoint import checkpoint

import flashmask
import flashmask.distributed as fmd
import flashmask.operators
from flashmask import block_maps, masks
from flashmask._torch.dropout import seed_offset_of
from flashmask.distributed._operators import Given

HEADS, KV_HEADS, DIM = 4, 2, 16
SECONDS = 10
groups_to_destroy = []


class Case(NamedTuple):
    name: str
    ranks: int
    run: object


CASES = []


def case(*ranks, **arguments):
    """Runs a function with a group, and the rank in it, once for each number of ranks."""

    def add(function):
        name = function.__name__.replace("_", " ")
        if arguments:
            name += ", " + ", ".join(f"{key} {value}" for key, value in arguments.items())
        for count in ranks:
            CASES.append(Case(f"{name}, {count} ranks", count, partial(function, **arguments)))
        return function

    return add


def cases(ranks, **lists):
    """The same for each of the values of one argument."""
    ((name, values),) = lists.items()

    def add(function):
        for value in values:
            case(*ranks, **{name: value})(function)
        return function

    return add


# ---- against one process ----


def _dense(tokens, *heads):
    visible = np.random.default_rng(7).random((*heads, tokens, tokens)) < 0.02
    visible[..., 300:400] = False  # rows that see nothing, and columns that nobody sees below
    visible[..., 128:256] = False
    return masks.from_dense(visible)


def _many_documents(tokens):
    lengths = np.random.default_rng(3).integers(20, 90, tokens)
    return masks.causal_document(lengths[: np.searchsorted(lengths.cumsum(), tokens - 100)], tokens)


FAMILIES = {
    "full": lambda n: masks.full(n, n),
    "causal": lambda n: masks.causal(n, n),
    "documents": lambda n: masks.causal_document([n // 3, n // 5, n // 4], n),
    "short documents": _many_documents,
    "both ways": lambda n: masks.document([n // 3, n - n // 3], n),
    "shared questions": lambda n: masks.shared_question([(n // 8, [n // 8, n // 4]), (n // 10, [n // 10, n // 5])], n),
    "window": lambda n: masks.sliding_window(n, n, 150),
    "prefix": lambda n: masks.prefix_lm_causal(n, n // 2),
    "dilated": lambda n: masks.dilated_window(n, n, 30, 0, 7),
    "dense": _dense,
    "dense with batch and heads": lambda n: _dense(n, 2, HEADS),
    "heads of intervals": lambda n: masks.stack_heads([masks.causal(n, n), masks.sliding_window(n, n, 40)]),
    "blocks": lambda n: masks.from_block_map(block_maps.strided((n, n), 64, 3)),
    "nothing": lambda n: masks.from_dense(np.zeros((n, n), bool)),
}


def inputs(tokens, dtype, batch, dim=DIM, device="cpu"):
    """q, k, v and the gradients of o and lse of the whole problem, the same on every rank."""
    generator = torch.Generator().manual_seed(tokens)
    heads = (HEADS, KV_HEADS, KV_HEADS, HEADS)
    made = [torch.randn(batch, tokens, count, dim, generator=generator).to(device, dtype) for count in heads]
    grad_lse = torch.randn(batch, HEADS, tokens, generator=generator).to(device)
    return *made, grad_lse.double() if dtype is torch.float64 else grad_lse


def with_gradients(compute, q, k, v, grad_o, grad_lse):
    """o, lse, and the gradients of q, k and v."""
    leaves = [each.detach().clone().requires_grad_() for each in (q, k, v)]
    o, lse = compute(*leaves)
    seen = torch.isfinite(lse)
    ((o * grad_o).sum() + (lse[seen] * grad_lse[seen]).sum()).backward()
    return [o.detach(), lse.detach(), *(each.grad for each in leaves)]


def one_device(mask, dropout, deterministic):
    """attention() of the whole sequence as one process computes it."""
    if not dropout:
        return partial(flashmask.attention, mask=mask, return_lse=True, deterministic=deterministic)

    def attend(q, k, v):
        seed = seed_offset_of(None, dropout, q.device)
        return flashmask.operators.forward(q, k, v, mask.tensor, None, False, 0.0, dropout, seed, deterministic)

    return attend


NAMES = ("o", "lse", "grad_q", "grad_k", "grad_v")
TOLERANCE = {torch.float64: 1e-13, torch.float32: 2e-6, torch.bfloat16: 5e-4, torch.float16: 1e-4}


def hold_results(sharding, group, found, expected, tolerance, case, owner):
    """A rank's o, lse and gradients are those of one process: its bits where docs/several_gpus.md says so.

    owner: whether a rank computes the gradients of its own keys.
    """
    exact = owner or sharding.scheme == "heads" or group.size() == 1
    wrong = []
    for place, (name, mine, all_of_it) in enumerate(zip(NAMES, found, expected, strict=True)):
        of_one = sharding.shard(all_of_it, dim=2 if name == "lse" else 1)
        if exact or place < 3:
            wrong += [] if torch.equal(mine, of_one) else [f"{name} is not the bits of one process"]
        else:
            error = float((mine - of_one).double().norm() / all_of_it.double().norm().clamp(min=1e-30))
            wrong += [] if error <= tolerance else [f"{name} is {error} away"]
    raise_on_all_ranks(group, f"{sharding}, {case}: {', '.join(wrong)}" if wrong else "")


def hold_against_one_process(
    group, mask, dtype=torch.float32, batch=1, dim=DIM, device="cpu", wrap=None, dropout=0.0, **options
):  # fmt: skip
    """All results of a sharded call are those of flashmask.attention(), to the bit where that is promised.

    With dropout those that rank 0 would come to alone, whose generator is as far afterwards as it would be then.
    """
    tokens = mask.shape.rows
    whole = inputs(tokens, dtype, batch, dim, device)
    torch.manual_seed(5)
    expected = with_gradients(one_device(mask, dropout, options.get("deterministic", False)), *whole)
    drawn_next = torch.rand(1, device=device)
    sharding = fmd.shard(mask, group, query_heads=HEADS, kv_heads=KV_HEADS, head_dim=dim, **options)
    compute = partial(fmd.attention, sharding=sharding, return_lse=True, **({"dropout_p": dropout} if dropout else {}))
    local = [*sharding.shard(*whole[:4]), sharding.shard(whole[4], dim=2)]
    torch.manual_seed(5 + dist.get_rank(group))
    found = with_gradients(wrap(compute) if wrap else compute, *local)
    assert dist.get_rank(group) or torch.equal(torch.rand(1, device=device), drawn_next)
    hold_results(sharding, group, found, expected, TOLERANCE[dtype], str(dtype), options.get("gradients") == "owner")
    return sharding, found


class Wrong(AssertionError):
    """Results that are not what they should be, raised on all ranks of a group, which can go on with other cases."""


def raise_on_all_ranks(group, message):
    found = [""] * group.size()
    dist.all_gather_object(found, message, group=group)
    for rank, each in enumerate(found):
        if each:
            raise Wrong(f"rank {rank}: {each}")


PARTITIONS = ("balanced", "contiguous", "zigzag", "random")


def random_partition(tokens, ranks, tile=128):
    owners = np.random.default_rng(tokens + ranks).integers(0, ranks, -(-tokens // tile))
    runs = [(at * tile, min(tokens, (at + 1) * tile), int(rank)) for at, rank in enumerate(owners)]
    return fmd.Partition.from_runs(tokens, ranks, runs, tile=tile)


def aligned(partition, tokens, ranks):
    """Options of shard() for a partition at tiles."""
    if partition == "random":
        return {"partition": random_partition(tokens, ranks)}
    return {"partition": partition, "aligned": True}


@cases((3,), family=FAMILIES)
def rows_of_every_family_give_the_bits_of_one_process(group, rank, family):
    mask = FAMILIES[family](700)
    for place, partition in enumerate(PARTITIONS):
        gradients = ("reduced", "owner")[place % 2]
        options = aligned(partition, 700, group.size())
        hold_against_one_process(group, mask, batch=mask.shape.batch, scheme="rows", gradients=gradients, **options)


@cases((2,), family=[name for name in FAMILIES if name != "dense with batch and heads"])
def heads_of_every_family_give_the_bits_of_one_process(group, rank, family):
    mask = FAMILIES[family](500)
    for partition in ("balanced", "zigzag", "random"):
        hold_against_one_process(group, mask, scheme="heads", **aligned(partition, 500, group.size()))


@cases((2,), dtype=[torch.float32, torch.bfloat16, torch.float16, torch.float64])
def every_dtype(group, rank, dtype):
    mask = FAMILIES["shared questions"](500)
    for scheme in ("rows", "heads"):
        hold_against_one_process(group, mask, dtype, batch=2, scheme=scheme, partition="zigzag")
    if dtype is not torch.float64:
        hold_against_one_process(group, mask, dtype, batch=2, scheme="rows", gradients="owner", aligned=True)


@cases((1, 2, 4), tokens=[1, 127, 129, 1000])
def every_number_of_tokens(group, rank, tokens):
    """Lengths that do not divide, fewer tiles than ranks, ranks without a row."""
    for partition in ("balanced", "contiguous"):
        hold_against_one_process(group, masks.causal(tokens, tokens), scheme="rows", partition=partition, aligned=True)
    if group.size() < 4:
        hold_against_one_process(group, masks.causal(tokens, tokens), scheme="heads")


@cases((3,), family=["causal", "documents", "window", "dense with batch and heads"])
def dropout_by_rows_is_that_of_one_process(group, rank, family):
    mask = FAMILIES[family](700)
    for partition, gradients in (("balanced", "reduced"), ("random", "owner")):
        options = {"gradients": gradients, **aligned(partition, 700, group.size())}
        hold_against_one_process(group, mask, batch=mask.shape.batch, dropout=0.1, scheme="rows", **options)


@cases((2,), family=["causal", "documents", "window", "heads of intervals"])
def dropout_by_heads_is_that_of_one_process(group, rank, family):
    hold_against_one_process(group, FAMILIES[family](500), batch=2, dropout=0.1, scheme="heads", partition="zigzag")


@case(1, 2)
def documents_over_heads_have_the_bits_that_they_have_alone(group, rank):
    lengths = [100, 300, 1, 99]
    whole = inputs(500, torch.float32, 1)
    sharding = fmd.shard(masks.causal_document(lengths), group, query_heads=HEADS, kv_heads=KV_HEADS, head_dim=DIM,
                         scheme="heads", partition="zigzag")  # fmt: skip
    local = [*sharding.shard(*whole[:4]), sharding.shard(whole[4], dim=2)]
    found = with_gradients(partial(fmd.attention, sharding=sharding, return_lse=True, invariant=True), *local)
    begin, alone = 0, []
    for length in lengths:
        own = [each.narrow(2 if each.ndim == 3 else 1, begin, length) for each in whole]
        mask = masks.causal(length, length)
        alone.append(with_gradients(partial(flashmask.attention, mask=mask, return_lse=True, invariant=True), *own))
        begin += length
    wrong = []
    for name, mine, parts in zip(NAMES, found, zip(*alone, strict=True), strict=True):
        dim = 2 if name == "lse" else 1
        if not torch.equal(mine, sharding.shard(torch.cat(parts, dim), dim=dim)):
            wrong.append(f"{name} is not the bits of documents alone")
    raise_on_all_ranks(group, ", ".join(wrong))


@case(2)
def documents_over_rows_are_refused_their_bits(group, rank):
    sharding = fmd.shard(masks.causal(300, 300), group, query_heads=HEADS, kv_heads=KV_HEADS, head_dim=DIM,
                         scheme="rows")  # fmt: skip
    q, k, v, *_ = sharding.shard(*inputs(300, torch.float32, 1)[:3])
    refused(NotImplementedError, 'scheme="heads"', lambda: fmd.attention(q, k, v, sharding, invariant=True))


@cases((2,), dtype=[torch.bfloat16, torch.float64])
def dropout_of_every_dtype(group, rank, dtype):
    for scheme in ("rows", "heads"):
        hold_against_one_process(group, masks.causal(500, 500), dtype, dropout=0.5, scheme=scheme, partition="zigzag")


@case(1)
def dropout_of_one_rank(group, rank):
    hold_against_one_process(group, masks.causal(300, 300), dropout=0.1)


@case(4)
def dropout_where_some_ranks_have_no_rows(group, rank):
    for gradients in ("reduced", "owner"):
        hold_against_one_process(group, masks.causal(203, 203), dropout=0.1, gradients=gradients, scheme="rows")


@case(2)
def head_groups_and_kept_keys_drop_the_same(group, rank):
    for option in ({"head_groups": 2}, {"keep_fetched": True}):
        hold_against_one_process(
            group, FAMILIES["documents"](600), dropout=0.1, scheme="rows", partition="zigzag", gradients="owner",
            **option,
        )  # fmt: skip


@case(3)
def dropout_needs_cuts_between_draws(group, rank):
    ends = [0, 700, 1500, 2000]
    runs = [(begin, end, rank) for rank, (begin, end) in enumerate(pairwise(ends))]
    sharding = make(group, tokens=2000, partition=fmd.Partition.from_runs(2000, 3, runs), scheme="rows")
    q = torch.randn(1, sharding._held, 4, 16)
    call = partial(fmd.attention, q, q[:, :, :2], q[:, :, :2], sharding)
    refused(ValueError, "^dropout_p is not 0, and rank 1 holds tokens from 700 on", lambda: call(dropout_p=0.1))
    refused(ValueError, r"^dropout_p is 1; expected a probability from 0 to 0\.99999", lambda: call(dropout_p=1))
    call()


def with_sinks(compute, sinks, q, k, v, grad_o, grad_lse):
    """with_gradients(), and the gradient of the sinks."""
    leaf = sinks.clone().requires_grad_()
    found = with_gradients(partial(compute, sinks=leaf), q, k, v, grad_o, grad_lse)
    return [*found, leaf.grad]


def sinks_of(kind, tokens, batch, dtype=torch.float32):
    generator = torch.Generator().manual_seed(2)
    shape = (HEADS,) if kind == "heads" else (batch, HEADS, tokens)
    return torch.randn(shape, generator=generator).to(torch.float64 if dtype is torch.float64 else torch.float32)


def hold_sinks_against_one_process(group, mask, kind, dtype=torch.float32, batch=1, wrap=None, **options):
    """o, lse and the gradient of q are the bits of one process; those of k and v close; sinks' add up to its."""
    tokens = mask.shape.rows
    whole, sinks = inputs(tokens, dtype, batch), sinks_of(kind, tokens, batch, dtype)
    expected = with_sinks(partial(flashmask.attention, mask=mask, return_lse=True), sinks, *whole)
    sharding = fmd.shard(mask, group, query_heads=HEADS, kv_heads=KV_HEADS, head_dim=DIM, **options)
    local = [*sharding.shard(*whole[:4]), sharding.shard(whole[4], dim=2)]
    own = sinks if kind == "heads" else sharding.shard(sinks, dim=2)
    compute = partial(fmd.attention, sharding=sharding, return_lse=True)
    found = with_sinks(wrap(compute) if wrap else compute, own, *local)
    summed = found[5] if kind == "rows" and sharding.scheme == "rows" else None
    if summed is None:  # parts of ranks
        summed = found[5].clone()
        if kind == "heads":
            dist.all_reduce(summed, group=group)
    of_one = expected[5] if kind == "heads" else sharding.shard(expected[5], dim=2)
    wrong = [
        name
        for place, name in enumerate(NAMES[:3])
        if not torch.equal(found[place], sharding.shard(expected[place], dim=2 if name == "lse" else 1))
    ]
    for name, mine, right in (
        *((name, found[at], sharding.shard(expected[at])) for at, name in ((3, "grad_k"), (4, "grad_v"))),
        ("grad_sinks", summed, of_one),
    ):
        error = float((mine - right).double().norm() / right.double().norm().clamp(min=1e-30))
        wrong += [] if error <= max(TOLERANCE[dtype], 1e-6) * 4 else [f"{name} is {error} away"]
    raise_on_all_ranks(group, f"{sharding}, {dtype}, sinks of {kind}: {', '.join(wrong)}" if wrong else "")


@cases((2,), scheme=["rows", "heads"])
def sinks_are_those_of_one_process(group, rank, scheme):
    for family, kind in (("documents", "heads"), ("causal", "rows"), ("nothing", "heads"), ("dilated", "rows")):
        for dtype in (torch.float32, torch.bfloat16, torch.float64):
            options = {"scheme": scheme, "batch": 2, **aligned("zigzag", 500, group.size())}
            hold_sinks_against_one_process(group, FAMILIES[family](500), kind, dtype, **options)


@case(3)
def sinks_where_some_rank_has_nothing_to_fetch_or_no_rows(group, rank):
    hold_sinks_against_one_process(group, masks.causal(203, 203), "heads", scheme="rows", aligned=True)
    hold_sinks_against_one_process(group, FAMILIES["short documents"](700), "rows", scheme="rows", aligned=True)


@case(2)
def head_groups_kept_keys_checkpoints_and_graphs_keep_sinks(group, rank):
    mask = FAMILIES["documents"](600)
    hold_sinks_against_one_process(group, mask, "heads", torch.float64, scheme="rows", aligned=True, head_groups=2)
    for option in ({"head_groups": 2}, {"keep_fetched": True}, {"gradients": "owner"}):
        for kind in ("heads", "rows"):
            hold_sinks_against_one_process(group, mask, kind, scheme="rows", aligned=True, **option)

    def checkpointed(compute):
        return lambda q, k, v, sinks: checkpoint(partial(compute, sinks=sinks), q, k, v, use_reentrant=False)

    hold_sinks_against_one_process(group, mask, "heads", scheme="rows", aligned=True, wrap=checkpointed)

    def in_a_graph(compute):
        torch._dynamo.reset()
        return torch.compile(lambda q, k, v, sinks: compute(q, k, v, sinks=sinks), backend="aot_eager", fullgraph=True)

    for scheme in ("rows", "heads"):
        hold_sinks_against_one_process(group, mask, "heads", scheme=scheme, aligned=True, wrap=in_a_graph)


@case(2)
def sinks_and_dropout_go_together(group, rank):
    mask, tokens = FAMILIES["documents"](512), 512
    whole, sinks = inputs(tokens, torch.float32, 1), sinks_of("heads", tokens, 1)

    def of_one(q, k, v, sinks):
        seed = seed_offset_of(None, 0.3, q.device)
        return flashmask.operators.forward(q, k, v, mask.tensor, None, False, 0.0, 0.3, seed, sinks=sinks)

    torch.manual_seed(5)
    expected = with_sinks(of_one, sinks, *whole)
    sharding = make(group, mask, scheme="rows", aligned=True)
    torch.manual_seed(5 + rank)
    compute = partial(fmd.attention, sharding=sharding, return_lse=True, dropout_p=0.3)
    found = with_sinks(compute, sinks, *sharding.shard(*whole[:4]), sharding.shard(whole[4], dim=2))
    dist.all_reduce(found[5], group=group)
    assert torch.equal(found[0], sharding.shard(expected[0]))
    torch.testing.assert_close(found[5], expected[5], rtol=1e-4, atol=1e-5)


@case(2)
def wrong_sinks_are_refused_before_anything_is_sent(group, rank):
    sharding = make(group, tokens=512, scheme="rows")
    q = torch.randn(1, sharding._held, 4, 16)
    call = partial(fmd.attention, q, q[:, :, :2], q[:, :, :2], sharding)
    refused(
        ValueError,
        r"^sinks is torch.float32 \[3\]; expected .* \[4\], one for each head",
        lambda: call(sinks=torch.ones(3)),
    )
    refused(ValueError, r"^sinks is torch.float64", lambda: call(sinks=torch.ones(4).double()))
    refused(TypeError, "^sinks is list", lambda: call(sinks=[1.0]))
    call(sinks=torch.ones(4))


@case(2)
def head_groups_and_kept_keys_change_no_bit(group, rank):
    mask = FAMILIES["documents"](600)
    for gradients in ("reduced", "owner"):
        found = [
            hold_against_one_process(group, mask, scheme="rows", partition="zigzag", gradients=gradients, **option)[1]
            for option in ({}, {"head_groups": 2}, {"keep_fetched": True})
        ]
        for other in found[1:]:
            assert all(map(torch.equal, found[0], other))


@case(4)
def keys_are_kept_where_some_ranks_have_no_rows(group, rank):
    sharding, _ = hold_against_one_process(group, masks.causal(203, 203), scheme="rows", keep_fetched=True)
    assert 0 in sharding.lengths


@case(3)
def cuts_between_documents_send_nothing(group, rank):
    ends = [0, 700, 1500, 2000]
    mask = masks.causal_document(np.diff(ends), 2000)
    runs = [(begin, end, rank) for rank, (begin, end) in enumerate(pairwise(ends))]
    sharding, _ = hold_within_bound(group, mask, partition=fmd.Partition.from_runs(2000, 3, runs))
    assert sharding._locals["mask"].columns.silent


def hold_within_bound(group, mask, **options):
    """For cuts that are not at tiles: the bound of float32."""
    whole = inputs(mask.shape.rows, torch.float32, 1)
    expected = with_gradients(partial(flashmask.attention, mask=mask, return_lse=True), *whole)
    sharding = fmd.shard(mask, group, query_heads=HEADS, kv_heads=KV_HEADS, head_dim=DIM, scheme="rows", **options)
    local = [*sharding.shard(*whole[:4]), sharding.shard(whole[4], dim=2)]
    found = with_gradients(partial(fmd.attention, sharding=sharding, return_lse=True), *local)
    for name, mine, all_of_it in zip(NAMES, found, expected, strict=True):
        torch.testing.assert_close(
            mine, sharding.shard(all_of_it, dim=2 if name == "lse" else 1), rtol=1e-4, atol=2e-5, msg=name
        )
    return sharding, found


@case(4)
def several_masks_by_name(group, rank):
    n = 600
    causal, window = masks.causal(n, n), masks.sliding_window(n, n, 100)
    sharding = fmd.shard(
        causal, group, query_heads=HEADS, kv_heads=KV_HEADS, head_dim=DIM, masks={"near": window}, weights={"near": 3},
        aligned=True, scheme="rows",
    )  # fmt: skip
    q, k, v, _, _ = inputs(n, torch.float32, 1)
    local = sharding.shard(q, k, v)
    for name, mask in (("mask", causal), ("near", window)):
        assert torch.equal(
            fmd.attention(*local, sharding, mask=name), sharding.shard(flashmask.attention(q, k, v, mask))
        )
    with pytest.raises(ValueError, match=r"mask is 'far'; expected one of .*: mask, near"):
        fmd.attention(*local, sharding, mask="far")


@cases((3,), family=["documents", "dilated", "window"])
def every_visible_score_belongs_to_one_rank(group, rank, family):
    mask = FAMILIES[family](900)
    sharding = fmd.shard(mask, group, query_heads=6, kv_heads=1, head_dim=8, scheme="rows", partition="zigzag")
    local = sharding._locals["mask"]
    (columns,) = local.columns.fetch(sharding._group, [sharding.positions[None]])
    mine = np.zeros((900, 900), np.uint8)
    mine[np.ix_(sharding.positions, columns[0])] = local.mask.to_dense()[0, 0]
    total = torch.from_numpy(mine)
    dist.all_reduce(total, group=group)
    assert np.array_equal(total.numpy(), mask.to_dense()[0, 0])


@case(2)
def keys_that_nobody_needs_are_never_read(group, rank):
    mask = masks.causal_document([300, 200], 1024)  # tiles 4 to 7 are padding
    q, k, v, *grads = inputs(1024, torch.float32, 1)
    k[:, 512:], v[:, 512:] = torch.nan, torch.nan
    for gradients in ("reduced", "owner"):
        sharding = fmd.shard(
            mask, group, query_heads=HEADS, kv_heads=KV_HEADS, head_dim=DIM, partition="zigzag", gradients=gradients,
            scheme="rows",
        )  # fmt: skip
        compute = partial(fmd.attention, sharding=sharding, return_lse=True)
        found = with_gradients(compute, *sharding.shard(q, k, v, grads[0]), sharding.shard(grads[1], dim=2))
        for name, each in zip(NAMES, found, strict=True):
            assert not torch.isnan(each).any(), name
        unseen = sharding.positions >= 512
        assert not found[3][:, unseen].any() and not found[4][:, unseen].any()


@case(2)
def gradients_repeat_to_the_bit(group, rank):
    found = [
        hold_against_one_process(group, masks.causal(700, 700), torch.bfloat16, scheme="rows", deterministic=True)[1]
        for _ in range(3)
    ]
    for other in found[1:]:
        assert all(map(torch.equal, found[0], other))


@case(3)
def partial_sums_are_added_in_the_order_of_ranks(group, rank):
    """1e8 - 1e8 + 1 is 1 in float32 in that order, and 0 in the opposite one."""
    sharding = fmd.shard(None, group, query_heads=1, kv_heads=1, head_dim=8, tokens=384, scheme="rows")
    partial = torch.full((1, 384, 1), (1e8, -1e8, 1.0)[rank])
    (total,) = sharding._everything.give_back(sharding._group, [partial])
    assert torch.equal(total, torch.ones(1, len(sharding.positions), 1))


# ---- PyTorch ----


@cases((2,), scheme=["rows", "heads"])
def checkpointing_gives_the_same_bits(group, rank, scheme):
    def wrap(compute):
        return lambda q, k, v: checkpoint(compute, q, k, v, use_reentrant=False)

    for dropout in (0, 0.1):
        hold_against_one_process(
            group, masks.causal(600, 600), scheme=scheme, gradients="owner", wrap=wrap, dropout=dropout
        )


@cases((2,), scheme=["rows", "heads"])
def compiled_calls_give_the_same_bits(group, rank, scheme):
    """And the third sharding, with other splits, takes the graph of the second."""
    torch._dynamo.reset()
    graphs = []

    def count(graph, example_inputs):
        graphs.append(graph)
        return graph.forward

    for n in (500, 600, 700, 900):
        mask = masks.causal_document([n // 3, n // 2], n)
        options = {"scheme": scheme, "partition": "zigzag", "gradients": "owner"}

        @torch.compile(backend="aot_eager", fullgraph=True)
        def compute(q, k, v, sharding):
            return fmd.attention(q, k, v, sharding, return_lse=True)

        def wrap(call):
            return lambda q, k, v: compute(q, k, v, call.keywords["sharding"])

        hold_against_one_process(group, mask, wrap=wrap, **options)

    @torch.compile(backend=count, fullgraph=True)
    def counted(q, k, v, sharding):
        return fmd.attention(q, k, v, sharding)

    for n in (512, 1024, 1536, 2048):
        sharding = fmd.shard(
            masks.causal(n, n), group, query_heads=HEADS, kv_heads=KV_HEADS, head_dim=DIM, scheme=scheme
        )
        counted(*sharding.shard(*inputs(n, torch.float32, 1)[:3]), sharding)
    assert len(graphs) <= 2, f"{len(graphs)} graphs for four shardings"


@cases((2,), scheme=["rows", "heads"])
def compiled_calls_drop_what_others_do(group, rank, scheme):
    @torch.compile(backend="aot_eager", fullgraph=True)
    def compute(q, k, v, sharding):
        return fmd.attention(q, k, v, sharding, return_lse=True, dropout_p=0.1)

    def wrap(call):
        return lambda q, k, v: compute(q, k, v, call.keywords["sharding"])

    torch._dynamo.reset()
    options = {"scheme": scheme, "partition": "zigzag", "gradients": "owner"}
    hold_against_one_process(group, masks.causal(500, 500), wrap=wrap, dropout=0.1, **options)


@cases((2,), partition=["zigzag", "contiguous"])
def operators_pass_opcheck(group, rank, partition):
    """Under "contiguous" rank 0 fetches nothing, and keeps keys of its own."""
    n = 300
    q, k, v, _, _ = inputs(n, torch.float32, 1)
    for scheme in ("rows", "heads"):
        sharding = fmd.shard(
            masks.causal(n, n), group, query_heads=HEADS, kv_heads=KV_HEADS, head_dim=DIM, scheme=scheme,
            keep_fetched=scheme == "rows", partition=partition,
        )  # fmt: skip
        tensors = [each.requires_grad_() for each in sharding.shard(q.detach(), k.detach(), v.detach())]
        where = sharding._tensors["mask"], sharding._name
        if scheme == "rows":
            operator, arguments = (
                torch.ops.flashmask.shard_forward,
                (*tensors, *where, 0.0, True, sharding._kept["mask"], *Given()),
            )
        else:
            operator, arguments = torch.ops.flashmask.shard_to_heads, (tensors, *where, 2, n)
        torch.library.opcheck(operator.default, arguments)
        seed = torch.arange(2)
        torch.library.opcheck(torch.ops.flashmask.shard_seed.default, (seed, 0.1, tensors[0].detach(), *where))
        if scheme == "rows":
            torch.library.opcheck(operator.default, (*arguments[: -len(Given._fields)], *Given(0.1, seed)))


@case(2)
def autocast_casts_as_it_does_for_one_process(group, rank):
    n = 300
    q, k, v, _, _ = inputs(n, torch.float32, 1)
    sharding = fmd.shard(masks.causal(n, n), group, query_heads=HEADS, kv_heads=KV_HEADS, head_dim=DIM, scheme="rows")
    with torch.autocast("cpu", torch.bfloat16):
        o = fmd.attention(*sharding.shard(q, k, v), sharding)
        whole = flashmask.attention(q, k, v, masks.causal(n, n))
    assert o.dtype is torch.bfloat16 and torch.equal(o, sharding.shard(whole))


@case(2)
def function_transforms_are_refused(group, rank):
    for scheme in ("rows", "heads"):
        sharding = make(group, masks.causal(512, 512), scheme=scheme)
        q = torch.randn(1, sharding._held, 4, 16)
        whole = partial(fmd.attention, sharding=sharding)
        compute = torch.func.grad(lambda q, whole=whole: whole(q, q[:, :, :2], q[:, :, :2]).sum())
        refused(NotImplementedError, r"^flashmask does not support torch\.func\.grad", partial(compute, q))


@case(2)
def a_second_derivative_is_refused(group, rank):
    sharding = fmd.shard(None, group, query_heads=2, kv_heads=2, head_dim=8, tokens=300, scheme="rows")
    q = sharding.shard(torch.randn(1, 300, 2, 8)).requires_grad_()
    (grad,) = torch.autograd.grad(fmd.attention(q, q, q, sharding).sum(), q, create_graph=True)
    with pytest.raises(NotImplementedError, match="differentiable once"):
        grad.sum().backward()
    with pytest.raises(NotImplementedError, match=r"unshard\(\) returns is differentiable once"):
        torch.autograd.grad(sharding.unshard(q).sum(), q, create_graph=True)


# ---- what a Sharding offers ----


@cases((3,), partition=["contiguous", "zigzag"])
def shard_and_unshard_are_each_others_inverse(group, rank, partition):
    n = 1000
    sharding = fmd.shard(None, group, query_heads=1, kv_heads=1, head_dim=8, tokens=n, partition=partition)
    assert sum(sharding.lengths) == n and sharding.lengths[rank] == len(sharding.positions)
    logits = torch.randn(2, n, 5, generator=torch.Generator().manual_seed(0))
    local = sharding.shard(logits).requires_grad_()
    assert torch.equal(local, logits[:, sharding.positions])
    whole = sharding.unshard(local)
    assert torch.equal(whole, logits)
    (whole * logits).sum().backward()
    assert torch.allclose(local.grad, group.size() * sharding.shard(logits))
    assert torch.equal(sharding.unshard(sharding.shard(logits, dim=0 - 2), dim=-2), logits)


@case(2)
def whole_tensors_and_losses_of_other_shapes_are_refused(group, rank):
    sharding = make(group)
    for dim in (1, 2, -3):
        refused(ValueError, rf"^a tensor has shape \[9, 9\]; expected 512 tokens in dimension {dim}, those of the seq",
                partial(sharding.shard, torch.zeros(9, 9), dim=dim))  # fmt: skip
    refused(ValueError, r"^tensor has shape \[9\]; expected \d+ tokens in dimension 1, those that rank \d holds$",
            lambda: sharding.unshard(torch.zeros(9)))  # fmt: skip
    refused(TypeError, "^dim is str 'x'; expected an integer", lambda: sharding.shard(torch.zeros(1, 512), dim="x"))
    loss = torch.ones(())
    refused(TypeError, "^loss_sum is float 3.0; expected a torch tensor", lambda: sharding.mean(3.0, 1))
    refused(ValueError, r"^loss_sum has shape \[3\]; expected one", lambda: sharding.mean(torch.ones(3), 1))
    refused(TypeError, "^count is str 'x'; expected a number", lambda: sharding.mean(loss, "x"))
    refused(ValueError, "^count is -1.0; expected how many", lambda: sharding.mean(loss, -1))


@case(2)
def mean_takes_weights_for_counts(group, rank):
    sharding = make(group)
    assert sharding.mean(torch.tensor(0.5), 0.125).item() == 4.0  # 2 * 0.5 over 2 * 0.125
    assert sharding.mean(torch.tensor(0.0), 0).item() == 0.0


@case(4)
def mean_is_the_mean_of_all_tokens(group, rank):
    n = 900
    sharding = fmd.shard(None, group, query_heads=1, kv_heads=1, head_dim=8, tokens=n)
    weight = torch.ones((), requires_grad=True)
    values = torch.arange(n, dtype=torch.float32)
    labelled = values % 3 == 0
    sharded, counted = sharding.shard(values, labelled, dim=0)
    loss = sharding.mean((weight * sharded * counted).sum(), counted.sum())
    assert torch.allclose(loss, values[labelled].mean())
    loss.backward()
    dist.all_reduce(weight.grad, group=group)
    assert torch.allclose(weight.grad / group.size(), values[labelled].mean())


@case(2)
def explain_says_what_each_rank_has_to_do(group, rank):
    n = 1024
    sharding = fmd.shard(
        masks.causal(n, n), group, query_heads=4, kv_heads=2, head_dim=16, scheme="rows", partition="contiguous"
    )
    told = sharding.explain()
    # Of 8 x 8 tiles, 36 are active: 10 of the first four row tiles. Rank 1 fetches all that rank 0 holds.
    assert told.loads["mask"][:, [0, 1, 4, 5]].tolist() == [[512, 10, 0, 512], [512, 26, 512, 0]]
    assert told.bytes_moved["mask"] == 512 * 2 * 2 * 2 * 16  # columns, k and v, bytes, heads, dims
    lines = str(told).splitlines()
    assert lines[0].startswith('scheme "rows"') and "Fewer than 8,192 tokens a rank" in lines[-1]
    assert lines[4].split() == ["1", "512", "26", "1.308", "512", "0"]


@case(2)
def plot_colours_the_rows_of_each_rank(group, rank):
    n = 1024
    sharding = fmd.shard(masks.causal(n, n), group, query_heads=4, kv_heads=2, head_dim=16, partition="zigzag")
    refused(
        ValueError, "^mask is 'far'; expected one of the sharding's masks: mask$", lambda: sharding.plot(mask="far")
    )
    (ax,) = sharding.plot().axes
    spans = [(patch.get_y(), patch.get_y() + patch.get_height()) for patch in ax.patches]
    assert spans == [(0, 256), (256, 768), (768, 1024)]
    colours = [patch.get_facecolor() for patch in ax.patches]
    assert colours[0] == colours[2] != colours[1]


@case(4)
def the_example_of_the_docs_runs(group, rank):
    page = Path(__file__).parent.parent.parent / "docs" / "several_gpus.md"
    code = page.read_text().split("```python\n")[1].split("```")[0]
    exec(code.replace('dist.init_process_group("gloo")', "pass"), {})


# ---- Transformers ----


def tiny(kind):
    import transformers

    import flashmask.transformers

    flashmask.transformers.register()
    sizes = {
        "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 8,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 2048,
    }  # fmt: skip
    config = {
        "llama": lambda: transformers.LlamaConfig(**sizes),
        "mistral": lambda: transformers.MistralConfig(**sizes, sliding_window=100),
        "gemma3": lambda: transformers.Gemma3TextConfig(
            **sizes, sliding_window=100, layer_types=["sliding_attention", "full_attention"]
        ),
        "gpt_oss": lambda: transformers.GptOssConfig(  # with sinks
            **sizes, sliding_window=100, layer_types=["sliding_attention", "full_attention"], num_local_experts=2,
            num_experts_per_tok=2, pad_token_id=0,
        ),
    }[kind]()  # fmt: skip
    torch.manual_seed(0)
    config._attn_implementation = "flashmask"
    model = transformers.AutoModelForCausalLM.from_config(config).train()
    for name, parameter in model.named_parameters():
        if name.endswith("sinks"):
            torch.nn.init.normal_(parameter, std=2)
    return model


def packed(tokens, batch=1):
    ids = torch.randint(64, (batch, tokens), generator=torch.Generator().manual_seed(1))
    lengths = [tokens // 3, tokens // 2, tokens - tokens // 3 - tokens // 2]
    positions = torch.cat([torch.arange(length) for length in lengths])[None].expand(batch, -1)
    return {"input_ids": ids, "position_ids": positions, "labels": ids.masked_fill(positions == 0, -100)}


def loss_and_gradients(model, batch, sharding=None):
    model.zero_grad()
    labels = batch.get("shift_labels", batch["labels"])
    loss = model(**batch, num_items_in_batch=1, use_cache=False).loss
    count = (labels != -100).sum()
    loss = loss / count if sharding is None else sharding.mean(loss, count)
    loss.backward()
    gradients = torch.cat([each.grad.flatten() for each in model.parameters()])
    return loss.item(), gradients


@cases((2,), scheme=["rows", "heads"])
def a_model_with_dropout_has_the_losses_of_one_process(group, rank, scheme):
    from flashmask.transformers import shard

    model, batch = tiny("llama"), packed(700)
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.3
    without, _ = loss_and_gradients(model.eval(), batch)
    torch.manual_seed(1)
    expected, gradients = loss_and_gradients(model.train(), batch)
    assert abs(without - expected) > 1e-4
    model.gradient_checkpointing_enable({"use_reentrant": False})
    local = shard(model, batch, group, aligned=True, scheme=scheme)
    torch.manual_seed(1 + rank)
    found, mine = loss_and_gradients(model, local, local["sharding"])
    dist.all_reduce(mine, group=group)
    assert abs(found - expected) < 1e-5, f"{found} is not {expected}"
    assert (mine / group.size() - gradients).norm() / gradients.norm() < 2e-5


@cases((1, 2, 4), kind=["llama", "mistral", "gemma3", "gpt_oss"])
def models_have_the_losses_and_gradients_of_one_process(group, rank, kind):
    from flashmask.transformers import shard

    model, batch = tiny(kind), packed(700)
    expected, gradients = loss_and_gradients(model, batch)
    for checkpointed in (False, True):
        if checkpointed:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        local = shard(model, batch, group, aligned=True, scheme="auto" if group.size() < 4 else "rows")
        found, mine = loss_and_gradients(model, local, local["sharding"])
        dist.all_reduce(mine, group=group)
        assert abs(found - expected) < 1e-5, f"{found} is not {expected}"
        error = (mine / group.size() - gradients).norm() / gradients.norm()
        assert error < 2e-5, f"gradients are {error} away"
    assert list(local["sharding"].masks) == (["mask", "window of 100"] if kind in ("gemma3", "gpt_oss") else ["mask"])


@case(2)
def nothing_leaks_from_one_document_into_another(group, rank):
    from flashmask.transformers import shard

    model, batch = tiny("llama"), packed(600)
    logits = []
    for changed in (None, 250):  # in the second of three documents: 200 to 499
        ids = batch["input_ids"].clone()
        if changed is not None:
            ids[0, changed] = (ids[0, changed] + 1) % 64
        local = shard(model, {**batch, "input_ids": ids}, group, scheme="rows", partition="zigzag")
        sharding = local.pop("sharding")
        del local["labels"], local["shift_labels"]
        with torch.no_grad():
            logits.append(sharding.unshard(model(**local, sharding=sharding, use_cache=False).logits))
    moved = (logits[0] != logits[1]).any(-1)[0].nonzero().flatten().tolist()
    assert moved == list(range(250, 500)), moved


@case(2)
def trainers_inputs_are_shared_out_with_their_masks(group, rank):
    import transformers

    from flashmask.transformers import ShardedBatches

    class Trainer(ShardedBatches, transformers.Trainer):
        def __init__(self, parallel):
            parallelism = SimpleNamespace(cp_enabled=parallel)
            mesh = dist.DeviceMesh.from_group(group, "cpu", mesh_dim_names=("cp",))
            self.accelerator = SimpleNamespace(
                parallelism_config=parallelism, torch_device_mesh={"cp": mesh}, unwrap_model=lambda model: model
            )

    model, batch = tiny("llama"), packed(600)
    context, same = Trainer(False)._prepare_context_parallel_inputs(model, batch)
    assert same is batch
    context, local = Trainer(True)._prepare_context_parallel_inputs(model, batch)
    with context():
        assert loss_and_gradients(model, local, local["sharding"])[0] == pytest.approx(
            loss_and_gradients(model, batch)[0], abs=1e-5
        )


@case(2)
def what_a_sharded_model_cannot_honour_is_refused(group, rank):
    from flashmask.transformers import shard

    model, batch = tiny("llama"), packed(300)
    other = tiny("llama")
    other.set_attn_implementation("sdpa")
    refused(ValueError, "^the model has attn_implementation='sdpa', which would", lambda: shard(other, batch, group))
    refused(TypeError, "^model is a Linear; expected a model of T", lambda: shard(torch.nn.Linear(1, 1), batch, group))
    for name, wrong, expected in (
        ("labels", batch["labels"][:, 1:], r"expected a tensor \[1, 300\], the whole batch"),
        ("labels", batch["labels"].tolist(), "labels is list"),
        ("position_ids", torch.arange(300), r"position_ids is Tensor of torch.int64 \[300\]"),
        ("position_ids", torch.arange(9)[None], r"position_ids is Tensor of torch.int64 \[1, 9\]"),
        ("cu_seq_lens_q", torch.tensor([0, 301]), r"cu_seq_lens_q is \[0, 301\]; expected cumulative lengths"),
    ):
        whole = {**batch, name: wrong}
        refused(RuntimeError, f"^rank 0: ValueError: .*{expected}", partial(shard, model, whole, group))
    refused(
        ValueError,
        "^the batch has 'weights', a tensor",
        lambda: shard(model, {**batch, "weights": torch.ones(1, 300)}, group),
    )
    refused(ValueError, "^the batch has 100 tokens, of which rank [01] of 2 would hold none",
            lambda: shard(model, packed(100), group, aligned=True))  # fmt: skip
    local = shard(model, batch, group)
    held = len(local["position_ids"][0])
    for extra in (torch.ones(1, 1, held, 300), torch.ones(1, held, held), torch.ones(1, held)):
        refused(
            ValueError,
            "^an attention_mask came beside a sharding",
            partial(model, **local, attention_mask=extra.bool()),
        )
    model.config.layer_types = ["full_attention", "linear_attention"]
    refused(ValueError, "^the model has layers of linear_attention", lambda: shard(model, batch, group))


# ---- failures end in one sentence, on every rank, soon ----


def refused(kind, message, call, seconds=SECONDS):
    began = time.monotonic()
    with pytest.raises(kind, match=message):
        call()
    assert time.monotonic() - began < seconds


def make(group, mask=None, **options):
    return fmd.shard(mask, group, **{"query_heads": 4, "kv_heads": 2, "head_dim": 16, "tokens": 512, **options})


@case(3)
def a_rank_that_fails_is_named_on_all_ranks(group, rank):
    def broken():
        if rank == 1:
            raise OSError("no such batch")
        return masks.causal(512, 512)

    refused(RuntimeError, "^rank 1: OSError: no such batch$", lambda: make(group, broken))
    heads = 3 if rank == 2 else 4
    refused(
        RuntimeError, "^rank 2: ValueError: query_heads is 3 and kv_heads 2", lambda: make(group, query_heads=heads)
    )
    make(group)


@case(3)
def what_differs_is_named_with_the_rank(group, rank):
    ends = [200, 312 - (rank == 2)]
    refused(
        ValueError, "^the masks of rank 2 differ from those of rank 0",
        lambda: make(group, masks.causal_document(ends, 512)),
    )  # fmt: skip
    batch = np.ones((1 + (rank == 1), 1, 512, 512), bool)
    refused(
        ValueError, "^the masks of rank 1 differ from those of rank 0", lambda: make(group, masks.from_dense(batch))
    )
    refused(ValueError, "^the numbers of tokens of rank 1 differ", lambda: make(group, tokens=512 + (rank == 1)))
    refused(ValueError, "^the options of rank 1, 2 differ", lambda: make(group, head_dim=16 if rank == 0 else 32))
    name = "near" if rank == 0 else "far"
    window = masks.sliding_window(512, 512, 9)
    refused(ValueError, "^the names and weights of the masks of rank 1, 2", lambda: make(group, masks={name: window}))


@case(2)
def calls_are_compared_where_that_is_asked_for(group, rank):
    os.environ["FLASHMASK_CHECK_RANKS"] = "1"
    try:
        sharding, other = make(group, masks.causal(512, 512)), make(group)
        given = torch.randn(1, sharding._held, 4, 16)
        q, kv = given, given[:, :, :2]
        fmd.attention(q, kv, kv, sharding)
        batch = q.expand(2 if rank == 1 else 1, -1, -1, -1)
        of_batch = batch[:, :, :2]
        refused(ValueError, "^the calls of rank 1 differ", lambda: fmd.attention(batch, of_batch, of_batch, sharding))
        refused(
            ValueError, "^the shardings of rank 1 differ",
            lambda: fmd.attention(q, kv, kv, sharding if rank == 0 else other),
        )  # fmt: skip
        refused(
            ValueError, "^the calls of rank 1 differ",
            lambda: fmd.attention(q, kv, kv, sharding, dropout_p=0.1 + 0.1 * rank),
        )  # fmt: skip
        drawn = 0.1, torch.tensor([3 + rank, 0])
        where = sharding._tensors["mask"], sharding._name
        refused(
            ValueError, "^the dropout seeds of rank 1 differ",
            lambda: torch.ops.flashmask.shard_forward(q, kv, kv, *where, 0.0, False, 0, *Given(*drawn)),
        )  # fmt: skip
        wrong = q[:, 1:] if rank == 1 else q
        refused(RuntimeError, "^rank 1: ValueError: q has shape", lambda: fmd.attention(wrong, kv, kv, sharding))
    finally:
        del os.environ["FLASHMASK_CHECK_RANKS"]


@case(2)
def calls_that_do_not_fit_are_refused_before_anything_is_sent(group, rank):
    sharding = make(group, masks.causal(512, 512), scheme="rows")
    q = torch.randn(1, sharding._held, 4, 16)
    kv = q[:, :, :2]
    refused(ValueError, r"^q has shape \[1, 255, 4, 16\]; expected \(batch, 256, 4, head dim\)",
            lambda: fmd.attention(q[:, 1:], kv, kv, sharding))  # fmt: skip
    refused(TypeError, "^q, k and v have dtypes", lambda: fmd.attention(q, kv.double(), kv, sharding))
    refused(ValueError, r"^k has shape", lambda: fmd.attention(q, q, kv, sharding))
    refused(TypeError, "^sharding is NoneType", lambda: fmd.attention(q, kv, kv, None))
    refused(ValueError, "^a tensor has shape", lambda: sharding.shard(q))
    tensor, name = sharding._tensors["mask"], sharding._name

    def call(*arguments):
        return torch.ops.flashmask.shard_forward(*arguments, 0.0, False, 0, *Given())

    refused(ValueError, "holds none", lambda: call(q, kv, kv, masks.causal(512, 512).tensor, name))
    refused(RuntimeError, "no sharding was made for the group", lambda: call(q, kv, kv, tensor, "x"))


@case(2)
def the_sharding_of_another_rank_is_refused(group, rank):
    sharding = make(group, masks.causal(512, 512), scheme="rows")
    theirs = [None, None]
    dist.all_gather_object(theirs, sharding._tensors["mask"], group=group)
    q = torch.randn(1, 256, 4, 16)

    def call(tensor):
        where = tensor, sharding._name
        return torch.ops.flashmask.shard_forward(q, q[:, :, :2], q[:, :, :2], *where, 0.0, False, 0, *Given())

    refused(
        ValueError,
        f"^the sharding is that of rank {1 - rank} of 2",
        lambda: call(theirs[1 - rank]),
    )
    assert torch.isfinite(call(theirs[rank])[0]).all()  # its own, read anew


@case(3)
def what_cannot_be_honoured_is_refused(group, rank):
    refused(RuntimeError, "ValueError: scheme=\"heads\": 2 key heads cannot be shared out over 3 ranks",
            lambda: make(group, scheme="heads"))  # fmt: skip
    refused(
        RuntimeError,
        "ValueError: the mask 'mask' has 300 rows and 512 columns",
        lambda: make(group, masks.full(300, 512)),
    )
    refused(RuntimeError, "ValueError: mask is None and so is tokens", lambda: make(group, tokens=None))
    refused(RuntimeError, "TypeError: mask is str 'causal'", lambda: make(group, "causal"))
    refused(RuntimeError, "ValueError: the mask 'mask' has 3 heads",
            lambda: make(group, masks.from_dense(np.ones((3, 512, 512), bool))))  # fmt: skip
    refused(RuntimeError, "ValueError: tokens is 512, but the mask has 300 rows; leave tokens out",
            lambda: make(group, masks.causal(300, 300)))  # fmt: skip
    for ends in ([0, 7, 3], [200, 312], [0, 513]):
        refused(RuntimeError, f"ValueError: mask is {re.escape(str(ends))}; expected cumulative lengths",
                partial(make, group, ends))  # fmt: skip
    refused(RuntimeError, r"TypeError: masks is list \[\]; expected a dict", lambda: make(group, masks=[]))
    refused(RuntimeError, r"TypeError: weights is list \[2\]; expected a dict", lambda: make(group, weights=[2]))
    refused(RuntimeError, "ValueError: weights has 'x'", lambda: make(group, weights={"x": 1}))
    refused(
        RuntimeError, "partition is of 300 tokens over 3 ranks", lambda: make(group, partition=random_partition(300, 3))
    )
    refused(RuntimeError, "ValueError: scheme is 'ring'", lambda: make(group, scheme="ring"))
    both = {"head_groups": 2, "keep_fetched": True}
    refused(
        RuntimeError, "ValueError: head_groups saves the memory that keep_fetched takes", lambda: make(group, **both)
    )
    owner = make(group, scheme="rows", gradients="owner")
    q = torch.randn(1, owner._held, 4, 16, dtype=torch.float64)
    kv = q[:, :, :2]
    refused(NotImplementedError, '^q is float64, which gradients="owner"', lambda: fmd.attention(q, kv, kv, owner))


@case(2)
def groups_that_cannot_serve_are_refused(group, rank):
    refused(TypeError, "^group_or_mesh is str 'cp'", lambda: make("cp"))
    gone = groups_to_destroy.pop()
    sharding = make(gone, masks.causal(512, 512), scheme="rows")
    q = torch.randn(1, sharding._held, 4, 16)
    dist.destroy_process_group(gone)
    refused(
        RuntimeError, "^the process group was destroyed", lambda: fmd.attention(q, q[:, :, :2], q[:, :, :2], sharding)
    )
    refused(RuntimeError, "^the process group was destroyed", lambda: make(gone))
