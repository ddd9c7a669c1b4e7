# SPDX-License-Identifier: Apache-2.0
"""FlexAttention's formula, dense and in double precision."""

import torch


def indices(batch, heads, rows, columns):
    """b, h, q_idx and kv_idx, which broadcast to all pairs."""
    shapes = (-1, 1, 1, 1), (1, -1, 1, 1), (1, 1, -1, 1), (1, 1, 1, -1)
    return [torch.arange(n).reshape(shape) for n, shape in zip((batch, heads, rows, columns), shapes, strict=True)]


def flex_formula(q, k, v, score_mod=None, visible=None, scale=None):
    """o and lse in float64; `visible` broadcasts to (batch, heads, rows, columns)."""
    scores = flex_scores(q, k, score_mod, visible, scale)
    v = v.double().repeat_interleave(q.shape[1] // v.shape[1], 1)
    seen = (scores > -torch.inf).any(-1, keepdim=True)
    scores = torch.where(seen, scores, 0.0)
    lse = torch.where(seen[..., 0], scores.logsumexp(-1), -torch.inf)
    return torch.where(seen, scores.softmax(-1), 0.0) @ v, lse


def flex_scores(q, k, score_mod=None, visible=None, scale=None):
    """Changed scores [batch, heads, rows, columns] in float64, -inf where hidden."""
    q, k = q.double(), k.double().repeat_interleave(q.shape[1] // k.shape[1], 1)
    scores = q @ k.transpose(2, 3) * (q.shape[3] ** -0.5 if scale is None else scale)
    if score_mod is not None:
        scores = score_mod(scores, *indices(*scores.shape))
    return scores if visible is None else scores.masked_fill(~visible, -torch.inf)


def tensors(batch=2, query_heads=4, key_heads=4, rows=40, columns=40, dim=16, value_dim=None, dtype=torch.float32):
    """q, k and v that learn."""
    shapes = (query_heads, rows, dim), (key_heads, columns, dim), (key_heads, columns, value_dim or dim)
    return [torch.randn(batch, *shape, dtype=dtype, requires_grad=True) for shape in shapes]
