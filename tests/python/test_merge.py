# SPDX-License-Identifier: Apache-2.0
"""merge(): attention over two sets of keys joined, by the formula over all of them."""

import numpy as np
import pytest
import torch
from attention_oracle import random_inputs, softmax_attention

import flashmask
from flashmask import masks

pytestmark = pytest.mark.kernels

ROWS, COLUMNS, FIRST = 20, 50, 18


def seen_by_rows():
    """Some rows see only the first keys, some only the others, some nothing."""
    seen = torch.rand(ROWS, COLUMNS, generator=torch.Generator().manual_seed(2)) < 0.5
    seen[0, FIRST:] = False
    seen[1, :FIRST] = False
    seen[2] = False
    return seen


def halves(q, k, v, seen):
    for keys in (slice(0, FIRST), slice(FIRST, COLUMNS)):
        mask = masks.from_dense(seen[:, keys])
        yield from flashmask.attention(q, k[:, keys], v[:, keys], mask, return_lse=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_two_halves_are_the_whole(dtype):
    q, k, v, *_ = (t.to(dtype) for t in random_inputs(2, ROWS, COLUMNS, 4, 2, 16, 8))
    seen = seen_by_rows()
    o, lse = flashmask.merge(*halves(q, k, v, seen))
    expected, expected_lse = softmax_attention(q.double(), k.double(), v.double(), seen[None, None])
    assert o.dtype == dtype
    tolerance = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 2e-2, torch.float16: 3e-3}[dtype]
    torch.testing.assert_close(o.double(), expected, atol=tolerance, rtol=tolerance)
    lse_tolerance = min(tolerance, 1e-3)
    torch.testing.assert_close(lse.double(), expected_lse, atol=lse_tolerance, rtol=lse_tolerance)
    assert torch.equal(o[:, 2], torch.zeros_like(o[:, 2]))


def test_gradients_are_those_of_the_whole():
    q, k, v, grad_o, grad_lse = (t.double() for t in random_inputs(1, ROWS, COLUMNS, 2, 2, 8, 8))
    seen = seen_by_rows()
    leaves = [t.requires_grad_() for t in (q, k, v)]
    gradients = []
    for o, lse in (flashmask.merge(*halves(*leaves, seen)), softmax_attention(*leaves, seen[None, None])):
        finite = torch.isfinite(lse)
        loss = (o * grad_o).sum() + (lse[finite] * grad_lse[finite]).sum()
        gradients.append(torch.autograd.grad(loss, leaves))
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b)


