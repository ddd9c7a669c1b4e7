# SPDX-License-Identifier: Apache-2.0
"""plan(): what a Plan says, that it is shared and kept, and the cache behind it."""

import copy
import gc
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from attention_oracle import random_inputs, softmax_attention
from mask_families import FAMILIES, N, visible

import flashmask
import flashmask.operators
from flashmask import masks
from flashmask._explain import CompiledKernel
from flashmask._plans.cache import PlanCache, plans
from flashmask._plans.call import Call, key_on_cpu


def inputs(dtype=torch.float32, tokens=N):
    return [t.to(dtype) for t in random_inputs(2, tokens, tokens, 4, 2, 16, 24)[:3]]


@pytest.mark.parametrize("name", ["causal_document", "random_dense_heads_and_batch"])
@pytest.mark.parametrize("options", [{}, {"visit": "all"}, {"form": "bits"}, {"kernel": "scalar"}, {"reorder": True}])
def test_a_plan_gives_what_its_mask_gives(name, options):
    mask = FAMILIES[name]()
    q, k, v = (t.requires_grad_() for t in inputs())
    plan = flashmask.plan(mask, q, k, v, **options)
    expected = flashmask.attention(q, k, v, mask)
    found = flashmask.attention(q, k, v, plan=plan)
    torch.testing.assert_close(found, expected)
    grad = torch.ones_like(found)
    for a, b in zip(
        torch.autograd.grad(found, (q, k, v), grad), torch.autograd.grad(expected, (q, k, v), grad), strict=True
    ):
        torch.testing.assert_close(a, b)


def test_visiting_every_tile_gives_the_same_bits():
    mask = masks.causal_document([128, 128])
    q, k, v = inputs(tokens=256)
    everything = flashmask.plan(mask, q, k, v, visit="all")
    assert torch.equal(flashmask.attention(q, k, v, plan=everything), flashmask.attention(q, k, v, mask))
    k[:, :64] = v[:, :64] = torch.nan  # in tiles that the second document does not see
    assert torch.isfinite(flashmask.attention(q, k, v, mask)[:, 128:]).all()
    assert not torch.isfinite(flashmask.attention(q, k, v, plan=everything)[:, 128:]).all()


def test_a_plan_says_what_it_is():
    mask = masks.causal_document([40, 30])
    q, k, v = inputs()
    plan = flashmask.plan(mask, q, k, v, scale=0.5)
    assert plan.mask is mask
    assert plan.problem._asdict() == {
        "batch": 2,
        "query_length": N,
        "key_length": N,
        "query_heads": 4,
        "kv_heads": 2,
        "head_dim": 16,
        "value_dim": 24,
        "dtype": "float32",
        "scale": 0.5,
        "dropout": 0.0,
        "device": "cpu",
        "change": "",
    }
    assert ".forward.f32." in plan.kernel("forward")
    assert ".backward.f32." in plan.kernel("backward")
    assert f"m{plan.explain().tile_rows}n{plan.explain().tile_columns}." in plan.kernel("forward")
    assert plan.reordering is None
    assert "query_length=70" in repr(plan)
    with pytest.raises(ValueError, match="direction is 'up'; expected one of 'forward', 'backward'"):
        plan.kernel("up")
    assert flashmask.plan(mask, q.double(), k.double()).kernel("forward") == "reference"


def test_the_options_reach_the_plan():
    q, k, v = inputs()
    mask = masks.causal(N, N)
    assert flashmask.plan(mask, q, k, v, form="bits").kernel("forward").endswith(".bits")
    assert flashmask.plan(mask, q, k, v, kernel="scalar").kernel("backward").startswith("scalar.backward")
    halves = flashmask.plan(mask, *(t.transpose(1, 2).half() for t in (q, k, v)), layout="bhsd")
    assert ".f16." in halves.kernel("forward")
    assert halves.problem.query_length == N
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert flashmask.plan(mask, q, k, v).problem.dtype == "bfloat16"


