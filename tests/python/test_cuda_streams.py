# SPDX-License-Identifier: Apache-2.0
"""Streams, captures of CUDA graphs, and row indices that change, on a GPU."""

import gc
import weakref

import pytest
import torch
from cuda_device import inputs, needs_gpu

import flashmask
from flashmask import masks

pytestmark = needs_gpu
TOKENS = 600


def ends(*values):
    return torch.tensor([0, *values, TOKENS], dtype=torch.int32, device="cuda")


def rows_of(*values):
    return masks.from_cu_seqlens(ends(*values), TOKENS).startend_row_indices


def attend(q, k, v, rows):
    return flashmask.flashmask_attention(q, k, v, rows, causal=True)


def expected(q, k, v, *values):
    """Under row indices that nobody has seen before."""
    return attend(q, k, v, rows_of(*values))


def three(seed=0):
    return inputs(2, TOKENS, TOKENS, 4, 2, 64, seed=seed)[:3]


def test_row_indices_may_change_in_place():
    q, k, v = three()
    rows = rows_of(100)
    for cut in (100, 250, 400):
        rows.copy_(rows_of(cut))
        for _ in range(2):
            assert torch.equal(attend(q, k, v, rows), expected(q, k, v, cut))


def test_row_indices_of_inference_mode_may_change_in_place():
    q, k, v = three()
    with torch.inference_mode():
        rows = rows_of(100)
        for cut in (100, 250):
            rows.copy_(rows_of(cut))
            assert torch.equal(attend(q, k, v, rows), expected(q, k, v, cut))


def test_plans_go_with_their_row_indices():
    from flashmask._torch.plans.device_plans import _of_tensors, _owner

    q, k, v = three()
    gc.collect()
    before = len(_of_tensors)
    rows = rows_of(100)
    attend(q, k, v, rows)
    assert len(_of_tensors) == before + 1
    ((plan, _),) = _of_tensors.get(_owner(rows)[0]).plans.values()
    gone = weakref.ref(plan)
    del plan, rows
    gc.collect()
    assert len(_of_tensors) == before
    assert gone() is None


@pytest.mark.parametrize("kind", ["mask", "row indices", "no mask"])
def test_a_plan_of_one_stream_serves_another(kind):
    """The first stream is kept busy, so that a stream that did not wait would read a plan that is not there yet."""
    q, k, v = three()
    busy = torch.randn(8192, 8192, device="cuda")
    sides = [torch.cuda.Stream() for _ in range(3)]
    for turn in range(5):
        cut = 100 + 60 * turn
        mask = {"mask": masks.causal_document([cut, TOKENS - cut]), "row indices": rows_of(cut), "no mask": None}[kind]
        scale = 0.1 + 0.01 * turn  # another plan

        def compute(mask=mask, scale=scale):
            if kind == "row indices":
                return flashmask.flashmask_attention(q, k, v, mask, causal=True, softmax_scale=scale)
            return flashmask.attention(q, k, v, mask, scale=scale)

        torch.cuda.synchronize()
        with torch.cuda.stream(sides[0]):
            for _ in range(20):
                busy @ busy
            results = [compute()]
        for side in sides[1:]:
            with torch.cuda.stream(side):
                results.append(compute())
        torch.cuda.synchronize()
        right = flashmask.attention(q, k, v, masks.causal_document([cut, TOKENS - cut]) if mask is not None else None,
                                    scale=scale)  # fmt: skip
        assert all(torch.equal(result, right) for result in results)


def test_memory_of_a_plan_outlives_its_row_indices_on_another_stream():
    q, k, v = three()
    right = expected(q, k, v, 250)
    busy = torch.randn(8192, 8192, device="cuda")
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    for _ in range(5):
        rows = rows_of(250)
        attend(q, k, v, rows)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(10):
                busy @ busy
            found = attend(q, k, v, rows)
        rows.record_stream(side)
        del rows
        gc.collect()
        poison = [torch.full((1 << 14,), -1, dtype=torch.int32, device="cuda") for _ in range(64)]
        torch.cuda.synchronize()
        assert torch.equal(found, right)
        del poison


def test_two_streams_compute_at_once():
    given = [three(seed) for seed in (1, 2)]
    rows = rows_of(100, 350)
    right = [expected(*each, 100, 350) for each in given]
    sides = [torch.cuda.Stream() for _ in range(2)]
    torch.cuda.synchronize()
    for _ in range(50):
        found = []
        for side, each in zip(sides, given, strict=True):
            with torch.cuda.stream(side):
                found.append(attend(*each, rows))
        torch.cuda.synchronize()
        assert all(torch.equal(a, b) for a, b in zip(found, right, strict=True))


