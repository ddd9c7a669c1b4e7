# SPDX-License-Identifier: Apache-2.0
"""Functions of scores, and chains without kernels of their own, which a GPU's plan compiles: against float64."""

import pytest
import torch
from attention_oracle import assert_within_bound, value_and_gradients
from bias_oracle import gradients
from cuda_device import inputs, needs_gpu
from mask_families import visible

import flashmask
from flashmask import masks, scores

pytestmark = needs_gpu
needs_hopper = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="the GPU is no H100 or H200"
)
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


def by_formula(q, k, v, seen, function):
    """o and lse under a mask, of functions of scores."""
    k, v = (each.repeat_interleave(HEADS // KV, 2) for each in (k, v))
    s = function(torch.einsum("bihd,bjhd->bhij", q, k) * q.shape[3] ** -0.5, *indices(*seen.shape[-2:])).to(q.dtype)
    s = s.masked_fill(~seen, -torch.inf)
    lse = s.logsumexp(-1)
    p = (s - lse[..., None].masked_fill(lse[..., None] == -torch.inf, 0)).exp()
    return torch.einsum("bhij,bjhd->bihd", p, v), lse


def check_that_it_learns(mask, dim, change, function, of):
    """Holds o, lse and all gradients against the dense formula, that of `of` too, which both are made of."""
    given = inputs(BATCH, TOKENS, TOKENS, HEADS, KV, dim)
    seen = visible(mask).cuda()

    def by_kernels(q, k, v, of):
        return flashmask.attention(q, k, v, mask, score=change(of), return_lse=True)

    def formula(q, k, v, of):
        return by_formula(q, k, v, seen, function(of))

    found, exact, naive = (
        gradients(compute, [*(each.to(kind) for each in given[:3]), of.to(of_dtype)], *given[3:])
        for compute, kind, of_dtype in (
            (by_kernels, torch.bfloat16, of.dtype),
            (formula, torch.float64, torch.float64),
            (formula, torch.bfloat16, torch.bfloat16),
        )
    )
    assert_within_bound(found[:5], exact[:5], naive[:5], torch.bfloat16)
    assert found[5].shape == of.shape and found[5].dtype == of.dtype
    error, plain = ((each[5].double() - exact[5]).abs().max() for each in (found, naive))
    assert error <= plain + 0.02 * exact[5].abs().max().clamp(min=1.0)


def check(mask, dim, change, function):
    """Holds o, lse and the gradients of q, k and v against the dense formula."""
    seen = visible(mask).cuda()
    given = inputs(BATCH, *seen.shape[-2:], HEADS, KV, dim)
    found, exact, naive = (
        value_and_gradients(of, given[:3], *given[3:], kind)
        for of, kind in (
            (lambda *qkv: flashmask.attention(*qkv, mask, score=change, return_lse=True), given[0].dtype),
            (lambda *qkv: by_formula(*qkv, seen, function), torch.float64),
            (lambda *qkv: by_formula(*qkv, seen, function), given[0].dtype),
        )
    )
    assert_within_bound(found, exact, naive, given[0].dtype)


@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_hold_the_bound(name, dim):
    for make in MASKS.values():
        check(make(), dim, FUNCTIONS[name], FUNCTIONS[name])


@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("name", ["silu", "by document"])
def test_functions_hold_the_bound_in_the_kernels_of_other_gpus(name, dim, monkeypatch):
    monkeypatch.setenv("FLASHMASK_KERNEL", "sm80.")
    check(MASKS["documents"](), dim, FUNCTIONS[name], FUNCTIONS[name])


@pytest.mark.parametrize("dim", [192, 256])
def test_wide_heads_hold_the_bound(dim):
    for make in MASKS.values():
        check(make(), dim, FUNCTIONS["silu"], FUNCTIONS["silu"])


@needs_hopper
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dim", [64, 128])
def test_hopper_changes_scores_in_its_own_kernels(dim, dtype):
    q, k = (torch.empty(BATCH, TOKENS, heads, dim, device="cuda", dtype=dtype) for heads in (HEADS, KV))
    for make in MASKS.values():
        for change in (scores.function("mul(score, abs(score))"), scores.softcap(3.0) | scores.multiply(2.0)):
            plan = flashmask.plan(make(), q, k, score=change)
            assert plan.kernel("forward").startswith("sm90."), plan
            assert plan.kernel("backward").startswith("sm90."), plan


@needs_hopper
def test_scores_that_grow_behind_settled_maxima():
    """The last keys have far larger scores than those that the kernel's maxima settle on."""
    q, k, v = (torch.randn(1, 2048, 2, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    k[:, 1900:] *= 8
    found = flashmask.attention(q, k, v, None, score=FUNCTIONS["squares"])
    s = torch.einsum("bihd,bjhd->bhij", q.double(), k.double()) / 8
    expected = torch.einsum("bhij,bjhd->bihd", (s * s.abs()).softmax(-1), v.double())
    torch.testing.assert_close(found.double(), expected, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("dim", [64, 128])
def test_the_largest_changed_scores_of_rows(dim):
    q, k, v = (torch.randn(1, TOKENS, HEADS, dim, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    _, largest = flashmask.attention(q, k, v, None, score=FUNCTIONS["squares"], return_max_scores=True)
    s = torch.einsum("bihd,bjhd->bhij", q.double(), k.double()) * dim**-0.5
    torch.testing.assert_close(largest.double(), (s * s.abs()).amax(-1), rtol=1e-3, atol=1e-3)


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


def test_numbers_of_pairs_are_computed_in_the_kernel():
    """A tensor of (tokens, tokens) would be four times all other memory of the call."""
    tokens = 4096
    document = torch.arange(tokens, device="cuda") // 500
    q, k, v = (torch.randn(1, tokens, 1, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))

    def change(s, b, h, i, j):
        return torch.where(document[i] == document[j], s, s - 3.0)

    expected = (torch.einsum("bihd,bjhd->bhij", q.double(), k.double()) / 8) - 3.0 * (
        document[:, None] != document[None]
    ).double()
    expected = torch.einsum("bhij,bjhd->bihd", expected.softmax(-1), v.double())
    for _ in range(2):  # what is compiled, and then what is measured
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        found = flashmask.attention(q, k, v, score=change)
        most = torch.cuda.max_memory_allocated() - before
    torch.testing.assert_close(found.double(), expected, rtol=0.02, atol=0.02)
    assert most < tokens * tokens


def test_flex_attention_takes_what_it_cannot_recognise():
    q, k, v = (torch.randn(1, HEADS, TOKENS, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    found = flashmask.flex_attention(q, k, v, score_mod=FUNCTIONS["squares"])
    s = (q.double() @ k.double().mT) / 8
    torch.testing.assert_close(found.double(), (s * s.abs()).softmax(-1) @ v.double(), rtol=0.02, atol=0.02)


LEARNS = {
    "a gate of heads": ((HEADS,), lambda of: lambda s, b, h, i, j: s * s.abs() * of[h]),
    "a table of distances": (
        (HEADS, 2 * TOKENS - 1),
        lambda of: lambda s, b, h, i, j: torch.where(s > 0, s, s * of[h, i - j + TOKENS - 1]),
    ),
    "a value of each pair, which the batch shares": (
        (1, HEADS, TOKENS, TOKENS),
        lambda of: lambda s, b, h, i, j: 3 * torch.tanh(s * of[0, h, i, j] / 3),
    ),
    "a value of each pair": (
        (BATCH, 1, TOKENS, TOKENS),
        lambda of: lambda s, b, h, i, j: torch.where(s < 0, s.exp(), 1 + s) * of[b, 0, i, j],
    ),
    "a value of keys beside what does not learn": (
        (BATCH, TOKENS),
        lambda of: (
            lambda s, b, h, i, j: (
                torch.where(DOCUMENT[i] == DOCUMENT[j], s, s - 10.0) * torch.sigmoid(of[b, j]) * SLOPES[h]
            )
        ),
    ),
    "a number, by logarithms": ((), lambda of: lambda s, b, h, i, j: torch.nn.functional.softplus(s * of)),
}


def learning(name):
    """A captured value, and what makes the function of it."""
    shape, make = LEARNS[name]
    return torch.randn(shape, generator=torch.Generator().manual_seed(2)).cuda(), make


@pytest.mark.parametrize("dim", [24, 64, 128])
@pytest.mark.parametrize("name", LEARNS)
def test_one_value_of_a_function_learns(name, dim):
    of, make = learning(name)
    for mask in (each() for each in MASKS.values()):
        check_that_it_learns(mask, dim, make, make, of)


@pytest.mark.parametrize("shape", [(1, HEADS, TOKENS, TOKENS), (BATCH, 1, 1, TOKENS)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_bias_of_a_chain_learns(dtype, shape):
    bias = torch.randn(shape, generator=torch.Generator().manual_seed(2)).to("cuda", dtype)
    bias[..., 5::7] = -torch.inf
    for mask in (each() for each in MASKS.values()):
        check_that_it_learns(
            mask,
            64,
            lambda of: scores.bias(of) | scores.softcap(3.0),
            lambda of: lambda s, b, h, i, j: 3 * torch.tanh((s + of) / 3),
            bias,
        )


@pytest.mark.parametrize("name", LEARNS)
def test_the_gradient_of_what_learns_is_the_same_bits_on_every_run(name):
    of, make = learning(name)
    q, k, v, grad_o, _ = inputs(BATCH, TOKENS, TOKENS, HEADS, KV, 64)
    found = []
    for _ in range(3):
        leaf = of.clone().requires_grad_()
        o = flashmask.attention(q, k, v, MASKS["documents"](), score=make(leaf))
        found.append(torch.autograd.grad(o, leaf, grad_o)[0])
    assert found[0].abs().max() > 0
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


def test_values_behind_the_mask_may_be_nan():
    q, k, v, grad_o, _ = inputs(BATCH, TOKENS, TOKENS, HEADS, KV, 64)
    seen = visible(masks.causal(TOKENS, TOKENS)).cuda()
    found = []
    for behind in (0.0, torch.nan):
        leaf = torch.ones(1, HEADS, TOKENS, TOKENS, device="cuda").masked_fill(~seen, behind).requires_grad_()
        change = scores.bias(leaf) | scores.softcap(3.0)
        o = flashmask.attention(q, k, v, masks.causal(TOKENS, TOKENS), score=change)
        found.append((o, torch.autograd.grad(o, leaf, grad_o)[0]))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    assert (found[1][1][~seen.expand_as(found[1][1])] == 0).all()