def test_reordering_is_told():
    tokens = 512
    order = torch.randperm(tokens, generator=torch.Generator().manual_seed(0))
    ids = (torch.arange(tokens) // 64)[order]
    mask = masks.from_dense(ids[:, None] == ids[None])
    q, k, v = inputs(tokens=tokens)
    plan = flashmask.plan(mask, q, k, v, reorder=True)
    told = plan.reordering
    assert told.gained
    assert told.tiles_after < told.tiles_before
    assert sorted(told.rows[0].tolist()) == list(range(tokens))
    assert plan.mask is mask
    assert told.mask == mask.permute(told.rows, told.columns)
    torch.testing.assert_close(flashmask.attention(q, k, v, plan=plan), flashmask.attention(q, k, v, mask))


def test_a_plan_of_what_else_is_a_mask():
    q, k, v = inputs()
    seen = visible(FAMILIES["random_dense"]())
    rows = masks.from_document_ids(torch.zeros(N, dtype=torch.int64))
    for mask in (seen, rows, None):
        plan = flashmask.plan(mask, q, k, v)
        assert torch.equal(flashmask.attention(q, k, v, plan=plan), flashmask.attention(q, k, v, mask))


def test_pickles_and_copies_are_the_plan():
    q, k, v = inputs()
    plan = flashmask.plan(FAMILIES["graph"](), q, k, v, visit="all", scale=0.4)
    again = pickle.loads(pickle.dumps(plan))
    assert again.problem == plan.problem
    assert again.mask == plan.mask
    assert torch.equal(again.tensor, plan.tensor)
    assert torch.equal(flashmask.attention(q, k, v, plan=again), flashmask.attention(q, k, v, plan=plan))
    assert copy.copy(plan) is copy.deepcopy(plan) is plan


def test_a_plan_is_a_pytree_of_its_tensor():
    from torch.utils import _pytree as pytree

    q, k, v = inputs()
    plan = flashmask.plan(masks.causal(N, N), q, k, v, visit="all")
    leaves, spec = pytree.tree_flatten(plan)
    assert [leaf.data_ptr() for leaf in leaves] == [plan.tensor.data_ptr()]
    again = pytree.tree_unflatten([leaves[0].clone()], spec)
    assert again.problem == plan.problem
    assert torch.equal(flashmask.attention(q, k, v, plan=again), flashmask.attention(q, k, v, plan=plan))
    assert again.kernel("forward") == plan.kernel("forward")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"mask": masks.causal(5, 6)}, ValueError, "mask has 5 rows; expected 70, the tokens of q"),
        ({"mask": 3}, TypeError, "mask is int 3"),
        ({"q": 3}, TypeError, "q is int 3"),
        ({"k": torch.zeros(2, 9)}, ValueError, r"k has shape \[2, 9\]"),
        ({"q": torch.zeros(2, N, 4, 16, dtype=torch.int8)}, TypeError, "q has dtype torch.int8"),
        ({"visit": "some"}, ValueError, "visit is 'some'; expected one of 'active', 'all'"),
        ({"form": "dense"}, ValueError, "form is 'dense'; expected one of 'intervals', 'bits'"),
        ({"kernel": 3}, TypeError, "kernel is int 3"),
        ({"kernel": "avx3"}, NotImplementedError, "avx3"),
        ({"reorder": 1}, TypeError, "reorder is int 1; expected True or False"),
        ({"layout": "hsbd"}, ValueError, "layout is 'hsbd'"),
        ({"scale": float("inf")}, ValueError, "scale is inf"),
    ],
)
def test_refuses_what_it_cannot_plan(arguments, error, message):
    q, k, v = inputs()
    with pytest.raises(error, match=message):
        flashmask.plan(**{"mask": masks.causal(N, N), "q": q, "k": k, "v": v, **arguments})


def test_a_plan_refuses_other_calls():
    q, k, v = inputs()
    mask = masks.causal(N, N)
    plan = flashmask.plan(mask, q, k, v)
    with pytest.raises(ValueError, match=r"q has .* = \(1, 70, 4, 16\); expected \(2, 70, 4, 16\), which plan was"):
        flashmask.attention(q[:1], k[:1], v[:1], plan=plan)
    with pytest.raises(ValueError, match=r"scale is 2\.0; the plan was made for None"):
        flashmask.attention(q, k, v, plan=plan, scale=2.0)
    with pytest.raises(ValueError, match="mask and plan are both given"):
        flashmask.attention(q, k, v, masks.causal(N, N), plan=plan)
    with pytest.raises(TypeError, match="mask is a Plan; pass it as plan="):
        flashmask.attention(q, k, v, plan)
    assert flashmask.attention(q, k, v, mask, plan=plan).shape == (2, N, 4, 24)


class Made:
    """Stands for a plan."""


def key(number):
    return (number, (), (), (), 0, 0.0, 0.0)


