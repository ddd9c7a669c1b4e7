# SPDX-License-Identifier: Apache-2.0
"""Attention sinks: by their formula, through every function that takes them, and as PyTorch sees them."""

import numpy as np
import pytest
import torch
from attention_oracle import assert_within_bound, random_inputs, softmax_attention
from mask_families import FAMILIES, N, visible
from torch.utils.checkpoint import checkpoint

import flashmask
import flashmask.operators
from flashmask import masks

pytestmark = pytest.mark.kernels

BATCH, HEADS, KV_HEADS = 2, 4, 2
forward = torch.ops.flashmask.forward.default
backward_with_sinks = torch.ops.flashmask.backward_with_sinks.default


def given(dtype, of_rows=False, rows=N, columns=N):
    """q, k, v, sinks, grad_o, grad_lse."""
    q, k, v, grad_o, grad_lse = random_inputs(BATCH, rows, columns, HEADS, KV_HEADS, 16, 24)
    shape = (BATCH, HEADS, rows) if of_rows else (HEADS,)
    sinks = torch.randn(shape, generator=torch.Generator().manual_seed(5))
    lse_dtype = torch.float64 if dtype == torch.float64 else torch.float32
    return [*(t.to(dtype) for t in (q, k, v)), sinks, grad_o.to(dtype), grad_lse.to(lse_dtype)]


def gradients(compute, tensors, grad_o, grad_lse):
    """o, lse and the gradients of q, k, v and sinks."""
    leaves = [t.detach().clone().requires_grad_() for t in tensors]
    o, lse = compute(*leaves)
    return [o.detach(), lse.detach(), *torch.autograd.grad((o, lse), leaves, (grad_o, grad_lse))]


def check(compute, by_formula, tensors, dtype):
    """Holds compute(q, k, v, sinks) against float64 and the dtype's naive computation."""
    *inputs, grad_o, grad_lse = tensors
    found = gradients(compute, inputs, grad_o, grad_lse)
    exact, naive = (
        gradients(by_formula, [t.to(kind) for t in inputs], grad_o.to(kind), grad_lse.to(kind))
        for kind in (torch.float64, dtype)
    )
    assert [t.dtype for t in found[2:]] == [t.dtype for t in inputs]
    assert_within_bound(found[:5], exact[:5], naive[:5], dtype)
    largest = max(1.0, float(exact[5].abs().max()))
    limit = (2 * (naive[5] - exact[5]).abs().max() + 0.01 * largest) if dtype != torch.float64 else 1e-6 * largest
    assert (found[5] - exact[5]).abs().max() <= limit
    return found


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_sinks_that_do_not_learn_change_the_other_gradients_too(dtype):
    q, k, v, sinks, grad_o, grad_lse = given(dtype)
    found = []
    for learns in (True, False):
        leaves = [each.clone().requires_grad_() for each in (q, k, v)]
        o, lse = flashmask.attention(
            *leaves, masks.causal(N), sinks=sinks.clone().requires_grad_(learns), return_lse=True
        )
        found.append(torch.autograd.grad((o, lse), leaves, (grad_o, grad_lse)))
    assert all(map(torch.equal, *found))


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("of_rows", [False, True], ids=["heads", "rows"])
def test_every_family_has_the_gradients_of_the_formula(name, of_rows):
    mask = FAMILIES[name]()
    seen = visible(mask)
    for dtype in (torch.float32, torch.bfloat16):
        check(
            lambda q, k, v, sinks: flashmask.attention(q, k, v, mask, sinks=sinks, return_lse=True),
            lambda q, k, v, sinks: softmax_attention(q, k, v, seen, sinks=sinks),
            given(dtype, of_rows),
            dtype,
        )


