# SPDX-License-Identifier: Apache-2.0
"""Biases by a tensor and by a table of distances: by their formulas, and with the gradients of what is shared."""

import importlib.util
import itertools
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from attention_oracle import random_inputs, softmax_attention
from bias_oracle import assert_rows_of_huge_biases_are_padding, by_distance, check, gradients, random_bias
from mask_families import FAMILIES, N, visible
from torch.utils.checkpoint import checkpoint

import flashmask
import flashmask.operators
from flashmask import masks

PAIR_BIAS = Path(__file__).parents[2] / "examples" / "pair_bias.py"
pytestmark = pytest.mark.kernels

BATCH, HEADS, KV_HEADS = 2, 4, 2
forward = torch.ops.flashmask.forward.default
SHARED = list(itertools.product((1, BATCH), (1, HEADS), (1, N)))


def inputs(rows=N, columns=N, dtype=torch.float32):
    """q, k, v, grad_o, grad_lse."""
    return [t.to(dtype) for t in random_inputs(BATCH, rows, columns, HEADS, KV_HEADS, 16, 24)]


STEPS = {1: "bias", 2: "distance"}


@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_has_the_gradients_of_the_formula(name, softcap):
    mask = FAMILIES[name]()
    seen, turn = visible(mask), list(FAMILIES).index(name)
    for dtype, shape in ((torch.float32, SHARED[turn % 8]), (torch.bfloat16, SHARED[(turn + 3) % 8])):
        check(
            lambda q, k, v, b: flashmask.attention(q, k, v, mask, return_lse=True, softcap=softcap, bias=b),
            lambda q, k, v, b: softmax_attention(q, k, v, seen, softcap=softcap, bias=b),
            dtype,
            random_bias(*shape, N).to(torch.bfloat16 if turn % 2 else torch.float32),
            inputs(),
        )