def test_the_cache_keeps_what_was_used_last():
    cache = PlanCache(max_plans=3, max_bytes=100)
    for number in range(3):
        cache.keep(key(number), Made(), 10)
    assert cache.find(key(0)) is not None
    cache.keep(key(3), Made(), 10)
    gc.collect()
    assert [cache.find(key(n)) is not None for n in range(4)] == [True, False, True, True]


def test_the_cache_bounds_bytes_and_keeps_the_newest():
    cache = PlanCache(max_plans=10, max_bytes=100)
    cache.keep(key(0), Made(), 60)
    cache.keep(key(1), Made(), 60)
    assert len(cache) == 1
    cache.keep(key(2), Made(), 1000)
    gc.collect()
    assert cache.find(key(1)) is None
    assert cache.find(key(2)) is not None


def test_the_cache_finds_what_someone_holds():
    cache = PlanCache(max_plans=1)
    held = Made()
    cache.keep(key(0), held, 1)
    cache.keep(key(1), Made(), 1)
    assert cache.find(key(0)) is held
    assert cache.keep(key(0), Made(), 1) is held


def test_a_plan_stays_alive_beside_the_cache():
    q, k, v = inputs()
    plan = flashmask.plan(masks.causal(N, N), q, k, v)
    live = plan._live
    plans.clear()
    flashmask.attention(q, k, v, plan=plan)
    source = plan.tensor[:128].numpy().tobytes()
    assert plans.find(key_on_cpu(source, (q.shape, k.shape, v.shape), 0, Call())) is live


def test_equal_row_indices_share_a_plan_and_changed_ones_do_not():
    q, k, v = inputs()
    rows = torch.full((1, 1, N, 1), N, dtype=torch.int32)
    plans.clear()
    a = flashmask.flashmask_attention(q, k, v, rows, causal=True)
    b = flashmask.flashmask_attention(q, k, v, rows.clone(), causal=True)
    assert len(plans) == 1
    assert torch.equal(a, b)
    rows[:, :, :40] = 40  # in place: the contents are what counts
    changed = flashmask.flashmask_attention(q, k, v, rows, causal=True)
    assert len(plans) == 2
    assert torch.equal(changed, flashmask.attention(q, k, v, masks.causal_document([40, 30])))


def test_one_mask_has_a_plan_for_each_scale_dtype_and_dropout():
    seed = torch.tensor([1, 2])
    mask = masks.causal(N, N).tensor
    calls = [(torch.float32, 0.2, 0.0), (torch.float32, 0.9, 0.0), (torch.float64, 0.2, 0.0), (torch.float32, 0.2, 0.5)]
    results = {}
    for dtype, scale, p in (*calls, *calls):
        q, k, v = inputs(dtype)
        o, _ = torch.ops.flashmask.forward(q, k, v, mask, None, False, scale, p, seed)
        if p == 0:
            seen = torch.ones(N, N, dtype=torch.bool).tril()[None, None]
            torch.testing.assert_close(o, softmax_attention(q, k, v, seen, scale)[0])
        assert torch.equal(results.setdefault((dtype, scale, p), o), o)
    assert not torch.equal(results[calls[0]], results[calls[3]])


def test_threads_share_plans():
    q, k, v = inputs()
    chosen = [FAMILIES[name]() for name in ("causal", "document", "graph", "tree")]
    expected = [flashmask.attention(q, k, v, mask) for mask in chosen]

    def work(first):
        for turn in range(first, first + 400):
            if turn % 5 == 0:
                plans.clear()  # destroys plans while other threads look for them
            at = turn % len(chosen)
            assert torch.equal(flashmask.attention(q, k, v, chosen[at]), expected[at])

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(4)))
    finally:
        sys.setswitchinterval(before)


def test_a_plan_says_what_was_compiled_for_it(monkeypatch):
    plan = flashmask.plan(masks.causal(N, N), *inputs())
    assert plan.explain().compiled == ()
    kernel = CompiledKernel("backward", "sm80::column_kernel", "compiler", 3.1415, 4, "NVRTC 13.0, /lib/libnvrtc.so.13")
    monkeypatch.setattr(type(plan._live), "compiled", lambda _, direction: (kernel,) if direction else ())
    assert plan.explain().compiled == (kernel,)
    told = "backward sm80::column_kernel from compiler in 3.14 s, 4 bytes spilled, NVRTC 13.0, /lib/libnvrtc.so.13"
    assert str(plan.explain()).endswith(f"compiled    {told}")
    assert str(replace(kernel, origin="memory")).startswith("backward sm80::column_kernel from memory, 4 bytes")
