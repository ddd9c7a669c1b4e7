# SPDX-License-Identifier: Apache-2.0
"""Dropout on a GPU: which scores are dropped, what becomes of them, and the rules of torch's generator."""

import ctypes

import numpy as np
import pytest
import torch
from attention_oracle import assert_within_bound, softmax_attention, value_and_gradients
from cuda_device import inputs, needs_gpu
from torch.utils.checkpoint import checkpoint

import flashmask
from flashmask._abi import structs as s
from flashmask._abi.library import call

pytestmark = needs_gpu
P = 0.25
BATCH, HEADS, KV_HEADS = 2, 4, 2


def kept_of(seed_offset, p, rows, columns):
    """Which probabilities the library says survive, [batch, heads, rows, columns] booleans."""
    problem = s.Problem(BATCH, rows, columns, HEADS, HEADS, 16, 16, s.F32, s.CPU, 0, 0.0, p)
    kept = np.empty((BATCH, HEADS, rows, columns), np.uint8)
    to = kept.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
    call("dropout_expand", ctypes.byref(problem), *seed_offset.tolist(), to, kept.size)
    return torch.from_numpy(kept).bool()


def given(dim=128, tokens=128, dtype=torch.bfloat16):
    """q, k, v, grad_o, grad_lse."""
    return inputs(BATCH, tokens, tokens, HEADS, KV_HEADS, dim, dtype=dtype)


def attend(q, k, v, **options):
    return flashmask.flashmask_attention(q, k, v, dropout=P, **options)


@pytest.fixture
def _the_same_bits():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("dim", [32, 64, 96, 128, 192, 256, 512])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_the_same_scores_are_dropped_as_on_the_cpu(dim, dtype):
    """With k = 0 every probability is 1 / columns, and v of unit vectors shows each by itself."""
    rows, columns = 200, 320
    q = torch.randn(BATCH, rows, HEADS, dim, device="cuda").to(dtype)
    k = torch.zeros(BATCH, columns, KV_HEADS, dim, device="cuda", dtype=dtype)
    seed = torch.tensor([2**63 - 5, 2**32 - 3], device="cuda")
    shown = []
    for first in range(0, columns, dim):
        v = torch.zeros_like(k)
        for column in range(first, min(first + dim, columns)):
            v[:, column, :, column - first] = 1
        o = attend(q, k, v, fixed_seed_offset=seed)
        shown.append(o[..., : min(dim, columns - first)])
    p = torch.cat(shown, dim=-1).transpose(1, 2).cpu()
    kept = kept_of(seed, P, rows, columns)
    assert torch.equal(p > 0, kept)
    torch.testing.assert_close(p[kept].float().mean().item(), 1 / 0.75 / columns, rtol=1e-2, atol=0)


@pytest.mark.parametrize("dim", [64, 128, 192, 256, 512, 40])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("deterministic", [False, True])
def test_results_and_gradients_hold_the_bound(dim, dtype, deterministic):
    tokens = 300
    tensors = given(dim, tokens, dtype)
    seed = torch.tensor([7, 11], device="cuda")
    kept = kept_of(seed, P, tokens, tokens).cuda()
    rows = torch.arange(tokens, device="cuda")
    seen = ((rows[:, None] >= rows) & (rows[:, None] < rows + 90))[None, None]
    starts = (rows + 90).clamp(max=tokens).to(torch.int32)[None, None, :, None]
    options = {"startend_row_indices": starts, "causal": True, "fixed_seed_offset": seed, "return_softmax_lse": True}

    def by_formula(q, k, v):
        return softmax_attention(q, k, v, seen, kept=kept, keep_scale=1 / (1 - P))

    def compute(q, k, v):
        return attend(q, k, v, **options)

    torch.use_deterministic_algorithms(deterministic)
    try:
        found = value_and_gradients(compute, tensors[:3], *tensors[3:], dtype)
    finally:
        torch.use_deterministic_algorithms(False)
    exact, naive = (value_and_gradients(by_formula, tensors[:3], *tensors[3:], kind) for kind in (torch.float64, dtype))
    assert_within_bound(found, exact, naive, dtype)


def test_a_seed_of_any_kind_repeats_a_call():
    q, k, v, *_ = given()
    first, seed = attend(q, k, v, return_seed_offset=True)
    assert seed.device == q.device
    for again in (seed, seed.cpu(), tuple(seed.tolist())):
        o, told = attend(q, k, v, fixed_seed_offset=again, return_seed_offset=True)
        assert torch.equal(o, first)
        assert told.tolist() == seed.tolist()
    assert not torch.equal(attend(q, k, v, fixed_seed_offset=seed + 1), first)


