# SPDX-License-Identifier: Apache-2.0
"""Biases of scores by their formulas, which the tests of a CPU and of a GPU hold results against."""

import torch
from attention_oracle import assert_within_bound, random_inputs


def random_bias(*shape, hidden=True):
    """Numbers of which some are -inf, among them whole columns, and a row that sees nothing where rows differ."""
    bias = torch.randn(shape, generator=torch.Generator().manual_seed(5))
    if hidden:
        bias[..., 5::7] = -torch.inf
        if shape[2] > 1:
            bias[..., 3, :] = -torch.inf
    return bias


def by_distance(table, rows, columns, origin):
    """The bias [1 | batch, 1 | heads, rows, columns] that a table stands for."""
    entry = torch.arange(rows)[:, None] + columns - rows - torch.arange(columns)[None] + origin
    exists = (entry >= 0) & (entry < table.shape[3])
    each_row = table.expand(-1, -1, rows, -1)
    chosen = each_row.gather(3, entry.clamp(0, table.shape[3] - 1).expand(*table.shape[:2], rows, columns))
    return torch.where(exists, chosen, torch.zeros((), dtype=table.dtype))


def gradients(compute, leaves, grad_o, grad_lse):
    """o, lse and the gradients of all leaves."""
    leaves = [t.detach().clone().requires_grad_() for t in leaves]
    o, lse = compute(*leaves)
    finite = torch.isfinite(lse)
    loss = (o * grad_o.to(o.dtype)).sum() + (lse[finite] * grad_lse.to(lse.dtype)[finite]).sum()
    return [o.detach(), lse.detach(), *torch.autograd.grad(loss, leaves)]


def check(compute, by_formula, dtype, bias, given):
    """Holds compute(q, k, v, bias) and its gradients against float64 and the dtype's naive computation."""
    *tensors, grad_o, grad_lse = given
    tensors = [each.to(dtype) for each in tensors]
    found = gradients(compute, (*tensors, bias), grad_o, grad_lse)
    exact, naive = (
        gradients(by_formula, [t.to(kind) for t in (*tensors, bias)], grad_o, grad_lse)
        for kind in (torch.float64, dtype)
    )
    assert_within_bound(found[:5], exact[:5], naive[:5], dtype)
    assert found[5].shape == bias.shape and found[5].dtype == bias.dtype
    # Sums of many gradients that were rounded to the dtype of p and of v, and once more to that of the bias.
    scale = exact[5].abs().max().clamp(min=1.0)
    limits = {torch.float32: 2e-5, torch.float64: 2e-5, torch.float16: 2.5e-3, torch.bfloat16: 2e-2}
    limit = max(limits[dtype], limits[bias.dtype])
    assert (found[5].double() - exact[5]).abs().max() <= limit * scale


def assert_rows_of_huge_biases_are_padding(attend, dim, dtype=torch.float32):
    """Rows all of whose biases are hugely negative, as masks of -1e9 and the like leave a row of padding.

    attend(q, k, v, bias) gives o. Such a row has the mean of what it sees, without a gradient it passes on exactly
    nothing, and with one no probability exceeds 1.
    """
    q, k, v, grad_o, _ = random_inputs(1, 70, 150, 2, 1, dim, dim)
    padding = [0, 17, 69]
    q[:, padding] = 0  # so that the mean is right in any precision
    given = [t.to(dtype) for t in (q, k, v)]

    def run(value, grad_o):
        bias = torch.zeros(1, 1, 70, 150)
        bias[:, :, padding] = value
        leaves = [t.clone().requires_grad_() for t in (*given, bias)]
        o = attend(*leaves)
        return o.detach(), torch.autograd.grad(o, leaves, grad_o.to(dtype))

    without = grad_o.clone()
    without[:, padding] = 0
    hidden = run(-torch.inf, without)[1]
    largest = grad_o.abs().sum(dim=1).amax(dim=1) * 2  # of the sum over rows and heads of P · grad_o with P = 1
    for value in (-1e4, -1e6, -1e8, -1e9, -1e20, -1e30):
        o, found = run(value, without)
        mean = given[2].float().mean(dim=1)[:, None].expand(1, 3, 2, dim)
        torch.testing.assert_close(o[:, padding].float(), mean, atol=5e-3, rtol=0, msg=f"o at {value}")
        assert (found[0][:, padding] == 0).all() and (found[3][:, :, padding] == 0).all()
        for name, gradient, expected in zip("qkvb", found, hidden, strict=True):
            # Not by bits: without `deterministic` a GPU adds up in any order.
            torch.testing.assert_close(gradient, expected, atol=2e-3, rtol=2e-3, msg=f"grad_{name} at {value}")
        of_v = run(value, grad_o)[1][2]
        assert (of_v.float().abs().amax(dim=1) <= largest).all(), f"P > 1 at {value}"