def test_gradients_are_those_of_finite_differences():
    generator = torch.Generator().manual_seed(0)

    def random(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()

    assert torch.autograd.gradcheck(
        flashmask.merge, (random(1, 3, 2, 4), random(1, 2, 3), random(1, 3, 2, 4), random(1, 2, 3))
    )


def test_a_side_that_saw_nothing_changes_nothing():
    o, lse = torch.randn(1, 3, 2, 4), torch.randn(1, 2, 3)
    nothing = torch.zeros_like(o), torch.full_like(lse, -torch.inf)
    for merged in (flashmask.merge(o, lse, *nothing), flashmask.merge(*nothing, o, lse)):
        assert torch.equal(merged[0], o)
        torch.testing.assert_close(merged[1], lse)
    both = [t.requires_grad_() for t in (*nothing, *(t.clone() for t in nothing))]
    o, lse = flashmask.merge(*both)
    assert torch.isneginf(lse).all()
    for gradient in torch.autograd.grad(o.sum() + lse[lse > 0].sum(), both):
        assert torch.equal(gradient, torch.zeros_like(gradient))


def test_large_logarithms_do_not_overflow():
    o = torch.ones(1, 1, 1, 1)
    merged, lse = flashmask.merge(o, torch.full((1, 1, 1), 500.0), 3 * o, torch.full((1, 1, 1), 500.0))
    assert merged.item() == 2.0
    torch.testing.assert_close(lse.item(), 500.0 + torch.log(torch.tensor(2.0)).item())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_any_number_of_parts_are_the_whole(dtype):
    q, k, v, *_ = (t.to(dtype) for t in random_inputs(2, ROWS, COLUMNS, 4, 2, 16, 8))
    seen = seen_by_rows()
    parts = [
        flashmask.attention(
            q, k[:, i : i + 10], v[:, i : i + 10], masks.from_dense(seen[:, i : i + 10]), return_lse=True
        )
        for i in range(0, COLUMNS, 10)
    ]
    found = flashmask.merge(*(each for part in parts for each in part))
    expected = softmax_attention(q.double(), k.double(), v.double(), seen[None, None])
    tolerance = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 2e-2}[dtype]
    for given, right in zip(found, expected, strict=True):
        torch.testing.assert_close(given.double(), right, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_lse_that_flash_attention_writes_for_empty_rows_is_that_of_nothing(dtype):
    given = three_parts(dtype, requires_grad=True)
    theirs = [each.detach().clone() for each in given]
    for lse in theirs[1::2]:
        lse[torch.isneginf(lse)] = torch.inf
    theirs[0][0, 1] = torch.nan  # of a row that the first part did not see
    leaves = [each.requires_grad_() for each in theirs]
    found, expected = flashmask.merge(*leaves), flashmask.merge(*given)
    assert all(torch.equal(ours, right) for ours, right in zip(found, expected, strict=True))
    gradients = [
        torch.autograd.grad([o, lse], each, [torch.ones_like(o), torch.isfinite(lse).to(lse)])
        for (o, lse), each in ((found, leaves), (expected, given))
    ]
    assert all(torch.equal(ours, right) for ours, right in zip(*gradients, strict=True))


def three_parts(dtype, requires_grad=False):
    """o1, lse1 and so on, with places that saw nothing in some or all parts."""
    generator = torch.Generator().manual_seed(1)
    tensors = []
    for part in range(3):
        lse = torch.randn(2, 3, 5, generator=generator)
        lse[part % 2, :, 1] = -torch.inf
        lse[:, 1, 2] = -torch.inf
        tensors += [torch.randn(2, 5, 3, 7, generator=generator).to(dtype), lse.to(lse_of(dtype))]
    return [each.requires_grad_(requires_grad) for each in tensors]


def lse_of(dtype):
    return torch.float64 if dtype is torch.float64 else torch.float32


def by_formula(*tensors):
    """In float64."""
    o, lse = (torch.stack(tensors[i::2]).double() for i in (0, 1))
    nothing = torch.isneginf(lse).all(0)
    weights = torch.softmax(lse.masked_fill(nothing, 0.0), 0).masked_fill(nothing, 0.0)
    merged = (o * weights.transpose(-1, -2)[..., None]).sum(0)
    return merged, torch.logsumexp(lse.masked_fill(nothing, 0.0), 0).masked_fill(nothing, -torch.inf)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_of_three_parts_are_those_of_the_formula(dtype):
    given = three_parts(dtype, requires_grad=True)
    gradients = []
    for o, lse in (flashmask.merge(*given), by_formula(*given)):
        weights = torch.arange(7.0, dtype=torch.float64)
        loss = (o.double() * weights).sum() + lse.double().masked_fill(torch.isneginf(lse), 0.0).sum()
        gradients.append(torch.autograd.grad(loss, given))
    for found, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_gradients_of_one_result_alone():
    given = three_parts(torch.float32, requires_grad=True)
    for result in range(2):
        found, expected = flashmask.merge(*given)[result], by_formula(*given)[result]
        seen = torch.isfinite(found)
        gradients = [
            torch.autograd.grad(each[seen].double().sum(), given, materialize_grads=True) for each in (found, expected)
        ]
        for a, b in zip(*gradients, strict=True):
            torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("loss", [torch.sum, lambda o: o.square().sum()], ids=["of a sum", "of squares"])
def test_second_derivatives_are_refused(loss):
    given = three_parts(torch.float32, requires_grad=True)
    first = torch.autograd.grad(loss(flashmask.merge(*given)[0]), given, create_graph=True)
    refused = pytest.raises(NotImplementedError, match=r"merge is differentiable once; write it with torch\.logsumexp")
    for part, gradient in zip(given, first, strict=True):
        with refused:
            torch.autograd.grad(gradient.sum(), part, retain_graph=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_operator_passes_the_checks_of_pytorch(dtype):
    tensors = three_parts(dtype, requires_grad=True)
    for each in tensors[1::2]:
        each.data.nan_to_num_(neginf=-3.0)  # the checks compare gradients with NaN there
    arguments = [t.detach().requires_grad_() for t in tensors]
    torch.library.opcheck(torch.ops.flashmask.merge.default, (arguments[::2], arguments[1::2]))


def test_compiled_calls_are_the_same_bits():
    given = three_parts(torch.bfloat16, requires_grad=True)
    compiled = torch.compile(flashmask.merge, fullgraph=True, backend="aot_eager")
    results = []
    for merge in (flashmask.merge, compiled):
        o, lse = merge(*given)
        results.append((o, lse, *torch.autograd.grad(o.float().sum() + lse[lse > -9].sum(), given)))
    for found, expected in zip(*results, strict=True):
        assert torch.equal(found, expected)


def test_strides_are_taken_as_they_come():
    given = three_parts(torch.float32)
    expected = flashmask.merge(*given)
    turned = [t.transpose(-1, -2).contiguous().transpose(-1, -2) for t in given]
    for found, right in zip(flashmask.merge(*turned), expected, strict=True):
        assert torch.equal(found, right)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_arrays_are_merged_as_tensors_are(dtype):
    given = three_parts(dtype)
    expected = flashmask.merge(*given)
    for arrays in ([t.numpy() for t in given], [np.asfortranarray(t.numpy()) for t in given]):
        for found, right in zip(flashmask.merge(*arrays), expected, strict=True):
            assert isinstance(found, np.ndarray)
            np.testing.assert_array_equal(found, right.numpy())


def test_a_nan_stays_where_it_is():
    given = three_parts(torch.float32)
    given[1][0, 0, 0] = torch.nan
    o, lse = flashmask.merge(*given)
    assert torch.isnan(lse).nonzero().tolist() == [[0, 0, 0]]
    assert torch.isnan(o).any(-1).nonzero().tolist() == [[0, 0, 0]]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"o1": torch.zeros(3, 2)}, ValueError, r"o1 has shape \[3, 2\]"),
        ({"o2": torch.zeros(1, 3, 2, 5)}, ValueError, r"o2 has shape \[1, 3, 2, 5\]; expected \[1, 3, 2, 4\]"),
        ({"lse1": torch.zeros(1, 3, 2)}, ValueError, r"lse1 has shape \[1, 3, 2\]; expected \[1, 2, 3\]"),
        ({"lse2": torch.zeros(2, 3)}, ValueError, r"lse2 has shape \[2, 3\]"),
        ({"o2": torch.zeros(1, 3, 2, 4).half()}, TypeError, "o2 is torch.float16"),
        ({"lse2": 3}, TypeError, "lse2 is int 3; expected a torch tensor, as o1 is"),
        ({"lse2": torch.zeros(1, 2, 3).double()}, TypeError, "lse2 is torch.float64; expected float32 beside an o1 of"),
        ({"o1": torch.zeros(1, 3, 2, 4).int()}, TypeError, "o1 has dtype torch.int32"),
        ({"o1": np.zeros((1, 3, 2, 4), "f4")}, TypeError, "lse1 is Tensor of .*; expected a NumPy array"),
        ({"o2": torch.zeros(1, 3, 2, 4, device="meta")}, ValueError, "o2 is on meta; expected cpu, the device of o1"),
    ],
)
def test_refuses_what_does_not_fit(change, error, message):
    o, lse = torch.zeros(1, 3, 2, 4), torch.zeros(1, 2, 3)
    with pytest.raises(error, match=message):
        flashmask.merge(**{"o1": o, "lse1": lse, "o2": o, "lse2": lse, **change})


def test_refuses_an_o_without_an_lse():
    o, lse = torch.zeros(1, 3, 2, 4), torch.zeros(1, 2, 3)
    with pytest.raises(TypeError, match="was given 5 arguments; expected an lse behind each o"):
        flashmask.merge(o, lse, o, lse, o)
