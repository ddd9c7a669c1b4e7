# SPDX-License-Identifier: Apache-2.0
"""return_max_scores: the largest score of each row, against the dense formula in double precision."""

import numpy as np
import pytest
import torch
from attention_oracle import random_inputs, scores_of
from mask_families import FAMILIES, N, visible

import flashmask
import flashmask.distributed
import flashmask.operators
from flashmask import masks

pytestmark = pytest.mark.kernels

BATCH, HEADS, KV_HEADS = 2, 4, 2
SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0])
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 1e-5}


def inputs(dtype=torch.float32, rows=N, columns=N):
    return [each.to(dtype) for each in random_inputs(BATCH, rows, columns, HEADS, KV_HEADS, 16, 24)[:3]]


def largest(q, k, *given, **changes):
    return scores_of(q.double(), k.double(), *given, **changes).amax(-1)


def check(found, wanted):
    tolerance = TOLERANCE[found.dtype]
    torch.testing.assert_close(found.double(), wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_has_the_maxima_of_the_formula(name, dtype):
    mask, (q, k, v) = FAMILIES[name](), inputs(dtype)
    o, lse, found = flashmask.attention(q, k, v, mask, return_lse=True, return_max_scores=True)
    check(found, largest(q, k, visible(mask)))
    assert found.shape == lse.shape and found.dtype is lse.dtype
    again, same_lse = flashmask.attention(q, k, v, mask, return_lse=True)
    assert torch.equal(o, again) and torch.equal(lse, same_lse)


ALIBI = -SLOPES[None, :, None, None] * (torch.arange(N)[:, None] - torch.arange(N)).abs()
CHANGES = {
    "scale": ({"scale": -0.7}, {"scale": -0.7}),
    "softcap": ({"softcap": 1.0}, {"softcap": 1.0}),
    "alibi": ({"alibi_slopes": SLOPES}, {"bias": ALIBI}),
    "softcap and alibi": ({"softcap": 2.0, "alibi_slopes": SLOPES}, {"softcap": 2.0, "bias": ALIBI}),
    "a row of biases": ({"bias": torch.linspace(-3, 3, N)[None, None, None]},) * 2,
    "dropout and sinks": ({"dropout": 0.5, "sinks": torch.full((HEADS,), 50.0)}, {}),
    "invariance": ({"invariant": True}, {}),
}


@pytest.mark.parametrize("name", CHANGES)
def test_scores_are_scaled_and_changed_without_sinks_and_dropout(name):
    (given, formula), (q, k, v) = CHANGES[name], inputs()
    mask = masks.causal_document([31, 0, 20], N)
    o, found = flashmask.attention(q, k, v, mask, return_max_scores=True, **given)
    check(found, largest(q, k, visible(mask), **formula))
    assert o.shape == (BATCH, N, HEADS, 24)


def test_steps_that_the_kernels_maxima_lag_behind_count():
    q, k = torch.ones(1, 200, 1, 1), torch.arange(200).float().div(64, rounding_mode="floor")[None, :, None, None]
    _, found = flashmask.attention(q, 5 * k, k, masks.causal(200, 200), scale=1.0, return_max_scores=True)
    check(found, (5.0 * (torch.arange(200) // 64)).double()[None, None])


def test_gradients_keep_their_bits_and_maxima_have_none():
    tensors = [each.requires_grad_() for each in inputs()]
    learning = {
        "bias": torch.randn(1, HEADS, N, N, requires_grad=True),
        "sinks": torch.randn(HEADS, requires_grad=True),
    }
    mask, grad = masks.sliding_window(N, N, 9), torch.randn(BATCH, N, HEADS, 24)
    for asked in ({}, learning):
        gradients = []
        for also in (False, True):
            o, lse, *found = flashmask.attention(*tensors, mask, return_lse=True, return_max_scores=also, **asked)
            assert not any(each.requires_grad for each in found)
            grad_lse = lse.detach().nan_to_num(neginf=0.0)
            gradients.append(torch.autograd.grad([o, lse], [*tensors, *asked.values()], [grad, grad_lse]))
        for a, b in zip(*gradients, strict=True):
            assert torch.equal(a, b)
    o, _ = flashmask.attention(*tensors, return_max_scores=True)
    first = torch.autograd.grad(o.sum(), tensors[0], create_graph=True)[0]
    with pytest.raises(NotImplementedError, match="attention is differentiable once"):
        first.sum().backward()


def test_compiled_calls_have_the_same_bits():
    q, k, v = (each.requires_grad_() for each in inputs())
    mask = masks.causal(N, N)

    def step(q, k, v):
        o, found = flashmask.attention(q, k, v, mask, return_max_scores=True)
        return o * 2, found.amax(dim=(0, 2))

    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    for a, b in zip(compiled(q, k, v), step(q, k, v), strict=True):
        assert torch.equal(a, b)
    grads = (torch.autograd.grad(each(q, k, v)[0].sum(), (q, k, v)) for each in (compiled, step))
    for a, b in zip(*grads, strict=True):
        assert torch.equal(a, b)


def test_the_operator_passes_opcheck():
    operator = torch.ops.flashmask.forward_with_max_scores.default
    q, k, v = (each.requires_grad_() for each in inputs())
    torch.library.opcheck(operator, (q, k, v, None, None, True, 0.0, 0.0, None))


def test_layouts_autocast_and_arrays():
    q, k, v = inputs()
    wanted = flashmask.attention(q, k, v, return_max_scores=True)[1]
    o, found = flashmask.attention(*(each.transpose(1, 2) for each in (q, k, v)), layout="bhsd", return_max_scores=True)
    assert torch.equal(found, wanted) and o.shape == (BATCH, HEADS, N, 24)
    o, lse, found = flashmask.attention(*(each.numpy() for each in (q, k, v)), return_lse=True, return_max_scores=True)
    assert np.array_equal(found, wanted.numpy()) and lse.shape == found.shape
    with torch.autocast("cpu", torch.bfloat16):
        o, found = flashmask.attention(q, k, v, return_max_scores=True)
    assert o.dtype is torch.bfloat16 and found.dtype is torch.float32
    check(found, largest(q.bfloat16(), k.bfloat16()))


def test_a_plan_that_moves_rows():
    place = torch.arange(200) * 37 % 200
    mask = masks.from_dense((place[:, None] - place[None]).abs() < 5)
    q, k, v = inputs(rows=200, columns=200)
    plan = flashmask.plan(mask, q, k, v, reorder=True)
    found = flashmask.attention(q, k, v, plan=plan, return_max_scores=True)[1]
    check(found, largest(q, k, visible(mask)))


def test_varlen_attention():
    q, k, v = (each[0] for each in inputs())
    ends = torch.tensor([0, 31, 31, 51])
    o, found = flashmask.varlen_attention(q, k, v, ends, ends, causal=True, return_max_scores=True)
    wanted = largest(q[None], k[None], visible(masks.causal_document([31, 0, 20], N)))[0]
    wanted[:, 51:] = -torch.inf
    check(found, wanted)
    with_lse = flashmask.varlen_attention(q, k, v, ends, ends, causal=True, return_lse=True, return_max_scores=True)
    of_flash = flashmask.varlen_attention(
        q, k, v, ends, ends, causal=True, return_attn_probs=True, return_max_scores=True
    )
    assert len(with_lse) == 3 and len(of_flash) == 4 and of_flash[2] is None
    for a, b in zip(with_lse, (of_flash[0], of_flash[1], of_flash[3]), strict=True):
        assert torch.equal(a, b)
    assert torch.equal(with_lse[0], o) and torch.equal(with_lse[2], found)


def test_refusals():
    q, k, v = inputs()
    for function in (flashmask.decode_attention, flashmask.flashmask_attention, flashmask.distributed.attention):
        with pytest.raises(TypeError, match="return_max_scores"):
            function(q, k, v, None, return_max_scores=True)
    with pytest.raises(NotImplementedError, match=r"torch.func.vmap"):
        torch.vmap(lambda q: flashmask.attention(q, q, q, return_max_scores=True))(q[None])
    with pytest.raises(NotImplementedError, match=r"torch.func.grad"):
        torch.func.grad(lambda q: flashmask.attention(q, k, v, return_max_scores=True)[0].sum())(q)
    with pytest.raises(NotImplementedError, match="forward-mode"), torch.autograd.forward_ad.dual_level():
        flashmask.attention(torch.autograd.forward_ad.make_dual(q, q), k, v, return_max_scores=True)
