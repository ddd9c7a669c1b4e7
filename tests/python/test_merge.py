"""merge(): attention over two sets of keys joined, by the formula over all of them."""

import pytest
import torch
from attention_oracle import random_inputs, softmax_attention

import flashmask
from flashmask import masks

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


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"o1": torch.zeros(3, 2)}, ValueError, r"o1 has shape \[3, 2\]"),
        ({"o2": torch.zeros(1, 3, 2, 5)}, ValueError, r"o2 has shape \[1, 3, 2, 5\]; expected \[1, 3, 2, 4\]"),
        ({"lse1": torch.zeros(1, 3, 2)}, ValueError, r"lse1 has shape \[1, 3, 2\]; expected \[1, 2, 3\]"),
        ({"lse2": torch.zeros(2, 3)}, ValueError, r"lse2 has shape \[2, 3\]"),
        ({"o2": torch.zeros(1, 3, 2, 4).half()}, TypeError, "o2 is torch.float16"),
        ({"lse2": 3}, TypeError, "lse2 is int 3"),
    ],
)
def test_refuses_what_does_not_fit(change, error, message):
    o, lse = torch.zeros(1, 3, 2, 4), torch.zeros(1, 2, 3)
    with pytest.raises(error, match=message):
        flashmask.merge(**{"o1": o, "lse1": lse, "o2": o, "lse2": lse, **change})
