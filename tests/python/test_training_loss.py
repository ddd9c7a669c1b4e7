# SPDX-License-Identifier: Apache-2.0
"""flashmask.training's losses in chunks of rows, against torch's cross_entropy on all logits."""

import pytest

torch = pytest.importorskip("torch", reason="flashmask.training is for torch")

from torch.nn.functional import cross_entropy, linear, log_softmax  # noqa: E402

import flashmask.data  # noqa: E402
from flashmask.training import _liger, answer_log_probs, linear_cross_entropy, linear_log_probs  # noqa: E402

WORDS, WIDTH = 301, 24


def given(bias=True, rows=(3, 50), dtype=torch.float32):
    """hidden, weight, bias and labels, of which some are ignored."""
    draw = torch.Generator().manual_seed(0)
    tensors = [torch.randn(shape, generator=draw) for shape in ((*rows, WIDTH), (WORDS, WIDTH), (WORDS,))]
    labels = torch.randint(WORDS, rows, generator=draw)
    labels[:, ::3] = -100
    leaves = [each.to(dtype).requires_grad_() for each in tensors]
    return leaves[0], leaves[1], leaves[2] if bias else None, labels


def by_torch(hidden, weight, bias, labels, softcap=None, reduction="mean"):
    logits = linear(hidden, weight, bias)
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    return cross_entropy(logits.flatten(0, -2).float().to(hidden.dtype), labels.flatten(), reduction=reduction)


def gradients(loss, leaves):
    return torch.autograd.grad(loss, [each for each in leaves if each is not None])


def assert_within_bound(compute, plain, leaves):
    """Loss to 1e-6, and gradients at most twice as far from float64 as plain autograd's in float32."""
    found, expected = compute(*leaves), plain(*leaves)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6)
    doubles = [None if each is None else each.detach().double().requires_grad_() for each in leaves]
    exact = gradients(plain(*doubles), doubles)
    for ours, theirs, reference in zip(gradients(found, leaves), gradients(expected, leaves), exact, strict=True):
        limit = 2 * (theirs - reference).abs().max() + 1e-6 * reference.abs().max()
        assert (ours - reference).abs().max() <= limit


@pytest.mark.parametrize("chunk", [1, 7, 64, 10_000])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("bias", [True, False])
def test_cross_entropy_is_that_of_all_logits(chunk, reduction, bias):
    *leaves, labels = given(bias)
    assert_within_bound(
        lambda h, w, b: linear_cross_entropy(h, w, labels, bias=b, chunk=chunk, reduction=reduction),
        lambda h, w, b: by_torch(h, w, b, labels, reduction=reduction),
        leaves,
    )


def test_capped_logits():
    *leaves, labels = given()
    assert_within_bound(
        lambda h, w, b: linear_cross_entropy(h, w, labels, bias=b, chunk=16, softcap=2.5),
        lambda h, w, b: by_torch(h, w, b, labels, softcap=2.5),
        leaves,
    )


def test_a_confident_row_has_a_gradient_in_bfloat16():
    """1 - p of the label is not lost in the rounding of p."""
    weight = torch.eye(2, dtype=torch.bfloat16).requires_grad_()
    hidden = torch.tensor([[9.0, 0.0]], dtype=torch.bfloat16, requires_grad=True)
    linear_cross_entropy(hidden, weight, torch.tensor([0])).backward()
    assert hidden.grad[0, 0].item() == pytest.approx(-1 / (1 + 2.718281828**9), rel=1e-2)


@pytest.mark.parametrize("frozen", [0, 1])
def test_what_is_frozen_has_no_gradient(frozen):
    hidden, weight, _, labels = given()
    leaves = [hidden, weight]
    leaves[frozen].requires_grad_(False)
    linear_cross_entropy(hidden, weight, labels, chunk=16).backward()
    assert leaves[frozen].grad is None
    expected = torch.autograd.grad(by_torch(hidden, weight, None, labels), leaves[1 - frozen])[0]
    torch.testing.assert_close(leaves[1 - frozen].grad, expected, atol=1e-6, rtol=1e-5)


def test_a_scaled_loss_has_scaled_gradients():
    hidden, weight, _, labels = given()
    (3 * linear_cross_entropy(hidden, weight, labels)).backward()
    expected = torch.autograd.grad(3 * by_torch(hidden, weight, None, labels), [hidden, weight])
    torch.testing.assert_close([hidden.grad, weight.grad], list(expected), atol=1e-5, rtol=1e-5)