@pytest.mark.parametrize("shared", SHARED)
@pytest.mark.parametrize("kind", ["bias", "distance_bias"])
def test_dimensions_of_one_stand_for_all(kind, shared):
    rows, columns = 150, 290  # parts of tiles, and several of them
    batch, heads, of_rows = shared[0], shared[1], 1 if shared[2] == 1 else rows
    entries, origin = (rows + columns - 1, columns - 1) if batch == 1 else (37, 4)
    values = random_bias(batch, heads, of_rows, columns if kind == "bias" else entries, hidden=kind == "bias")
    given = {"distance_origin": origin} if kind == "distance_bias" else {}
    mask = masks.sliding_window(rows, columns, 200)

    def formula(q, k, v, b):
        return softmax_attention(
            q, k, v, visible(mask), bias=b if kind == "bias" else by_distance(b, rows, columns, origin)
        )

    for dtype in (torch.float32, torch.float64):
        check(
            lambda q, k, v, b: flashmask.attention(q, k, v, mask, return_lse=True, **{kind: b}, **given),
            formula,
            dtype,
            values,
            inputs(rows, columns),
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_of_huge_biases_are_padding(dtype):
    assert_rows_of_huge_biases_are_padding(lambda q, k, v, b: flashmask.attention(q, k, v, bias=b), 16, dtype)


@pytest.mark.parametrize("kernel", ["scalar", "avx2", "avx512", "avx512bf16"])
def test_every_level_of_the_cpu_biases_scores(kernel):
    dtype = torch.bfloat16 if kernel == "avx512bf16" else torch.float32
    q, k, v, grad_o, grad_lse = inputs(150, 190, dtype)
    mask, cases = masks.causal(150, 190), ((BATCH, HEADS, 150, 190), (1, HEADS, 150, 190), (1, 1, 1, 190))
    try:
        plan = flashmask.plan(mask, q, k, v, kernel=f"{kernel}.", bias=True)
    except NotImplementedError as reason:
        pytest.skip(str(reason))
    for shape in cases:
        check(
            lambda q, k, v, b: flashmask.attention(q, k, v, plan=plan, return_lse=True, bias=b),
            lambda q, k, v, b: softmax_attention(q, k, v, visible(mask), bias=b),
            dtype,
            random_bias(*shape),
            (q, k, v, grad_o, grad_lse),
        )


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("kind", [1, 2])
@pytest.mark.parametrize("shape", [(2, 2, 6), (1, 2, 6), (2, 1, 1), (1, 1, 1)])
def test_gradients_are_those_of_finite_differences(shape, kind, dropout):
    q, k, v = (t.double().requires_grad_() for t in random_inputs(2, 6, 7, 2, 1, 3, 2)[:3])
    sinks = torch.randn(2, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(*shape, 7 if kind == 1 else 5, dtype=torch.float64, requires_grad=True)
    mask, seed = masks.sliding_window(6, 7, 3), torch.tensor([11, 3])
    changes = {"change": f"softcap(0.7) | {STEPS[kind]}", "distance_origin": 2 if kind == 2 else 0}
    assert torch.autograd.gradcheck(
        lambda q, k, v, s, b: forward(
            q, k, v, mask.tensor, None, False, 0.0, dropout, seed, sinks=s, bias=b, **changes
        ),
        (q, k, v, sinks, bias),
        check_undefined_grad=False,
    )


def test_dropped_probabilities_have_the_gradients_of_what_is_kept():
    """In float32 against the reference in float64, which draws the same numbers."""
    q, k, v, grad_o, _ = inputs(150, 150)
    bias, seed = random_bias(1, HEADS, 150, 150), torch.tensor([11, 3])
    mask = masks.causal(150, 150)
    found = []
    for dtype in (torch.float32, torch.float64):
        leaves = [t.detach().to(dtype).requires_grad_() for t in (q, k, v, bias)]
        o, _ = forward(*leaves[:3], mask.tensor, None, False, 0.0, 0.25, seed, change="bias", bias=leaves[3])
        found.append(torch.autograd.grad(o, leaves, grad_o.to(dtype)))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a.double(), b, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["bias", "distance_bias"])
@pytest.mark.parametrize("shape", [(BATCH, HEADS, 300), (1, HEADS, 300), (1, 1, 1)])
def test_gradients_are_the_same_bits_for_any_number_of_threads_and_visit(shape, kind):
    *tensors, grad_o, _ = inputs(300, 300)
    mask, values = masks.causal_document([130, 170]), random_bias(*shape, 300, hidden=kind == "bias")
    plans = [flashmask.plan(mask, *tensors, visit=visit, **{kind: True}) for visit in ("active", "all")]
    threads, found = torch.get_num_threads(), []
    for count, plan in ((1, plans[0]), (2, plans[0]), (5, plans[0]), (3, plans[1])):
        torch.set_num_threads(count)
        leaves = [t.clone().requires_grad_() for t in (*tensors, values)]
        o = flashmask.attention(*leaves[:3], plan=plan, **{kind: leaves[3]})
        found.append([o, *torch.autograd.grad(o, leaves, grad_o)])
    torch.set_num_threads(threads)
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            assert torch.equal(a, b)


def test_memory_around_a_bias_is_neither_read_nor_written():
    """Strides of a larger tensor, whose other numbers are NaN, as are those of hidden tiles."""
    rows, columns = 130, 140
    q, k, v, grad_o, _ = inputs(rows, columns)
    mask = masks.causal(rows, columns)
    around = torch.full((BATCH, HEADS, rows + 3, columns + 9), torch.nan)
    inner = around[:, :, 1 : 1 + rows, 4 : 4 + columns]
    plain = random_bias(BATCH, HEADS, rows, columns)
    inner.copy_(plain.masked_fill(~visible(mask), torch.nan))
    found = []
    for bias in (plain, inner, plain.transpose(2, 3).contiguous().transpose(2, 3)):
        leaf = bias.detach().requires_grad_()
        o = flashmask.attention(q, k, v, mask, bias=leaf)
        found.append((o, torch.autograd.grad(o, leaf, grad_o)[0]))
    for o, gradient in found[1:]:
        assert torch.equal(o, found[0][0]) and torch.equal(gradient, found[0][1])
    assert torch.isfinite(found[0][1]).all() and (found[0][1][~visible(mask).expand(BATCH, HEADS, -1, -1)] == 0).all()


def test_an_expanded_bias_reads_one_row():
    q, k, v, *_ = inputs()
    row = random_bias(1, 1, 1, N)
    expected = flashmask.attention(q, k, v, bias=row)
    assert torch.equal(flashmask.attention(q, k, v, bias=row.expand(BATCH, HEADS, N, N)), expected)


def test_rows_that_a_bias_hides_see_nothing():
    q, k, v, *_ = (t.requires_grad_() for t in inputs())
    bias = torch.zeros(1, 1, N, N)
    bias[:, :, 10:20] = -torch.inf
    bias.requires_grad_()
    o, lse = flashmask.attention(q, k, v, bias=bias, return_lse=True)
    assert (o[:, 10:20] == 0).all() and (lse[:, :, 10:20] == -torch.inf).all()
    for gradient in torch.autograd.grad(o.sum(), (q, k, v, bias)):
        assert torch.isfinite(gradient).all()
    sinks = torch.full((HEADS,), 0.25)
    o, lse = flashmask.attention(q, k, v, bias=bias, sinks=sinks, return_lse=True)
    assert (o[:, 10:20] == 0).all() and (lse[:, :, 10:20] == 0.25).all()


def test_a_mask_from_a_bias_skips_what_it_hides_and_changes_nothing():
    q, k, v, *_ = inputs(300, 300)
    bias = random_bias(1, HEADS, 300, 300)
    bias[:, :, :, 128:256] = -torch.inf
    mask = masks.from_bias(bias)
    assert mask.explain((64, 64)).skipped_tiles > 0
    assert torch.equal(visible(mask), bias > -torch.inf)
    torch.testing.assert_close(
        flashmask.attention(q, k, v, mask, bias=bias), flashmask.attention(q, k, v, bias=bias), atol=2e-6, rtol=1e-5
    )
    of_keys = masks.from_bias(bias[:, :, 7:8], rows=300)
    assert torch.equal(visible(of_keys), (bias[:, :, 7:8] > -torch.inf).expand(-1, -1, 300, -1))
    assert np.array_equal(masks.from_bias(bias.numpy()).to_dense(), mask.to_dense())


def test_a_mask_from_a_bias_that_diverged_hides_no_nan():
    q, k, v, *_ = inputs()
    bias = torch.zeros(1, 1, N, N)
    bias[..., 3, :] = torch.nan
    bias[..., 4, :] = -torch.inf
    for given in (bias, bias.numpy(), bias.bfloat16()):
        mask = masks.from_bias(given)
        assert torch.equal(visible(mask)[0, 0].all(1), torch.arange(N) != 4)
    assert flashmask.attention(q, k, v, mask, bias=bias)[:, 3].isnan().all()


def test_what_from_bias_does_not_take_is_refused():
    with pytest.raises(ValueError, match=r"bias has one row for all; give rows=, the tokens of q"):
        masks.from_bias(torch.zeros(1, 1, 1, 5))
    with pytest.raises(TypeError, match=r"bias holds torch.bool values; expected floating point"):
        masks.from_bias(torch.zeros(5, 5, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"bias has 5 rows; rows is 7, which one row could stand for"):
        masks.from_bias(torch.zeros(5, 5), rows=7)


def test_buckets_of_t5_learn_through_a_table():
    """A table by bucket, looked up for every distance, learns as the dense bias does that T5 makes of it."""
    q, k, v, grad_o, _ = inputs(40, 40)
    weight = torch.randn(8, HEADS, generator=torch.Generator().manual_seed(2))
    bucket = torch.arange(-39, 40).abs().clamp(max=7)  # of each distance between query and key
    found = []
    for dense in (False, True):
        leaf = weight.clone().requires_grad_()
        table = leaf[bucket].T[None, :, None]
        of_distances = {"distance_bias": table, "distance_origin": 39}
        given = {"bias": by_distance(table, 40, 40, 39)} if dense else of_distances
        o = flashmask.attention(q, k, v, masks.causal_document([15, 25]), **given)
        found.append((o, torch.autograd.grad(o, leaf, grad_o)[0]))
    torch.testing.assert_close(found[0], found[1])


def test_merged_parts_have_their_columns_of_a_bias():
    q, k, v, *_ = inputs()
    bias = random_bias(1, HEADS, N, N)
    whole, lse = flashmask.attention(q, k, v, bias=bias, return_lse=True)
    parts = [
        each
        for keys in (slice(0, 30), slice(30, N))
        for each in flashmask.attention(q, k[:, keys], v[:, keys], bias=bias[..., keys], return_lse=True)
    ]
    o, merged_lse = flashmask.merge(*parts)
    torch.testing.assert_close(o, whole)
    torch.testing.assert_close(merged_lse, lse)


@pytest.mark.parametrize("kind", ["bias", "distance_bias"])
def test_invariant_documents_have_their_own_bits_of_a_bias(kind):
    q, k, v, *_ = inputs()
    lengths = [23, N - 23]
    values = random_bias(1, HEADS, N if kind == "bias" else 1, N, hidden=False)
    packed = flashmask.attention(q, k, v, masks.causal_document(lengths), invariant=True, **{kind: values})
    first = 0
    for length in lengths:
        own = slice(first, first + length)
        of_own = values[:, :, own, own] if kind == "bias" else values
        tensors = (each[:, own] for each in (q, k, v))
        alone = flashmask.attention(*tensors, masks.causal(length, length), invariant=True, **{kind: of_own})
        assert torch.equal(packed[:, own], alone)
        first += length


@pytest.mark.parametrize("kind", ["bias", "distance_bias"])
def test_arrays_and_layouts_are_biased_too(kind):
    q, k, v, *_ = inputs()
    values = random_bias(1, HEADS, 1, N, hidden=False)
    expected = flashmask.attention(q, k, v, **{kind: values})
    arrays = flashmask.attention(*(t.numpy() for t in (q, k, v)), **{kind: values.numpy()})
    assert np.array_equal(arrays, expected.numpy())
    heads_first = flashmask.attention(*(t.transpose(1, 2) for t in (q, k, v)), layout="bhsd", **{kind: values})
    assert torch.equal(heads_first.transpose(1, 2), expected)
    if kind == "bias":
        assert torch.equal(flashmask.flashmask_attention(q, k, v, bias=values), expected)
    exact = flashmask.attention(*(t.double().numpy() for t in (q, k, v)), **{kind: values.numpy()})
    np.testing.assert_allclose(exact, expected.numpy(), atol=1e-5)


@pytest.mark.parametrize("kind", [1, 2])
@pytest.mark.parametrize("sinks", [False, True])
def test_opcheck_passes(kind, sinks):
    q, k, v, *_ = inputs()
    leaves = [t.requires_grad_() for t in (q, k, v)]
    bias = random_bias(1, HEADS, 1, N, hidden=False).requires_grad_()
    arguments = (masks.causal(N, N).tensor, None, False, 0.3, 0.0, None)
    given = {"sinks": torch.randn(HEADS).requires_grad_()} if sinks else {}
    torch.library.opcheck(forward, (*leaves, *arguments), {"change": STEPS[kind], "bias": bias, **given})


def test_torch_compile_gives_the_same_gradients():
    torch._dynamo.reset()
    *tensors, grad_o, grad_lse = inputs()
    bias, mask = random_bias(1, HEADS, N, N), masks.causal_document([20, N - 20])

    def attend(q, k, v, b):
        return flashmask.attention(q, k, v, mask, bias=b, return_lse=True)

    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    for a, b in zip(*(gradients(f, (*tensors, bias), grad_o, grad_lse) for f in (attend, compiled)), strict=True):
        torch.testing.assert_close(a, b)
    torch._dynamo.reset()


def test_checkpointing_gives_the_same_bits():
    *tensors, grad_o, _ = inputs()
    table = random_bias(1, HEADS, 1, N, hidden=False)

    def attend(q, k, v, t):
        return flashmask.attention(q, k, v, masks.causal(N, N), distance_bias=t).sin()

    runs = []
    for compute in (attend, lambda *t: checkpoint(attend, *t, use_reentrant=False)):
        leaves = [t.clone().requires_grad_() for t in (*tensors, table)]
        runs.append(torch.autograd.grad(compute(*leaves), leaves, grad_o))
    for a, b in zip(*runs, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("of_bias", [True, False])
def test_gradients_that_nobody_reads_need_not_be_asked_for(of_bias):
    """Only the bias learns, or everything but the bias."""
    q, k, v, grad_o, _ = inputs()
    bias = random_bias(1, HEADS, 1, N)
    expected = gradients(
        lambda q, k, v, b: flashmask.attention(q, k, v, bias=b, return_lse=True),
        (q, k, v, bias),
        grad_o,
        torch.zeros(BATCH, HEADS, N),
    )[2:]
    leaves = [t.clone().requires_grad_(of_bias == (i == 3)) for i, t in enumerate((q, k, v, bias))]
    o = flashmask.attention(*leaves[:3], bias=leaves[3])
    o.backward(grad_o)
    for leaf, gradient in zip(leaves, expected, strict=True):
        assert (leaf.grad is None) != leaf.requires_grad
        if leaf.grad is not None:
            assert torch.equal(leaf.grad, gradient)


REFUSED = {
    "shape": (
        {"bias": torch.ones(1, 3, 1, N)},
        ValueError,
        r"bias has shape \[1, 3, 1, 70\]; expected \[1 or 2, 1 or 4",
    ),
    "dimensions": (
        {"bias": torch.ones(N, N)},
        ValueError,
        r"bias has shape \[70, 70\]; expected \[1 or 2, 1 or 4, 1 or",
    ),
    "columns": ({"bias": torch.ones(1, 1, 1, 9)}, ValueError, r"bias has shape \[1, 1, 1, 9\]; expected .*, 70\]"),
    "entries": ({"distance_bias": torch.ones(1, 1, 1, 0)}, ValueError, "distance_bias has shape .*one or more entries"),
    "dtype": ({"bias": torch.ones(1, 1, 1, N).int()}, TypeError, "bias has dtype torch.int32; expected torch.float32"),
    "wide": ({"bias": torch.ones(1, 1, 1, N).double()}, TypeError, "bias has dtype torch.float64; expected"),
    "kind": ({"bias": [1.0]}, TypeError, "bias is list .*; expected a torch tensor"),
    "device": ({"bias": torch.ones(1, 1, 1, N).to("meta")}, ValueError, "bias is on meta"),
    "two": (
        {"bias": torch.ones(1, 1, 1, N), "alibi_slopes": torch.ones(HEADS)},
        ValueError,
        "alibi_slopes and bias are given together; scores take one bias",
    ),
    "origin": ({"distance_origin": 3}, ValueError, "distance_origin is 3 without distance_bias"),
    "far": (
        {"distance_bias": torch.ones(1, 1, 1, 3), "distance_origin": 2**40},
        ValueError,
        r"origin is 1099511627776; expected a number from -2\^31 to 2\^31",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused_in_one_sentence(name):
    changes, error, message = REFUSED[name]
    q, k, v, *_ = inputs()
    with pytest.raises(error, match=message):
        flashmask.attention(q, k, v, masks.causal(N, N), **changes)


def test_what_serves_no_bias_says_so():
    q, k, v, *_ = inputs()
    bias, mask = torch.zeros(1, HEADS, N, N, requires_grad=True), masks.causal(N, N)
    plan = flashmask.plan(mask, q, k, v)
    with pytest.raises(ValueError, match="the call's bias fits a plan with bias=True; the plan was made with no bias"):
        flashmask.attention(q, k, v, plan=plan, bias=bias)
    with pytest.raises(ValueError, match="reorder and a bias of scores were asked for together"):
        flashmask.plan(mask, q, k, v, reorder=True, bias=True)
    with pytest.raises(ValueError, match="two of alibi, bias and distance_bias came together"):
        flashmask.plan(mask, q, k, v, bias=True, distance_bias=True)
    with pytest.raises(NotImplementedError, match="the bias requires a gradient, and invariant=True was asked for"):
        flashmask.attention(q, k, v, mask, bias=bias, invariant=True)
    with pytest.raises(TypeError, match="unexpected keyword argument 'bias'"):
        flashmask.flash_attn_func(q, k, v, bias=bias)


@pytest.mark.skipif(not PAIR_BIAS.exists(), reason="the examples are in a checkout only")
def test_the_example_has_the_gradients_of_the_dense_formula(capsys):
    spec = importlib.util.spec_from_file_location("pair_bias", PAIR_BIAS)
    module = importlib.util.module_from_spec(spec)
    sys.modules["pair_bias"] = module
    spec.loader.exec_module(module)
    assert module.main(["--steps", "1"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 2 and printed[-1] == "the same as the dense formula"
