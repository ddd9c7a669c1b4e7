# SPDX-License-Identifier: Apache-2.0
"""Attention by its formula, in float64 unless told otherwise, which the tests of operators hold results against."""

import torch


def softmax_attention(
    q, k, v, visible=None, scale=None, kept=None, keep_scale=1.0, sinks=None, softcap=None, bias=None
):
    """o and lse of (batch, sequence, heads, head dim) tensors, in their dtype.

    `visible` booleans [1 | batch, mask heads, rows, columns]; `kept` [batch, heads, rows, columns] of a dropout;
    `sinks` [heads] or [batch, heads, rows]: the score of one key more, whose value is 0. `bias` [1 | batch, heads,
    rows, columns] is added to scores that softcap has capped.
    """
    batch, rows, heads, _ = q.shape
    scores = scores_of(q, k, visible, scale, softcap, bias)
    v = v.repeat_interleave(heads // v.shape[2], dim=2)
    if sinks is not None:
        of_rows = sinks[:, None].expand(batch, heads, rows) if sinks.ndim == 1 else sinks
        scores = torch.cat([scores, of_rows[..., None]], dim=-1)
        v = torch.nn.functional.pad(v, (0, 0, 0, 0, 0, 1))
    empty = torch.isneginf(scores).all(dim=-1, keepdim=True)
    lse = torch.logsumexp(scores.masked_fill(empty, 0.0), dim=-1)
    p = torch.exp(scores - lse[..., None])
    if kept is not None:
        p = p * kept * keep_scale
    lse = lse.masked_fill(empty[..., 0], -torch.inf)
    return torch.einsum("bhij,bjhd->bihd", p, v), lse


def scores_of(q, k, visible=None, scale=None, softcap=None, bias=None):
    """The scores of softmax_attention() [batch, heads, rows, columns], -inf where hidden."""
    batch, rows, heads, dim = q.shape
    k = k.repeat_interleave(heads // k.shape[2], dim=2)
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * (dim**-0.5 if scale is None else scale)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias.to(scores.dtype)
    if visible is None:
        return scores
    visible = visible.repeat_interleave(heads // visible.shape[1], dim=1).expand(batch, heads, rows, k.shape[1])
    return scores.masked_fill(~visible, -torch.inf)


def value_and_gradients(compute, inputs, grad_o, grad_lse, dtype):
    """o, lse and the gradients of q, k, v of a function of them, computed in `dtype`."""
    leaves = [t.detach().to(dtype).requires_grad_() for t in inputs]
    o, lse = compute(*leaves)
    finite = torch.isfinite(lse)
    loss = (o * grad_o.to(dtype)).sum() + (lse[finite] * grad_lse.to(lse.dtype)[finite]).sum()
    return [o.detach(), lse.detach(), *torch.autograd.grad(loss, leaves)]


def random_inputs(batch, rows, columns, heads, kv_heads, dim, value_dim, seed=0):
    """q, k, v, grad_o, grad_lse in float32."""
    generator = torch.Generator().manual_seed(seed)
    shapes = (
        (batch, rows, heads, dim),
        (batch, columns, kv_heads, dim),
        (batch, columns, kv_heads, value_dim),
        (batch, rows, heads, value_dim),
        (batch, heads, rows),
    )
    return [torch.randn(shape, generator=generator) for shape in shapes]


def assert_within_bound(found, reference, naive, dtype):
    """The error of the dtype's own naive computation, twice, and of its rounding: design bound of the kernels."""
    names = ("o", "lse", "grad_q", "grad_k", "grad_v")
    for name, *tensors in zip(names[: len(found)], found, reference, naive, strict=True):
        infinite = torch.isinf(tensors[1])
        assert torch.equal(torch.isinf(tensors[0]), infinite), name
        assert not torch.isnan(tensors[0]).any(), name
        a, exact, plain = (t.double().masked_fill(infinite, 0.0) for t in tensors)
        error = (a - exact).abs().max()
        largest = max(1.0, float(exact.abs().max()))
        if name == "lse":
            limit = (1e-5 if dtype == torch.float32 else 1e-3) * largest
        else:
            rounded = ((exact.to(dtype) + 0.3) - 0.3).double()
            limit = 2 * (plain - exact).abs().max() + 2 * (rounded - exact).abs().max() + 1e-5 * largest
        assert error <= limit, f"{name}: {error:.2e} > {limit:.2e}"