def test_rows_without_a_label_cost_nothing():
    hidden, weight, _, labels = given()
    assert linear_cross_entropy(hidden, weight, torch.full_like(labels, -100), reduction="sum") == 0
    assert linear_cross_entropy(hidden, weight, torch.full_like(labels, -100)).isnan()  # as torch says it
    one = torch.full_like(labels, 7)
    one[0, 0] = 5
    torch.testing.assert_close(
        linear_cross_entropy(hidden, weight, one, ignore_index=7), by_torch(hidden[0, :1], weight, None, one[0, :1])
    )


@pytest.mark.parametrize("softcap", [None, 2.5])
@pytest.mark.parametrize("chunk", [7, 10_000])
def test_log_probs_are_those_of_all_logits(chunk, softcap):
    *leaves, labels = given()
    factors = torch.randn(labels.shape, generator=torch.Generator().manual_seed(1))

    def plain(h, w, b):
        logits = linear(h, w, b)
        logits = logits if softcap is None else softcap * torch.tanh(logits / softcap)
        found = log_softmax(logits, -1).gather(-1, labels.clamp(min=0)[..., None])[..., 0]
        return (factors.to(h.dtype) * found.masked_fill(labels == -100, 0)).sum() / 10

    def ours(h, w, b):
        found = linear_log_probs(h, w, labels, bias=b, chunk=chunk, softcap=softcap)
        assert found.shape == labels.shape and not found[labels == -100].any()
        return (factors * found).sum() / 10

    assert_within_bound(ours, plain, leaves)


@pytest.mark.parametrize("softcap", [None, 2.5])
@pytest.mark.parametrize("temperature", [1, 0.7])
@pytest.mark.parametrize("chunk", [7, 10_000])
def test_entropies_are_those_of_all_logits(chunk, temperature, softcap):
    *leaves, labels = given()
    factors = torch.randn(2, *labels.shape, generator=torch.Generator().manual_seed(1))

    def plain(h, w, b):
        logits = linear(h, w, b)
        logits = logits if softcap is None else softcap * torch.tanh(logits / softcap)
        found = log_softmax(logits / temperature, -1)
        entropies = torch.distributions.Categorical(logits=found).entropy()
        both = torch.stack([found.gather(-1, labels.clamp(min=0)[..., None])[..., 0], entropies])
        return (factors.to(h.dtype) * both.masked_fill(labels == -100, 0)).sum() / 10

    def ours(h, w, b):
        options = {"chunk": chunk, "softcap": softcap, "temperature": temperature, "entropies": True}
        found = linear_log_probs(h, w, labels, bias=b, **options)
        assert all(each.shape == labels.shape and not each[labels == -100].any() for each in found)
        alone = linear_log_probs(h, w, labels, bias=b, **{**options, "entropies": False})
        assert torch.equal(alone, found[0])
        return (factors * torch.stack(found)).sum() / 10

    assert_within_bound(ours, plain, leaves)


def test_a_word_that_cannot_come_adds_nothing_to_an_entropy():
    hidden, weight, bias, labels = given()
    bias = bias.detach().clone()
    bias[5] = -torch.inf
    labels = labels.where(labels != 5, 6)
    _, found = linear_log_probs(hidden, weight, labels, bias=bias, entropies=True)
    gradient = torch.autograd.grad(found.sum(), hidden)[0]
    _, expected = linear_log_probs(hidden, weight, labels, bias=bias.nan_to_num(neginf=-1e4), entropies=True)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected.sum(), hidden)[0])


