# SPDX-License-Identifier: Apache-2.0
"""score_mods: each form against the dense formula in double precision, with the gradients of what they capture."""

import pytest

torch = pytest.importorskip("torch", reason="flex_attention takes tensors")

from flex_oracle import flex_formula, tensors  # noqa: E402
from score_mods import CASES, REFUSED, SERVED, B, H, N  # noqa: E402

from flashmask import flex_attention  # noqa: E402
from flashmask._flex.recipe import recognise  # noqa: E402
from flashmask._flex.symbols import Space  # noqa: E402


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def learning(captured, frozen=(), double=False):
    """Copies of captured tensors; those of floating point learn but for the `frozen` ones."""
    copies = {}
    for name, each in captured.items():
        copy = each.double() if double and each.is_floating_point() else each.clone()
        copies[name] = copy.requires_grad_(each.is_floating_point() and name not in frozen)
    return copies


def gradients(o, lse, leaves):
    """Of a loss of o and of the lse of rows that see something."""
    loss = (o * torch.linspace(-1, 1, o.shape[-1], dtype=o.dtype)).sum() + (lse.where(lse > -torch.inf, 0.0) ** 2).sum()
    return torch.autograd.grad(loss, leaves, allow_unused=True)


def check(make, captured, *, close, frozen=(), visible=None, **call):
    """Compares o, lse and all gradients with the formula's; `close` bounds differences of float32 from float64."""
    qkv = tensors(**{name: call.pop(name) for name in ("key_heads", "rows", "columns", "dtype") if name in call})
    ours, exact = learning(captured, frozen), learning(captured, frozen, double=True)
    o, lse = flex_attention(*qkv, make(ours), return_lse=True, enable_gqa=True, **call)
    doubles = [each.detach().double().requires_grad_() for each in qkv]
    expected = flex_formula(*doubles, make(exact), visible)
    torch.testing.assert_close(o.double(), expected[0], rtol=close, atol=close)
    torch.testing.assert_close(lse.double(), expected[1], rtol=close, atol=close)
    names = [name for name, each in ours.items() if each.requires_grad]
    found = gradients(o, lse, [*qkv, *(ours[name] for name in names)])
    wanted = gradients(*expected, [*doubles, *(exact[name] for name in names)])
    for name, a, b in zip(["q", "k", "v", *names], found, wanted, strict=True):
        assert a.shape == b.shape, name
        torch.testing.assert_close(a.double(), b, rtol=10 * close, atol=10 * close, msg=lambda m, n=name: f"{n}: {m}")


def parts_of(make, captured, grouped=False):
    return recognise(make(captured), Space((B, H, N, N), "cpu"), torch.float32, grouped).parts()


@pytest.mark.parametrize("name", SERVED)
def test_score_mods_of_the_field(name):
    case = CASES[name]
    captured = case.captured()
    assert parts_of(case.make, learning(captured, case.frozen)) == case.becomes
    check(case.make, captured, close=1e-5, frozen=case.frozen)


@pytest.mark.parametrize("name", REFUSED)
def test_score_mods_that_no_argument_computes(name):
    case = CASES[name]
    with pytest.raises(NotImplementedError) as error:
        flex_attention(*tensors(), case.make(case.captured()))
    assert str(error.value).startswith(f"score_mod computes {case.refused} (")
    assert ": flashmask computes a factor of either token, a softcap, a bias without the score, and -inf; " in str(
        error.value
    )


def test_counts_of_the_field():
    assert (len(SERVED), len(REFUSED)) == (22, 4)
