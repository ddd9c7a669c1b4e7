# SPDX-License-Identifier: Apache-2.0
"""decode_attention() and merge() of CUDA tensors: against float64, in graphs, and without waiting for the device."""

import pytest
import torch
from attention_oracle import random_inputs
from cuda_device import check, inputs, needs_gpu
from decode_cases import CALLS, MEDUSA, visible

import flashmask
from flashmask._torch.decode import parts_of

pytestmark = needs_gpu


def decoded(lengths, *arguments, **options):
    given = None if lengths is None else torch.tensor(lengths, device="cuda")
    return lambda q, k, v: flashmask.decode_attention(q, k, v, given, *arguments, return_lse=True, **options)


@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("name", CALLS)
def test_calls_hold_the_bound(name, dim):
    batch, rows, keys, heads, kv_heads, lengths, parents, splits = CALLS[name]
    if keys == 0:
        pytest.skip("the oracle takes no maximum over no keys")
    seen = visible(rows, keys, lengths or [keys] * batch, parents)
    check(decoded(lengths, parents, splits=splits), inputs(batch, rows, keys, heads, kv_heads, dim), seen)


def test_float16_and_gradients_hold_the_bound():
    given = inputs(2, 21, 300, 4, 2, 64, dtype=torch.float16)
    check(decoded([300, 100], MEDUSA, splits=3), given, visible(21, 300, [300, 100], MEDUSA), gradients=True)


@pytest.mark.parametrize("heads_first", [False, True])
def test_a_cache_that_is_longer_than_its_keys_is_not_copied(heads_first):
    q, k, v, *_ = inputs(1, 4, 4096, 8, 2, 128)
    if heads_first:
        k, v = (each.transpose(1, 2).contiguous().transpose(1, 2) for each in (k, v))
    k, v = k[:, :3001], v[:, :3001]
    expected = flashmask.decode_attention(q, k.contiguous(), v.contiguous(), splits=6)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    assert torch.equal(flashmask.decode_attention(q, k, v, splits=6), expected)
    assert torch.cuda.max_memory_allocated() - before < k.numel() * k.element_size() / 2


def test_one_graph_serves_other_lengths_and_values():
    q, k, v, *_ = inputs(2, 21, 2048, 8, 2, 128)
    lengths = torch.tensor([2048, 2048], device="cuda")
    call = decoded_layers(q, k, v, lengths)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = call()
    for new, seed in (([100, 2048], 3), ([0, 21], 4), ([2047, 1000], 5)):
        lengths.copy_(torch.tensor(new))
        q.copy_(inputs(2, 21, 8, 8, 2, 128, seed=seed)[0])
        graph.replay()
        for found, expected in zip(captured, call(), strict=True):
            assert torch.equal(found, expected)


def test_compiled_calls_hold_the_bound():
    lengths, seen = [300, 77], visible(21, 300, [300, 77], MEDUSA)
    call = torch.compile(decoded(lengths, MEDUSA, splits=3), fullgraph=True)
    check(call, inputs(2, 21, 300, 4, 2, 64), seen, gradients=True)


def decoded_layers(q, k, v, lengths):
    """Two layers, of which the second takes the first one's result."""

    def call():
        first = flashmask.decode_attention(q, k, v, lengths, MEDUSA, splits=4)
        return flashmask.decode_attention(first, k, v, lengths, MEDUSA, return_lse=True)

    return call


def test_lengths_do_not_wait_for_the_device():
    q, k, v, *_ = inputs(2, 3, 1024, 4, 2, 64)
    lengths = torch.tensor([1000, 3], device="cuda")
    flashmask.decode_attention(q, k, v, lengths)
    torch.cuda.set_sync_debug_mode("error")
    try:
        lengths += 1
        flashmask.decode_attention(q, k, v, lengths)
        flashmask.decode_attention(q, k, v, lengths, splits=8)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize(("mode", "keys"), [("no_grad", 777), ("inference_mode", 778)])
def test_layers_share_a_mask_and_its_plan(mode, keys, monkeypatch):
    from flashmask._torch.plans import device_plans

    made = []
    real = device_plans.plan_of_rows
    monkeypatch.setattr(device_plans, "plan_of_rows", lambda *given: made.append(given) or real(*given))
    q, k, v, *_ = inputs(1, 3, keys, 4, 2, 64)
    lengths = torch.tensor([700], device="cuda")
    with getattr(torch, mode)():
        for _ in range(3):
            flashmask.decode_attention(q, k, v, lengths, splits=2)
            flashmask.decode_attention(q, k, v, splits=2)
    assert len(made) == 2


def test_by_default_parts_fill_the_device():
    multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count
    q, k, v, *_ = inputs(1, 64, 65536, 32, 8, 128)
    found = parts_of(q, k, v, None)
    assert found.together
    assert 0.9 * multiprocessors <= found.splits * 16 <= 4 * multiprocessors
    q, k, v, *_ = inputs(8, 64, 4096, 32, 8, 128)
    assert parts_of(q, k, v, None).splits <= 2
    assert parts_of(q[:1], k[:1, :200], v[:1, :200], None).splits == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_merge_is_that_of_the_cpu_and_differentiable(dtype):
    made = []
    for device in ("cpu", "cuda"):
        parts = [random_inputs(2, 30, 1, 4, 4, 1, 24, seed=seed)[3:] for seed in range(5)]
        leaves = [each.to(device, dtype if each.ndim == 4 else None) for part in parts for each in part]
        leaves[3][0, 0] = -torch.inf
        leaves = [leaf.detach().requires_grad_() for leaf in leaves]
        o, lse = flashmask.merge(*leaves)
        grads = torch.autograd.grad((o.float() * (1 + torch.arange(24, device=device))).sum() + lse.sum(), leaves)
        made.append([each.detach().cpu().float() for each in (o, lse, *grads)])
    for found, expected in zip(made[1], made[0], strict=True):
        bound = 1e-4 if dtype is torch.float32 else 2e-2
        torch.testing.assert_close(found, expected, atol=bound * max(1.0, expected.abs().max().item()), rtol=0)