def test_answers_have_the_log_probs_of_their_logits():
    example = {"prompt_ids": [1, 2, 3, 4], "chosen_ids": [5, 6, 7], "rejected_ids": [8, 9]}
    packed = flashmask.data.pack([example, {**example, "prompt_ids": [4]}], length=20)
    hidden, weight, bias, _ = given(rows=tuple(packed["input_ids"].shape))
    expected = flashmask.data.answer_log_probs(linear(hidden, weight, bias), packed)
    found = answer_log_probs(hidden, weight, packed, bias=bias, chunk=3)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-6)
    factors = torch.arange(1.0, 5.0)
    leaves = [hidden, weight, bias]
    torch.testing.assert_close(
        gradients((factors * found).sum(), leaves), gradients((factors * expected).sum(), leaves), atol=1e-5, rtol=1e-4
    )


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"labels": torch.zeros(3, 49, dtype=torch.int64)}, ValueError, "one for each row of hidden"),
        ({"labels": torch.zeros(3, 50)}, TypeError, "expected torch.int64"),
        ({"labels": torch.full((3, 50), WORDS)}, ValueError, f"labels holds {WORDS}; expected words from 0 to 300"),
        ({"labels": torch.full((3, 50), -1)}, ValueError, "labels holds -1"),
        ({"weight": torch.zeros(WORDS, WIDTH + 1)}, ValueError, r"expected \[..., H\] and \[V, H\]"),
        ({"weight": torch.zeros(WORDS, WIDTH).double()}, TypeError, "weight has dtype torch.float64; expected"),
        ({"weight": torch.zeros(WORDS, WIDTH, device="meta")}, ValueError, "weight is on meta; expected cpu"),
        ({"weight": torch.nn.Linear(WIDTH, WORDS)}, TypeError, "weight is Linear .*; expected a torch tensor"),
        ({"hidden": torch.tensor(1.0)}, ValueError, r"hidden has shape \[\]"),
        ({"hidden": torch.ones(3, 50, WIDTH, dtype=torch.int64)}, TypeError, "hidden has dtype torch.int64"),
        ({"bias": torch.zeros(3)}, ValueError, r"bias has shape \[3\]; expected \[301\]"),
        ({"labels": [1]}, TypeError, r"labels is list \[1\]"),
        ({"ignore_index": "x"}, TypeError, "ignore_index is str 'x'"),
        ({"softcap": 0.0}, ValueError, "softcap is float 0.0; expected a number above 0"),
        ({"softcap": "x"}, ValueError, "softcap is str 'x'"),
        ({"chunk": 0}, ValueError, "chunk is 0"),
        ({"reduction": "none"}, ValueError, "reduction is 'none'"),
    ],
)
def test_says_what_does_not_match(change, error, says):
    hidden, weight, _, labels = given()
    with pytest.raises(error, match=says):
        linear_cross_entropy(**{"hidden": hidden, "weight": weight, "labels": labels, **change})


def test_log_probs_say_what_does_not_match():
    hidden, weight, _, labels = given()
    with pytest.raises(ValueError, match=r"bias has shape \[3\]"):
        linear_log_probs(hidden, weight, labels, bias=torch.zeros(3))
    with pytest.raises(ValueError, match=r"temperature is float 0.0; expected a number above 0"):
        linear_log_probs(hidden, weight, labels, temperature=0.0)
    with pytest.raises(TypeError, match=r"entropies is int 1; expected True or False"):
        linear_log_probs(hidden, weight, labels, entropies=1)


def test_autocast_casts_the_head():
    hidden, weight, _, labels = given()
    with torch.autocast("cpu", torch.bfloat16):
        found = linear_cross_entropy(hidden.bfloat16(), weight, labels)
    expected = linear_cross_entropy(hidden.bfloat16(), weight.bfloat16(), labels)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("function", [linear_cross_entropy, linear_log_probs])
def test_second_derivatives_are_refused(function):
    hidden, weight, bias, labels = given()
    with pytest.raises(NotImplementedError, match=f"{function.__name__} is differentiable once; make all logits"):
        torch.autograd.grad(function(hidden, weight, labels, bias=bias).sum(), hidden, create_graph=True)


def test_second_derivatives_are_refused_where_liger_computes(monkeypatch):
    class Liger(torch.autograd.Function):
        """As Liger's function, it computes the gradient of the rows with the loss, and later scales it."""

        @staticmethod
        def forward(ctx, rows, *others):
            ctx.save_for_backward(rows.cos())
            return rows.sin().sum(), None

        @staticmethod
        def backward(ctx, grad, _):
            return ctx.saved_tensors[0] * grad, *(None,) * 11

    monkeypatch.setattr(_liger, "_function", lambda: Liger)
    hidden, weight, _, labels = given(bias=False)
    total = _liger.by_liger(hidden, weight, labels, None, None)
    torch.testing.assert_close(torch.autograd.grad(total, hidden, retain_graph=True)[0], hidden.cos())
    with pytest.raises(NotImplementedError, match="linear_cross_entropy is differentiable once; make all logits"):
        torch.autograd.grad(total, hidden, create_graph=True)


def test_says_that_a_gradient_is_there_once():
    hidden, weight, _, labels = given()
    loss = linear_cross_entropy(hidden, weight, labels)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="asked for twice"):
        loss.backward()
