# SPDX-License-Identifier: Apache-2.0
"""Chains of steps without kernels of their own, which a GPU's plan compiles: against float64."""

import torch
from attention_oracle import assert_within_bound, value_and_gradients
from cuda_device import inputs, needs_gpu
from mask_families import visible

import flashmask
from flashmask import masks, scores

pytestmark = needs_gpu
BATCH, TOKENS, HEADS, KV, DIM = 2, 300, 4, 2, 64


def test_a_cap_behind_a_bias_holds_the_bound():
    bias = torch.randn(1, HEADS, TOKENS, TOKENS, device="cuda", dtype=torch.bfloat16)
    mask = masks.causal(TOKENS, TOKENS)
    given = inputs(BATCH, TOKENS, TOKENS, HEADS, KV, DIM)

    def by_kernels(q, k, v):
        return flashmask.attention(q, k, v, mask, score=scores.bias(bias) | scores.softcap(3.0), return_lse=True)

    def by_formula(q, k, v):
        k, v = (each.repeat_interleave(HEADS // KV, 2) for each in (k, v))
        s = torch.einsum("bihd,bjhd->bhij", q, k) * DIM**-0.5 + bias.to(q.dtype)
        s = (3 * torch.tanh(s / 3)).masked_fill(~visible(mask).cuda(), -torch.inf)
        return torch.einsum("bhij,bjhd->bihd", s.softmax(-1), v), s.logsumexp(-1)

    found, exact, naive = (
        value_and_gradients(of, given[:3], *given[3:], kind)
        for of, kind in ((by_kernels, torch.bfloat16), (by_formula, torch.float64), (by_formula, torch.bfloat16))
    )
    assert_within_bound(found, exact, naive, torch.bfloat16)
