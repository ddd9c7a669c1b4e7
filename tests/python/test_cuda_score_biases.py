# SPDX-License-Identifier: Apache-2.0
"""Biases by a tensor and by a table of distances on a GPU: by their formulas, in float64 on the CPU."""

import itertools

import pytest
import torch
from attention_oracle import random_inputs, softmax_attention
from bias_oracle import assert_rows_of_huge_biases_are_padding, by_distance, check, random_bias
from cuda_device import inputs, needs_gpu
from mask_families import FAMILIES, N, visible

import flashmask
from flashmask import masks

pytestmark = needs_gpu
BATCH, HEADS = 2, 4
SHARED = list(itertools.product((1, BATCH), (1, HEADS), (1, N)))


def on_gpu(mask, kind="bias", kernel=None, **options):
    """attention() on the GPU of tensors on the CPU. kernel: what the names of the kernels begin with."""

    def compute(q, k, v, values):
        given = [each.cuda() for each in (q, k, v)]
        how = (
            {"mask": mask} if kernel is None else {"plan": flashmask.plan(mask, *given, kernel=kernel, **{kind: True})}
        )
        found = flashmask.attention(*given, return_lse=True, **how, **{kind: values.cuda()}, **options)
        return [each.cpu() for each in found]

    return compute


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_has_the_gradients_of_the_formula(name, deterministic):
    mask, turn = FAMILIES[name](), list(FAMILIES).index(name)
    seen, softcap = visible(mask), 2.0 if turn % 2 else None
    check(
        on_gpu(mask, softcap=softcap, deterministic=deterministic),
        lambda q, k, v, b: softmax_attention(q, k, v, seen, softcap=softcap, bias=b),
        torch.float16 if turn % 3 == 0 else torch.bfloat16,
        random_bias(*SHARED[turn % 8], N).to(torch.float32 if turn % 2 else torch.bfloat16),
        random_inputs(BATCH, N, N, HEADS, 2, 64, 32),
    )


@pytest.mark.parametrize("shared", SHARED)
@pytest.mark.parametrize("kind", ["bias", "distance_bias"])
@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("kernel", [None, "sm80."])
def test_dimensions_of_one_stand_for_all(kernel, dim, kind, shared):
    rows, columns = 150, 290  # parts of tiles, and several of them
    batch, heads, of_rows = shared[0], shared[1], 1 if shared[2] == 1 else rows
    entries, origin = (rows + columns - 1, columns - 1) if batch == 1 else (37, 4)
    values = random_bias(batch, heads, of_rows, columns if kind == "bias" else entries, hidden=kind == "bias")
    options = {"distance_origin": origin} if kind == "distance_bias" else {}
    mask = masks.sliding_window(rows, columns, 200)

    def formula(q, k, v, b):
        bias = b if kind == "bias" else by_distance(b, rows, columns, origin)
        return softmax_attention(q, k, v, visible(mask), bias=bias)

    check(
        on_gpu(mask, kind, kernel, **options),
        formula,
        torch.bfloat16,
        values.bfloat16() if heads == 1 else values,
        random_inputs(BATCH, rows, columns, HEADS, 2, dim, dim),
    )