def test_seeds_are_one_draw_a_call_of_the_devices_generator():
    q, k, v, *_ = given()
    torch.manual_seed(5)
    on_cpu = torch.get_rng_state()
    (first, seed), (second, other) = (attend(q, k, v, return_seed_offset=True) for _ in range(2))
    after = torch.cuda.get_rng_state()
    assert not torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), on_cpu)
    torch.manual_seed(5)
    for expected in (seed, other):
        assert torch.equal(torch.randint(2**32, (2,), device="cuda"), expected)
    assert torch.equal(torch.cuda.get_rng_state(), after)
    torch.manual_seed(5)
    assert torch.equal(attend(q, k, v), first)
    before = torch.cuda.get_rng_state()
    flashmask.flashmask_attention(q, k, v, dropout=P, training=False)
    assert torch.equal(torch.cuda.get_rng_state(), before)


@pytest.mark.usefixtures("_the_same_bits")
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_repeats_the_forward(reentrant):
    *tensors, grad_o, _ = given()

    def run(compute):
        torch.manual_seed(3)
        leaves = [t.detach().clone().requires_grad_() for t in tensors]
        o = compute(*leaves)
        attend(*tensors)  # a draw between forward and backward
        return [o, *torch.autograd.grad(o, leaves, grad_o)] if not reentrant else _by_backward(o, leaves, grad_o)

    plain = run(lambda *t: attend(*t).sin())
    kept = run(lambda *t: checkpoint(lambda *u: attend(*u).sin(), *t, use_reentrant=reentrant))
    for a, b in zip(plain, kept, strict=True):
        assert torch.equal(a, b)


def _by_backward(o, leaves, grad_o):
    o.backward(grad_o)
    return [o, *(leaf.grad for leaf in leaves)]


@pytest.mark.usefixtures("_the_same_bits")
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled_code_draws_anew_and_its_backward_repeats(mode):
    *tensors, grad_o, _ = given()

    def told(q, k, v):
        return attend(q, k, v, causal=True, return_seed_offset=True)

    torch._dynamo.reset()
    compiled = torch.compile(told, fullgraph=True, mode=mode)
    seeds = []
    for _ in range(4):
        torch.compiler.cudagraph_mark_step_begin()
        leaves = [t.detach().clone().requires_grad_() for t in tensors]
        o, seed = compiled(*leaves)
        found = [t.clone() for t in (o, *torch.autograd.grad(o, leaves, grad_o))]
        seeds.append(tuple(seed.tolist()))
        leaves = [t.detach().clone().requires_grad_() for t in tensors]
        o = attend(*leaves, causal=True, fixed_seed_offset=seeds[-1])
        for a, b in zip(found, (o, *torch.autograd.grad(o, leaves, grad_o)), strict=True):
            assert torch.equal(a, b)
    assert len(set(seeds)) == len(seeds)


@pytest.mark.usefixtures("_the_same_bits")
def test_a_captured_graph_drops_other_scores_each_time():
    *tensors, grad_o, _ = given()

    def step(**options):
        leaves = [t.detach().requires_grad_() for t in tensors]
        o, seed = attend(*leaves, causal=True, return_seed_offset=True, **options)
        return [seed, o, *torch.autograd.grad(o, leaves, grad_o)]

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    torch.manual_seed(9)
    runs = []
    for _ in range(3):
        graph.replay()
        runs.append([t.clone() for t in captured])
    assert len({tuple(run[0].tolist()) for run in runs}) == 3
    for run in runs:
        for a, b in zip(run, step(fixed_seed_offset=run[0]), strict=True):
            assert torch.equal(a, b)
    torch.manual_seed(9)
    graph.replay()
    assert all(torch.equal(a, b) for a, b in zip(captured, runs[0], strict=True))


def test_a_seed_of_the_wrong_kind_is_refused():
    q, k, v, *_ = given()
    operands = (None, None, False, 0.0, P)
    with pytest.raises(ValueError, match=r"seed_offset is torch.int32 \[2\]; expected int64 \[2\]"):
        torch.ops.flashmask.forward(q, k, v, *operands, torch.zeros(2, dtype=torch.int32, device="cuda"))
    with pytest.raises(ValueError, match=r"holds the offset 4294967296; expected one in \[0, 2\^32\)"):
        attend(q, k, v, fixed_seed_offset=(1, 2**32))
