# SPDX-License-Identifier: Apache-2.0
"""Functions of scores, and chains without kernels of their own, which a GPU's plan compiles: against float64."""

import pytest
import torch
from attention_oracle import assert_within_bound, value_and_gradients
from cuda_device import inputs, needs_gpu
from mask_families import visible

import flashmask
from flashmask import masks, scores

pytestmark = needs_gpu
BATCH, TOKENS, HEADS, KV = 2, 300, 4, 2
MASKS = {
    "full": lambda: masks.full(TOKENS, TOKENS),
    "documents": lambda: masks.causal_document([100, 30, 170]),
    "bits": lambda: masks.from_dense(
        torch.rand(1, 1, TOKENS, TOKENS, generator=torch.Generator().manual_seed(1)) < 0.7
    ),
}
SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625], device="cuda" if torch.cuda.is_available() else "cpu")
DOCUMENT = torch.arange(TOKENS, device=SLOPES.device) // 60
TABLE = torch.linspace(-1, 1, TOKENS * TOKENS, device=SLOPES.device).view(TOKENS, TOKENS)
SHORT = torch.linspace(-2, 2, HEADS * TOKENS, device=SLOPES.device).view(HEADS, TOKENS).bfloat16()
HALVES = torch.linspace(-1, 1, TOKENS, device=SLOPES.device).half()
APART = torch.linspace(-1, 1, 2 * TOKENS * HEADS, device=SLOPES.device).view(HEADS, 2 * TOKENS)[:, ::2]
FUNCTIONS = {
    "squares": lambda s, b, h, i, j: s * s.abs(),
    "silu": lambda s, b, h, i, j: torch.nn.functional.silu(s),
    "cosine of the distance": lambda s, b, h, i, j: s * (1 + 0.1 * torch.cos(i - j)),
    "by document": lambda s, b, h, i, j: torch.where(DOCUMENT[i] == DOCUMENT[j], s, s - 10.0) * SLOPES[h],
    "a factor of both tokens": lambda s, b, h, i, j: s * TABLE[i, j],
    "short captured tensors": lambda s, b, h, i, j: s * SHORT[h, j] + torch.where(HALVES[i] < 0, SHORT[h, i], 0.5 * s),
    "strided captured tensors": lambda s, b, h, i, j: s * TABLE.T[i, j] + APART[h, i] * TABLE.T[h, j],
    "conditions on the score": lambda s, b, h, i, j: torch.where(s > 0, s, 0.1 * s) + b,
}


def indices(rows, columns):
    sizes = BATCH, HEADS, rows, columns
    return [torch.arange(n, device="cuda").view([-1 if a == at else 1 for a in range(4)]) for at, n in enumerate(sizes)]


def check(mask, dim, change, function):
    """Holds o, lse and the gradients of q, k and v against the dense formula."""
    seen = visible(mask).cuda()
    given = inputs(BATCH, *seen.shape[-2:], HEADS, KV, dim)

    def by_kernels(q, k, v):
        return flashmask.attention(q, k, v, mask, score=change, return_lse=True)

    def by_formula(q, k, v):
        k, v = (each.repeat_interleave(HEADS // KV, 2) for each in (k, v))
        s = function(torch.einsum("bihd,bjhd->bhij", q, k) * dim**-0.5, *indices(*seen.shape[-2:])).to(q.dtype)
        s = s.masked_fill(~seen, -torch.inf)
        lse = s.logsumexp(-1)
        p = (s - lse[..., None].masked_fill(lse[..., None] == -torch.inf, 0)).exp()
        return torch.einsum("bhij,bjhd->bihd", p, v), lse

    found, exact, naive = (
        value_and_gradients(of, given[:3], *given[3:], kind)
        for of, kind in ((by_kernels, given[0].dtype), (by_formula, torch.float64), (by_formula, given[0].dtype))
    )
    assert_within_bound(found, exact, naive, given[0].dtype)


@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_hold_the_bound(name, dim):
    for make in MASKS.values():
        check(make(), dim, FUNCTIONS[name], FUNCTIONS[name])


def test_chains_hold_the_bound():
    bias = torch.randn(1, HEADS, TOKENS, TOKENS, device="cuda", dtype=torch.bfloat16)
    check(
        masks.causal(TOKENS, TOKENS),
        64,
        scores.bias(bias) | scores.softcap(3.0),
        lambda s, b, h, i, j: 3 * torch.tanh((s + bias.to(s.dtype)) / 3),
    )


@pytest.mark.parametrize("name", ["by document", "cosine of the distance", "short captured tensors"])
def test_queries_may_be_fewer_than_keys(name):
    check(masks.causal(TOKENS - 90, TOKENS), 64, FUNCTIONS[name], FUNCTIONS[name])


def test_what_hidden_keys_have_is_not_used():
    hidden = 40
    factor = torch.linspace(0.5, 1.5, TOKENS, device="cuda")
    of_hidden = torch.where(torch.arange(TOKENS, device="cuda") < TOKENS - hidden, factor, torch.nan)
    mask = masks.document(query_lengths=[TOKENS, 0], key_lengths=[TOKENS - hidden, hidden])
    check(mask, 64, lambda s, b, h, i, j: s * s * of_hidden[j], lambda s, b, h, i, j: s * s * factor[j])


def test_flex_attention_takes_what_it_cannot_recognise():
    q, k, v = (torch.randn(1, HEADS, TOKENS, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    found = flashmask.flex_attention(q, k, v, score_mod=FUNCTIONS["squares"])
    s = (q.double() @ k.double().mT) / 8
    torch.testing.assert_close(found.double(), (s * s.abs()).softmax(-1) @ v.double(), rtol=0.02, atol=0.02)


def test_a_captured_value_that_learns_is_refused():
    gate = torch.ones(HEADS, device="cuda", requires_grad=True)
    q, k, v = (
        torch.randn(1, TOKENS, HEADS, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3)
    )
    with pytest.raises(Exception, match="grad_bias was asked for on a GPU"):
        flashmask.attention(q, k, v, score=lambda s, b, h, i, j: s * s * gate[h]).sum().backward()