@pytest.mark.parametrize("tokens", [200, 202, 201])  # rows of a bias that are read by eights, by pairs and one by one
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dim", [24, 32, 64, 128])
@pytest.mark.parametrize("deterministic", [False, True])
def test_a_batch_shares_the_bias_of_pairs(deterministic, dim, dtype, tokens):
    mask = masks.document([150], tokens)  # the others are padding
    check(
        on_gpu(mask, deterministic=deterministic),
        lambda q, k, v, b: softmax_attention(q, k, v, visible(mask), bias=b),
        dtype,
        random_bias(1, HEADS, tokens, tokens).to(dtype),
        random_inputs(5, tokens, tokens, HEADS, HEADS, dim, dim),
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("dim", [64, 128, 256, 320])
def test_rows_of_huge_biases_are_padding(dim, deterministic, dtype):
    def attend(*tensors):
        q, k, v, b = (t.cuda() for t in tensors)
        return flashmask.attention(q, k, v, bias=b, deterministic=deterministic).cpu()

    assert_rows_of_huge_biases_are_padding(attend, dim, dtype)


@pytest.mark.parametrize("dim", [32, 96, 192, 256, 512])
@pytest.mark.parametrize("kind", ["bias", "distance_bias"])
def test_every_head_dim_is_served(kind, dim):
    mask, of_pairs = masks.causal(N, N), kind == "bias"
    values = random_bias(1, HEADS, N if of_pairs else 1, N, hidden=of_pairs)
    check(
        on_gpu(mask, kind),
        lambda q, k, v, b: softmax_attention(q, k, v, visible(mask), bias=b if of_pairs else by_distance(b, N, N, 0)),
        torch.bfloat16,
        values,
        random_inputs(BATCH, N, N, HEADS, 2, dim, dim),
    )


@pytest.mark.parametrize("kind", ["bias", "distance_bias"])
@pytest.mark.parametrize("shape", [(BATCH, HEADS, 304), (1, HEADS, 304), (1, 1, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_gradient_is_the_same_bits_on_every_run_and_visit(dtype, kind, shape):
    q, k, v, grad_o, _ = inputs(BATCH, 304, 304, HEADS, 2, 64)
    mask, values = masks.causal_document([130, 174]), random_bias(*shape, 304, hidden=kind == "bias").to(dtype).cuda()
    found = []
    for visit in ("active", "active", "all"):
        plan = flashmask.plan(mask, q, k, v, visit=visit, **{kind: True})
        leaf = values.clone().requires_grad_()
        o = flashmask.attention(q, k, v, plan=plan, **{kind: leaf})
        found.append(torch.autograd.grad(o, leaf, grad_o)[0])
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


@pytest.mark.parametrize("shared", [(1, 1), (1, HEADS), (BATCH, 1), (BATCH, HEADS)])
@pytest.mark.parametrize("dim", [40, 64, 128, 200])
@pytest.mark.parametrize("form", ["intervals", "bits"])
def test_gradients_that_the_copy_engine_stores(form, dim, shared):
    """Rows of multiples of 16 bytes: Hopper sums these gradients by wgmma."""
    rows, columns = 300, 328
    mask = masks.sliding_window(rows, columns, 140)
    if form == "bits":
        mask &= masks.from_dense((torch.arange(rows)[:, None] % 3 != torch.arange(columns) % 4).numpy())
    check(
        on_gpu(mask),
        lambda q, k, v, b: softmax_attention(q, k, v, visible(mask), bias=b),
        torch.bfloat16,
        random_bias(*shared, rows, columns).bfloat16(),
        random_inputs(BATCH, rows, columns, HEADS, 2, dim, dim),
    )


@pytest.mark.parametrize("dim", [96, 128])
def test_copies_of_a_bias_stay_until_they_are_read(dim):
    """Many row tiles, each with its part of the bias in the same shared memory: grad_k and grad_v on every run."""
    tokens = 600
    given = random_inputs(BATCH, tokens, tokens, HEADS, 2, dim, dim)
    bias = random_bias(1, HEADS, tokens, tokens).bfloat16()
    mask = masks.causal(tokens, tokens)
    check(
        on_gpu(mask), lambda q, k, v, b: softmax_attention(q, k, v, visible(mask), bias=b), torch.bfloat16, bias, given
    )
    q, k, v, grad_o = (each.bfloat16().cuda() for each in given[:4])
    found = []
    for _ in range(30):
        leaves = [each.clone().requires_grad_() for each in (k, v)]
        flashmask.attention(q, *leaves, mask, bias=bias.cuda()).backward(grad_o)
        found.append([each.grad for each in leaves])
    assert all(torch.equal(*pair) for grads in found[1:] for pair in zip(grads, found[0], strict=True))


def test_memory_around_a_bias_is_neither_read_nor_written():
    """Strides of a larger tensor, whose other numbers are NaN, as are those of hidden tiles."""
    rows, columns = 130, 140
    q, k, v, grad_o, _ = inputs(BATCH, rows, columns, HEADS, 2, 64)
    seen = visible(masks.causal(rows, columns)).cuda()
    around = torch.full((BATCH, HEADS, rows + 3, columns + 9), torch.nan, device="cuda", dtype=torch.bfloat16)
    inner = around[:, :, 1 : 1 + rows, 4 : 4 + columns]
    plain = random_bias(BATCH, HEADS, rows, columns).bfloat16().cuda()
    inner.copy_(plain.masked_fill(~seen, torch.nan))
    found = []
    for bias in (plain, inner, plain.transpose(2, 3).contiguous().transpose(2, 3)):
        leaf = bias.detach().requires_grad_()
        o = flashmask.attention(q, k, v, masks.causal(rows, columns), bias=leaf)
        found.append((o, torch.autograd.grad(o, leaf, grad_o)[0]))
    for o, gradient in found[1:]:
        assert torch.equal(o, found[0][0]) and torch.equal(gradient, found[0][1])
    assert torch.isfinite(found[0][1]).all() and (found[0][1][~seen.expand(BATCH, HEADS, -1, -1)] == 0).all()


def test_a_batch_of_nothing_has_a_gradient_of_zeros():
    q, k, v, grad_o, _ = inputs(0, N, N, HEADS, 2, 64)
    bias = torch.ones(1, 1, N, N, device="cuda", requires_grad=True)
    gradient = torch.autograd.grad(flashmask.attention(q, k, v, bias=bias), bias, grad_o)[0]
    assert (gradient == 0).all()


def test_rows_that_a_bias_hides_see_nothing():
    q, k, v, *_ = (t.requires_grad_() for t in inputs(BATCH, 256, 256, HEADS, 2, 64))
    bias = torch.zeros(1, 1, 256, 256, device="cuda")
    bias[:, :, 10:20] = -torch.inf
    bias.requires_grad_()
    o, lse = flashmask.attention(q, k, v, bias=bias, return_lse=True)
    assert (o[:, 10:20] == 0).all() and (lse[:, :, 10:20] == -torch.inf).all()
    for gradient in torch.autograd.grad(o.sum(), (q, k, v, bias)):
        assert torch.isfinite(gradient).all()


def test_dropped_probabilities_have_the_gradients_of_what_is_kept():
    """Against the same dropout of a bias that stands in the way: expanded over the batch, and added up by PyTorch."""
    q, k, v, grad_o, _ = inputs(BATCH, 150, 150, HEADS, 2, 64)
    values = random_bias(1, HEADS, 150, 150, hidden=False).cuda()
    found = []
    for expanded in (False, True):
        torch.manual_seed(3)
        leaf = values.clone().requires_grad_()
        bias = leaf.expand(BATCH, -1, -1, -1) if expanded else leaf
        o = flashmask.flashmask_attention(q, k, v, causal=True, dropout=0.25, bias=bias)
        found.append((o, torch.autograd.grad(o, leaf, grad_o)[0]))
    assert torch.equal(found[0][0], found[1][0])
    torch.testing.assert_close(found[0][1], found[1][1], atol=1e-5, rtol=1e-5)


def test_torch_compile_gives_the_same_gradients():
    torch._dynamo.reset()
    q, k, v, grad_o, _ = inputs(BATCH, N, N, HEADS, 2, 64)
    bias, mask = random_bias(1, HEADS, N, N).cuda(), masks.causal_document([20, N - 20])

    def attend(q, k, v, b):
        return flashmask.attention(q, k, v, mask, bias=b)

    found = []
    for compute in (attend, torch.compile(attend, fullgraph=True, backend="aot_eager")):
        leaf = bias.clone().requires_grad_()
        found.append(torch.autograd.grad(compute(q, k, v, leaf), leaf, grad_o)[0])
    assert torch.equal(*found)
    torch._dynamo.reset()


def test_kernels_without_biases_say_so():
    q, k, v = (t.half() for t in inputs(BATCH, N, N, HEADS, 2, 64)[:3])
    for kind, what in (("bias", "biases of scores"), ("distance_bias", "biases by distance")):
        with pytest.raises(NotImplementedError, match=what):
            flashmask.plan(masks.causal(N, N), q, k, v, kernel="sm90.", **{kind: True})
    with pytest.raises(ValueError, match="invariant and a bias of scores were asked for together"):
        flashmask.attention(q, k, v, bias=torch.zeros(1, 1, 1, N, device="cuda"), invariant=True)