def captured(compute):
    """A graph of compute(), after a warm-up on a side stream, and what it writes."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            compute()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = compute()
    return graph, result


@pytest.mark.parametrize("kind", ["mask", "plan", "no mask", "causal"])
def test_a_graph_replays_a_mask_of_the_host(kind):
    static = three()
    mask = None if kind in ("no mask", "causal") else masks.causal_document([250, 350])
    plan = flashmask.plan(mask, *static) if kind == "plan" else None

    def compute(q, k, v):
        if kind == "causal":
            return flashmask.flashmask_attention(q, k, v, causal=True)
        return flashmask.attention(q, k, v, plan=plan) if plan else flashmask.attention(q, k, v, mask)

    graph, result = captured(lambda: compute(*static))
    forget_every_plan()
    poison = [torch.full((1 << 14,), -1, dtype=torch.int32, device="cuda") for _ in range(64)]
    for seed in (1, 2):
        fresh = three(seed)
        for to, tensor in zip(static, fresh, strict=True):
            to.copy_(tensor)
        graph.replay()
        assert torch.equal(result, compute(*fresh))
    del poison


def forget_every_plan():
    """What 32 other masks do to the cache."""
    from flashmask._torch.plans.device_plans import device_plans

    device_plans.clear()
    gc.collect()


@pytest.mark.parametrize("layers", [1, 3])
def test_a_graph_replays_row_indices_that_change(layers):
    q, k, v = three()
    rows = rows_of(100)

    def compute():
        o = q
        for _ in range(layers):
            o = attend(o, k, v, rows)
        return o

    graph, result = captured(compute)
    for cut in (100, 333, 512):
        rows.copy_(rows_of(cut))
        graph.replay()
        right = q
        for _ in range(layers):
            right = expected(right, k, v, cut)
        assert torch.equal(result, right)
        assert torch.equal(attend(q, k, v, rows), expected(q, k, v, cut))  # not the graph's plan


def test_a_graph_makes_row_indices_of_what_changes():
    q, k, v = three()
    cu_seqlens = ends(100)

    def compute():
        packed = flashmask.varlen_attention(q[0], k[0], v[0], cu_seqlens, cu_seqlens, causal=True)
        return packed, flashmask.attention(q, k, v, masks.from_cu_seqlens(cu_seqlens, TOKENS))

    graph, result = captured(compute)
    for cut in (100, 333, 512):
        cu_seqlens.copy_(ends(cut))
        graph.replay()
        right = expected(q, k, v, cut)
        assert torch.equal(result[0], right[0])
        assert torch.equal(result[1], right)
        assert torch.equal(compute()[0], right[0])


def test_two_graphs_of_the_same_row_indices():
    first, second = three(1), three(2)
    rows = rows_of(100)
    graphs = [captured(lambda given=given: attend(*given, rows)) for given in (first, second)]
    for cut in (250, 400):
        rows.copy_(rows_of(cut))
        for graph, _ in reversed(graphs):
            graph.replay()
        for (_, result), given in zip(graphs, (first, second), strict=True):
            assert torch.equal(result, expected(*given, cut))


def test_a_capture_cannot_upload_a_mask():
    q, k, v = three()
    mask = masks.causal_document([77, TOKENS - 77])
    with (
        pytest.raises(RuntimeError, match="run once with the mask before the capture"),
        torch.cuda.graph(torch.cuda.CUDAGraph()),
    ):
        flashmask.attention(q, k, v, mask)
    torch.cuda.synchronize()
    assert torch.equal(flashmask.attention(q, k, v, mask), expected(q, k, v, 77))


@pytest.mark.parametrize("kind", ["mask", "row indices"])
@pytest.mark.parametrize("deterministic", [False, True])
def test_a_graph_replays_forward_and_backward(kind, deterministic):
    static = [t.requires_grad_() for t in three()]
    rows = rows_of(100)
    mask = masks.causal_document([100, TOKENS - 100]) if kind == "mask" else flashmask.RowIndices(rows, True)

    def compute(given=static, mask=mask):
        o = flashmask.attention(*given, mask, deterministic=deterministic)
        return [o, *torch.autograd.grad(o.float().square().sum(), given)]

    graph, result = captured(compute)
    cut = 100
    for seed in (1, 2):
        fresh = [t.requires_grad_() for t in three(seed)]
        with torch.no_grad():
            for to, tensor in zip(static, fresh, strict=True):
                to.copy_(tensor)
        if kind == "row indices":
            cut += 111
            rows.copy_(rows_of(cut))
        graph.replay()
        right = compute(fresh, masks.causal_document([cut, TOKENS - cut]))
        for a, b in zip(result, right, strict=True):
            torch.testing.assert_close(a, b, atol=2e-2, rtol=2e-2)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there is one CUDA device")
def test_several_devices_compute_in_one_process():
    here = three()
    there = [t.to("cuda:1") for t in here]
    mask = masks.causal_document([250, 350])
    right = flashmask.attention(*here, mask)
    assert torch.equal(flashmask.attention(*there, mask).to("cuda:0"), right)  # cuda:0 is current
    rows = rows_of(250)
    assert torch.equal(attend(*there, rows.to("cuda:1")).to("cuda:0"), right)
    with torch.cuda.device(1):
        assert torch.equal(flashmask.attention(*here, mask), right)
    expected, found = (
        torch.autograd.grad(flashmask.attention(*leaves, mask, deterministic=True).float().sum(), leaves)
        for leaves in ([t.detach().requires_grad_() for t in where] for where in (here, there))
    )
    assert all(torch.equal(a, b.to("cuda:0")) for a, b in zip(expected, found, strict=True))
    with pytest.raises(ValueError, match="startend_row_indices is on cuda:0; expected cuda:1"):
        attend(*there, rows)