@pytest.mark.parametrize("of_rows", [False, True], ids=["heads", "rows"])
def test_float64_has_the_gradients_of_dense_autograd(of_rows):
    mask = masks.causal_document([20, N - 27], N)  # the last seven rows see nothing
    q, k, v, sinks, grad_o, grad_lse = given(torch.float64, of_rows)
    for narrow in (sinks, sinks.double()):
        check(
            lambda *t: flashmask.attention(*t[:3], mask, scale=0.25, sinks=t[3], return_lse=True),
            lambda *t: softmax_attention(*t[:3], visible(mask), 0.25, sinks=t[3]),
            [q, k, v, narrow, grad_o, grad_lse],
            torch.float64,
        )


@pytest.mark.parametrize("shape", [(2,), (1, 2, 6)], ids=["heads", "rows"])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_gradients_are_those_of_finite_differences(shape, dropout):
    q, k, v = (t.double().requires_grad_() for t in random_inputs(1, 6, 7, 2, 1, 3, 2)[:3])
    sinks = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    mask = masks.sliding_window(6, 7, 3)
    seed = torch.tensor([11, 3])
    assert torch.autograd.gradcheck(
        lambda *t: forward(*t[:3], mask.tensor, None, False, 0.0, dropout, seed, sinks=t[3]),
        (q, k, v, sinks),
        check_undefined_grad=False,
    )


def test_rows_that_see_nothing_have_the_lse_of_their_sink():
    q, k, v, sinks, *_ = given(torch.float32)
    mask = masks.causal_document([N - 8], N)
    leaf = sinks.clone().requires_grad_()
    o, lse = flashmask.attention(q, k, v, mask, sinks=leaf, return_lse=True)
    assert torch.equal(o[:, -8:], torch.zeros_like(o[:, -8:]))
    assert torch.equal(lse[..., -8:], sinks[:, None].expand(BATCH, HEADS, 8))
    lse[..., -8:].sum().backward()
    torch.testing.assert_close(leaf.grad, torch.full((HEADS,), 8.0 * BATCH))


def test_a_nan_stays_with_its_head():
    q, k, v, sinks, *_ = given(torch.float32)
    sinks[1] = torch.nan
    o, lse = flashmask.attention(q, k, v, masks.causal_document([N - 8], N), sinks=sinks, return_lse=True)
    assert torch.equal(torch.isnan(o).any(-1).any(0).any(0), torch.tensor([False, True, False, False]))
    assert not torch.isnan(o[:, -8:]).any()
    assert torch.equal(torch.isnan(lse).any(-1).any(0), torch.tensor([False, True, False, False]))


def test_frozen_sinks_change_no_other_gradient():
    q, k, v, sinks, *_ = given(torch.float32)
    mask = masks.causal(N, N)
    runs = []
    for learns in (True, False):
        leaves = [t.clone().requires_grad_() for t in (q, k, v)]
        flashmask.attention(*leaves, mask, sinks=sinks.clone().requires_grad_(learns)).sum().backward()
        runs.append([t.grad for t in leaves])
    for a, b in zip(*runs, strict=True):
        assert torch.equal(a, b)


def test_sinks_alone_may_learn():
    q, k, v, sinks, *_ = given(torch.float32)
    leaf = sinks.requires_grad_()
    flashmask.attention(q, k, v, masks.causal(N, N), sinks=leaf).sum().backward()
    assert leaf.grad.abs().min() > 0


