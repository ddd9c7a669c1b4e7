# SPDX-License-Identifier: Apache-2.0
"""Attention sinks on a GPU: against float64, and with autograd, compile, checkpointing and graphs."""

import pytest
import torch
from attention_oracle import assert_within_bound, softmax_attention
from cuda_device import inputs, needs_gpu
from mask_families import FAMILIES, N, visible
from torch.utils.checkpoint import checkpoint

import flashmask
from flashmask import masks

pytestmark = needs_gpu
HEADS = 4


def given(dtype=torch.bfloat16, dim=64, tokens=N, of_rows=False, narrow=False):
    """q, k, v, sinks, grad_o, grad_lse."""
    q, k, v, grad_o, grad_lse = inputs(2, tokens, tokens, HEADS, 2, dim, dtype=dtype)
    shape = (2, HEADS, tokens) if of_rows else (HEADS,)
    sinks = torch.randn(shape, generator=torch.Generator().manual_seed(5)).cuda()
    return [q, k, v, sinks.to(dtype) if narrow else sinks, grad_o, grad_lse]


def gradients(compute, tensors, grad_o, grad_lse):
    leaves = [t.detach().clone().requires_grad_() for t in tensors]
    o, lse = compute(*leaves)
    return [o.detach(), lse.detach(), *torch.autograd.grad((o, lse), leaves, (grad_o, grad_lse))]


def check(mask, tensors, **options):
    *leaves, grad_o, grad_lse = tensors
    dtype, seen = leaves[0].dtype, visible(mask).cuda()
    found = gradients(
        lambda *t: flashmask.attention(*t[:3], mask, sinks=t[3], return_lse=True, **options), leaves, grad_o, grad_lse
    )
    exact, naive = (
        gradients(
            lambda *t: softmax_attention(*t[:3], seen, sinks=t[3]),
            [t.to(kind) for t in leaves],
            grad_o.to(kind),
            grad_lse.to(kind),
        )
        for kind in (torch.float64, dtype)
    )
    assert found[5].dtype == leaves[3].dtype
    assert_within_bound(found[:5], exact[:5], naive[:5], dtype)
    largest = max(1.0, float(exact[5].abs().max()))
    assert (found[5] - exact[5]).abs().max() <= 2 * (naive[5] - exact[5]).abs().max() + 0.01 * largest


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("deterministic", [False, True])
def test_every_family_holds_the_bound(name, deterministic):
    for of_rows in (False, True):
        check(FAMILIES[name](), given(of_rows=of_rows), deterministic=deterministic)


@pytest.mark.parametrize("dim", [64, 128, 192, 256, 512, 40])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_head_dims_and_dtypes_hold_the_bound(dim, dtype):
    for narrow in (False, True):
        check(masks.sliding_window(300, 300, 90), given(dtype, dim, 300, narrow=narrow))


def test_the_gradient_is_the_same_on_every_run():
    *leaves, grad_o, grad_lse = given(tokens=9000)
    mask = masks.sliding_window(9000, 9000, 128)
    runs = [
        gradients(
            lambda *t: flashmask.attention(*t[:3], mask, sinks=t[3], return_lse=True, deterministic=True),
            leaves,
            grad_o,
            grad_lse,
        )
        for _ in range(3)
    ]
    for other in runs[1:]:
        for a, b in zip(runs[0], other, strict=True):
            assert torch.equal(a, b)


def test_rows_that_see_nothing_have_the_lse_of_their_sink():
    q, k, v, sinks, *_ = given()
    leaf = sinks.requires_grad_()
    o, lse = flashmask.attention(q, k, v, masks.causal_document([N - 8], N), sinks=leaf, return_lse=True)
    assert torch.equal(o[:, -8:], torch.zeros_like(o[:, -8:]))
    torch.testing.assert_close(lse[..., -8:], sinks.detach()[:, None].expand(2, HEADS, 8))
    lse[..., -8:].sum().backward()
    torch.testing.assert_close(leaf.grad, torch.full((HEADS,), 16.0, device="cuda"))


def test_compile_and_checkpointing_give_the_same():
    *leaves, grad_o, _ = given()
    mask = masks.causal_document([30, N - 30])

    def attend(q, k, v, sinks):
        return flashmask.attention(q, k, v, mask, sinks=sinks).sin()

    torch._dynamo.reset()
    compiled = torch.compile(attend, fullgraph=True)
    runs = []
    for compute in (attend, lambda *t: checkpoint(attend, *t, use_reentrant=False), compiled):
        tensors = [t.clone().requires_grad_() for t in leaves]
        runs.append(torch.autograd.grad(compute(*tensors), tensors, grad_o))
    for run in runs[1:]:
        for a, b in zip(runs[0], run, strict=True):
            # Parts of gradients are added in any order, and a compiled sine rounds elsewhere.
            assert (a - b).abs().max() <= 0.02 * max(1.0, float(a.abs().max()))


def test_a_captured_graph_reads_the_sinks_anew():
    q, k, v, sinks, *_ = given()
    mask = masks.causal_document([30, N - 30])
    flashmask.attention(q, k, v, mask, sinks=sinks)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = flashmask.attention(q, k, v, mask, sinks=sinks)
    sinks += 1
    graph.replay()
    assert torch.equal(captured, flashmask.attention(q, k, v, mask, sinks=sinks))


def test_an_empty_batch_has_gradients_of_zero():
    q, k, v = (torch.empty(0, 8, 2, 64, dtype=torch.bfloat16, device="cuda") for _ in range(3))
    sinks = torch.ones(2, requires_grad=True, device="cuda")
    flashmask.attention(q, k, v, masks.causal(8, 8), sinks=sinks).sum().backward()
    assert torch.equal(sinks.grad, torch.zeros(2, device="cuda"))


def test_sinks_on_another_device_are_refused():
    q, k, v, *_ = given()
    with pytest.raises(ValueError, match="sinks is on cpu; expected cuda:0, the device of q"):
        flashmask.attention(q, k, v, masks.causal(N, N), sinks=torch.ones(HEADS))
