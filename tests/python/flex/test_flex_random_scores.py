# SPDX-License-Identifier: Apache-2.0
"""Random score_mods, chains of steps that models in the field take, against the dense formula in double precision."""

import random

import pytest

torch = pytest.importorskip("torch", reason="flex_attention takes tensors")

from flex_oracle import flex_formula, tensors  # noqa: E402

from flashmask import flex_attention  # noqa: E402

B, H, N, M = 2, 4, 11, 13  # sequences, query heads, queries, keys


def learned(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def factor_of_queries():
    of = learned(B, N)
    return lambda s, b, h, i, j: s * of[b, i], [of]


def factor_of_keys():
    of = learned(M)
    return lambda s, b, h, i, j: s / (2 + of[j].sin()), [of]


def factor_of_heads():
    of = learned(H)
    return lambda s, b, h, i, j: torch.where(h % 2 == 0, s * of[h], s * 0.5), [of]


def number():
    by = random.choice([0.5, -2, 3.0])
    return lambda s, b, h, i, j: by * s, []


def sum_of_scores():
    return lambda s, b, h, i, j: s.double() + s / 4, []


def softcap():
    cap = random.choice([1.5, 4.0])
    return lambda s, b, h, i, j: cap * torch.tanh(s / cap), []


def bias_of_rows():
    of = learned(B, H, N)
    return lambda s, b, h, i, j: of[b, h, i] + s, [of]


def bias_of_keys():
    of = learned(H, M)
    return lambda s, b, h, i, j: s - of[h, j], [of]


def bias_by_distance():
    of = learned(H, 9)
    return lambda s, b, h, i, j: s + of[h, (i - j).clamp(-4, 4) + 4] - 0.125 * (j - i).abs(), [of]


def bias_of_pairs():
    of = learned(B, N, M)
    return lambda s, b, h, i, j: s + of[b, i, j], [of]


def bias_of_blocks():
    of = learned(4, 4)
    return lambda s, b, h, i, j: s + of[i // 3, j // 4] * (h + 1), [of]


def one_of_two_biases():
    near, far, reach = learned(H), learned(M), random.randrange(5)
    return lambda s, b, h, i, j: torch.where((i - j).abs() <= reach, s + near[h], s + far[j]), [near, far]


def causal():
    shift = random.randrange(-3, 4)
    return lambda s, b, h, i, j: torch.where(i + shift >= j, s, -torch.inf), []


def documents():
    ids = torch.randint(0, 3, (B, M)).sort().values
    return lambda s, b, h, i, j: torch.where(ids[b, i] != ids[b, j], -torch.inf, s), []


def padding():
    lengths = torch.randint(0, M + 1, (B,))
    return lambda s, b, h, i, j: s.masked_fill(j >= lengths[b], -torch.inf), []


def hiding_bias():
    hidden = torch.rand(N, M) < 0.2
    return lambda s, b, h, i, j: s + torch.where(hidden[i, j] | (h == 1), -torch.inf, 0.25), []


STEPS = [
    *(factor_of_queries, factor_of_keys, factor_of_heads, number, sum_of_scores, softcap, bias_of_rows, bias_of_keys),
    *(bias_by_distance, bias_of_pairs, bias_of_blocks, one_of_two_biases, causal, documents, padding, hiding_bias),
]


def random_score_mod():
    steps = [random.choice(STEPS)() for _ in range(random.randint(1, 5))]

    def change(s, b, h, i, j):
        for step, _ in steps:
            s = step(s, b, h, i, j)
        return s

    return change, [each for _, captured in steps for each in captured]


def gradients(o, lse, leaves):
    loss = (o * torch.linspace(-1, 1, o.shape[-1])).sum() + lse.where(lse > -torch.inf, 0.0).square().sum()
    return torch.autograd.grad(loss, leaves, allow_unused=True)


def is_served(key_heads):
    """Compares one random score_mod with the formula; False where it is refused."""
    change, captured = random_score_mod()
    qkv = tensors(B, H, key_heads, N, M, 8, dtype=torch.float64)
    try:
        found = flex_attention(*qkv, change, return_lse=True, enable_gqa=True)
    except NotImplementedError:
        return False
    expected = flex_formula(*qkv, change)
    if expected[0].isnan().any():  # a negative factor of what is hidden: +inf
        return True
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
    leaves = [*qkv, *captured]
    for a, b in zip(gradients(*found, leaves), gradients(*expected, leaves), strict=True):
        ours = torch.zeros_like(b) if a is None else a
        theirs = torch.where(b.isnan(), ours, b)  # 0 times -inf, where the formula has a factor of what is hidden
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-8, equal_nan=True)
    return True


def check(count, seed):
    """Chains with a cap or a sign behind what they must not follow are refused; most are served."""
    random.seed(seed)
    torch.manual_seed(seed)
    assert sum(is_served(random.choice([2, 4])) for _ in range(count)) > 0.7 * count


def test_random_score_mods():
    check(60, seed=0)


@pytest.mark.full
def test_many_random_score_mods():
    check(5_000, seed=1)