def test_each_function_takes_them():
    q, k, v, sinks, *_ = given(torch.float32)
    expected = softmax_attention(q, k, v, visible(masks.causal(N, N)), sinks=sinks)[0]
    ends = torch.full((1, 1, N, 1), N, dtype=torch.int32)
    cu = torch.arange(0, BATCH * N + 1, N)
    plan = flashmask.plan(masks.causal(N, N), q, k, v)
    flat = [t.flatten(0, 1) for t in (q, k, v)]
    of_tokens = sinks[:, None].expand(HEADS, BATCH * N)
    found = {
        "attention": flashmask.attention(q, k, v, masks.causal(N, N), sinks=sinks),
        "plan": flashmask.attention(q, k, v, plan=plan, sinks=sinks),
        "bhsd": flashmask.attention(
            *(t.transpose(1, 2) for t in (q, k, v)), masks.causal(N, N), layout="bhsd", sinks=sinks
        ).transpose(1, 2),
        "of rows": flashmask.attention(
            q, k, v, masks.causal(N, N), sinks=sinks[:, None, None].expand(BATCH, HEADS, N, 1)
        ),
        "rows": flashmask.flashmask_attention(q, k, v, ends, causal=True, sinks=sinks),
        "varlen": flashmask.varlen_attention(*flat, cu, cu, causal=True, sinks=sinks).view_as(expected),
        "varlen of tokens": flashmask.varlen_attention(*flat, cu, cu, causal=True, sinks=of_tokens).view_as(expected),
        "numpy": torch.from_numpy(
            flashmask.attention(*(t.numpy() for t in (q, k, v)), masks.causal(N, N), sinks=sinks.numpy())
        ),
        "numpy of rows": torch.from_numpy(
            flashmask.attention(
                *(t.numpy() for t in (q, k, v)),
                masks.causal(N, N),
                sinks=np.broadcast_to(sinks.numpy()[:, None], (BATCH, HEADS, N)),
            )
        ),
    }
    for name, o in found.items():
        torch.testing.assert_close(o, expected, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("first", [True, False])
def test_of_merged_parts_one_has_the_sinks(first):
    q, k, v, sinks, grad_o, grad_lse = given(torch.float64)
    seen = masks.causal(N, N).to_dense()

    def merged(q, k, v, sinks):
        parts = []
        for keys, has_them in ((slice(0, 30), first), (slice(30, N), not first)):
            part = masks.from_dense(seen[..., keys])
            parts += flashmask.attention(
                q, k[:, keys], v[:, keys], part, sinks=sinks if has_them else None, return_lse=True
            )
        return flashmask.merge(*parts)

    check(
        merged,
        lambda *t: softmax_attention(*t[:3], torch.from_numpy(seen), sinks=t[3]),
        [q, k, v, sinks.double(), grad_o, grad_lse],
        torch.float64,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("of_rows", [False, True], ids=["heads", "rows"])
def test_opcheck_passes(dtype, of_rows):
    q, k, v, sinks, *_ = given(dtype, of_rows)
    mask = masks.causal_document([20, N - 20]).tensor
    leaves = [t.requires_grad_() for t in (q, k, v, sinks.to(dtype))]
    torch.library.opcheck(forward, (*leaves[:3], mask, None, False, 0.3, 0.0, None, False, leaves[3]))
    values = [t.detach() for t in leaves]
    o, lse = forward(*values[:3], mask, None, False, 0.3, 0.0, None, False, values[3])
    for grad_lse in (None, torch.ones_like(lse)):
        arguments = o, grad_lse, *values[:3], o, lse, values[3], mask, None, False, 0.3, 0.0, None
        torch.library.opcheck(backward_with_sinks, arguments)


def test_torch_compile_gives_the_same_and_compiles_twice_at_most():
    from torch._dynamo.testing import CompileCounterWithBackend

    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")

    def attend(q, k, v, sinks, mask):
        return flashmask.attention(q, k, v, mask, sinks=sinks * 2, return_lse=True)

    compiled = torch.compile(attend, fullgraph=True, backend=counter)
    for tokens in (40, 56, 72, 90):
        *inputs, grad_o, grad_lse = given(torch.float32, rows=tokens, columns=tokens)
        mask = masks.causal_document([tokens // 3, tokens - tokens // 3])
        expected, found = (
            gradients(lambda *t, f=f, mask=mask: f(*t, mask), inputs, grad_o, grad_lse) for f in (attend, compiled)
        )
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b)
    assert counter.frame_count <= 2
    torch._dynamo.reset()


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_gives_the_same_bits(reentrant):
    *inputs, grad_o, _ = given(torch.float32)
    mask = masks.causal_document([30, N - 30])

    def attend(q, k, v, sinks):
        return flashmask.attention(q, k, v, mask, sinks=sinks).sin()

    runs = []
    for compute in (attend, lambda *t: checkpoint(attend, *t, use_reentrant=reentrant)):
        leaves = [t.clone().requires_grad_() for t in inputs]
        runs.append(torch.autograd.grad(compute(*leaves), leaves, grad_o) if not reentrant else None)
        if reentrant:
            compute(*leaves).backward(grad_o)
            runs[-1] = [t.grad for t in leaves]
    for a, b in zip(*runs, strict=True):
        assert torch.equal(a, b)


def test_the_dispatcher_and_the_direct_way_give_the_same_bits():
    *inputs, grad_o, grad_lse = given(torch.float32)
    mask = masks.causal(N, N)
    direct = gradients(
        lambda *t: flashmask.attention(*t[:3], mask, sinks=t[3], return_lse=True), inputs, grad_o, grad_lse
    )
    dispatched = gradients(
        lambda *t: forward(*t[:3], mask.tensor, None, False, 0.0, 0.0, None, False, t[3]), inputs, grad_o, grad_lse
    )
    for a, b in zip(direct, dispatched, strict=True):
        assert torch.equal(a, b)


def test_a_parameter_goes_the_direct_way():
    from flashmask._plans.call import Call
    from flashmask._torch.direct import kernels_of

    q, k, v, sinks, *_ = given(torch.float32)
    assert kernels_of(q, k, v, Call(sinks=torch.nn.Parameter(sinks))) is not None
    assert kernels_of(q, k, v, Call(sinks=sinks.to("meta"))) is None


def test_a_second_derivative_is_refused():
    q, k, v, sinks, *_ = given(torch.float32)
    leaf = sinks.requires_grad_()
    o = flashmask.attention(q, k, v, masks.causal(N, N), sinks=leaf)
    (first,) = torch.autograd.grad(o.square().sum(), leaf, create_graph=True)
    with pytest.raises(NotImplementedError, match="differentiable once"):
        first.sum().backward()


def test_autocast_leaves_their_dtype_alone():
    q, k, v, sinks, *_ = given(torch.float32)
    leaf = sinks.requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        o = flashmask.attention(q, k, v, masks.causal(N, N), sinks=leaf)
    o.float().sum().backward()
    assert o.dtype == torch.bfloat16
    assert leaf.grad.dtype == torch.float32


def test_an_empty_batch_has_gradients_of_zero():
    q, k, v = (torch.empty(0, 8, 2, 16) for _ in range(3))
    sinks = torch.ones(2, requires_grad=True)
    flashmask.attention(q, k, v, masks.causal(8, 8), sinks=sinks).sum().backward()
    assert torch.equal(sinks.grad, torch.zeros(2))


REFUSED = {
    "length": (
        torch.ones(3),
        ValueError,
        r"sinks has shape \[3\]; expected \[4\], one for each head of q, or \[2, 4, ",
    ),
    "rank": (torch.ones(1, HEADS), ValueError, r"sinks has shape \[1, 4\]; expected \[4\]"),
    "dtype": (torch.ones(HEADS).half(), TypeError, "sinks has dtype torch.float16; expected torch.float32, that of q"),
    "device": (torch.ones(HEADS, device="meta"), ValueError, "sinks is on meta; expected cpu, the device of q"),
    "kind": ([0.0] * HEADS, TypeError, "sinks is .*list.*; expected a torch tensor"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_sinks_are_refused_in_one_sentence(name):
    sinks, error, message = REFUSED[name]
    q, k, v, *_ = given(torch.float32)
    with pytest.raises(error, match=message):
        flashmask.attention(q, k, v, masks.causal(N, N), sinks=sinks)


def test_bad_sinks_of_arrays_are_refused():
    q, k, v, *_ = (t.numpy() for t in given(torch.float32))
    with pytest.raises(ValueError, match=r"sinks has shape \[3\]; expected \[4\], the heads of q"):
        flashmask.attention(q, k, v, masks.causal(N, N), sinks=np.ones(3, np.float32))
    with pytest.raises(TypeError, match="sinks has dtype float16; expected float32, that of q"):
        flashmask.attention(q, k, v, masks.causal(N, N), sinks=np.ones(4, np.float16))
