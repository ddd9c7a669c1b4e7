# SPDX-License-Identifier: Apache-2.0
"""Changes of scores in flashmask.jax on a CPU: the bits of PyTorch's calls, the formula, and what is refused."""

import pytest

jax = pytest.importorskip("jax", reason="scripts/test jax runs this where JAX is")
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from attention_oracle import softmax_attention  # noqa: E402
from jax_cases import N, assert_same_bits, bias_of, inputs, refused, results  # noqa: E402
from mask_families import FAMILIES  # noqa: E402
from torch_cases import as_torch, results_of_torch  # noqa: E402

import flashmask  # noqa: E402
import flashmask.jax as fm  # noqa: E402
from flashmask import masks, scores  # noqa: E402

SLOPES = np.array([0.1, 0.2, 0.3, 0.4], np.float32)
POSITIONS = np.arange(N, dtype=np.float32)[None] // 2


def check_bits_of_torch(change, bias, dtype):
    """o, lse and gradients under change(array), which is differentiated by the array if that is `bias`."""
    mask, arrays = FAMILIES["causal_document"](), inputs(dtype=dtype)
    fourth = () if bias is None else (bias,)

    def call(q, k, v, bias=None):
        return fm.attention(q, k, v, mask, score=change(jnp.asarray, bias), return_lse=True)

    def of_torch(q, k, v, bias=None):
        return flashmask.attention(q, k, v, mask, score=change(as_torch, bias), return_lse=True)

    found = jax.jit(lambda *a: results(call, *a))(*arrays, *fourth)
    assert_same_bits(found, results_of_torch(of_torch, arrays, *fourth, name="bias"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "change",
    [
        lambda array, _: scores.softcap(2.0) | scores.multiply(3.0),
        lambda array, _: scores.softcap(2.0) | scores.alibi(array(SLOPES)),
        lambda array, _: scores.alibi(array(SLOPES), array(3 * POSITIONS), array(POSITIONS)),
    ],
    ids=["a cap and a factor", "slopes", "slopes and positions"],
)
def test_bits_are_those_of_torch(change, dtype):
    check_bits_of_torch(change, None, dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("change", "shape"),
    [
        (lambda _, bias: scores.softcap(2.0) | scores.bias(bias), (1, 4, N, N)),
        (lambda _, bias: scores.bias(bias), (2, 1, 1, N)),
        (lambda _, bias: scores.distance(bias, 3) | scores.multiply(2.0), (1, 4, 1, 33)),
    ],
    ids=["a bias", "a bias of keys", "a table"],
)
def test_bits_are_those_of_torch_with_the_gradient_of_a_bias(change, shape, dtype):
    check_bits_of_torch(change, bias_of(*shape), dtype)


def test_float64_is_the_formula_to_its_last_digits():
    jax.config.update("jax_enable_x64", True)
    try:
        arrays = inputs(batch=1, rows=9, columns=9, dim=8, value_dim=8, dtype=np.float64)
        bias = bias_of(1, 4, 9, 9).astype(np.float64)

        def call(q, k, v, bias):
            change = scores.softcap(2.0) | scores.bias(bias)
            return fm.attention(q, k, v, masks.causal(9, 9), score=change, return_lse=True)

        def formula(q, k, v, bias):
            return softmax_attention(q, k, v, torch.ones(1, 1, 9, 9, dtype=torch.bool).tril(), softcap=2.0, bias=bias)

        found = jax.jit(lambda *a: results(call, *a))(*arrays, bias)
        expected = results_of_torch(formula, arrays, bias, torch.float64, name="bias")
        for each, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(each, other, rtol=0, atol=2e-15 * max(1.0, other.abs().max().item()))
        # Where the bias has no gradient, the others are the same.
        assert_same_bits(results(lambda *a: call(*a, bias), *arrays), found[:5])
    finally:
        jax.config.update("jax_enable_x64", False)


def test_keywords_and_plans_say_the_same():
    arrays, mask = inputs(), masks.causal(N, N)
    expected = fm.attention(*arrays, mask, score=scores.softcap(2.0) | scores.alibi(SLOPES))
    assert_same_bits([fm.attention(*arrays, mask, softcap=2.0, alibi_slopes=SLOPES)], [expected])
    score = scores.softcap(2.0) | scores.alibi(SLOPES)
    plan = fm.plan(mask, *arrays, score=score)
    assert_same_bits([fm.attention(*arrays, plan=plan, score=score)], [expected])
    refused(ValueError, "plan was made for change = softcap(2.0) | alibi", lambda: fm.attention(*arrays, plan=plan))


def test_what_does_not_fit_is_refused_by_name():
    q, k, v = inputs()
    bias = jnp.asarray(bias_of())
    refused(ValueError, "bias has shape [1, 3, 70, 70]", lambda: fm.attention(q, k, v, bias=bias[:, :3]))
    refused(TypeError, "bias has dtype int32", lambda: fm.attention(q, k, v, bias=bias.astype(int)))
    refused(TypeError, "bias is Tensor", lambda: fm.attention(q, k, v, bias=torch.zeros(1, 1, 1, N)))
    refused(
        TypeError,
        "alibi_slopes has dtype bfloat16",
        lambda: fm.attention(q, k, v, alibi_slopes=bias[0, :, 0, 0].astype("bfloat16")),
    )
    refused(TypeError, "did you mean dropout?", lambda: fm.attention(q, k, v, dropuot=0.1))
    of_slopes = jax.grad(lambda slopes: fm.attention(q, k, v, alibi_slopes=slopes).sum())
    refused(
        NotImplementedError, "a gradient of alibi_slopes was asked for, and it has none", of_slopes, jnp.asarray(SLOPES)
    )


GATE, TABLE = np.linspace(0.5, 2.0, 4).astype(np.float32), np.random.default_rng(2).standard_normal((4, 60))
DOCUMENT = np.arange(N) // 20


def both(function):
    """The function of jax.numpy, and the same of torch."""
    return lambda *a: function(jnp, jnp.asarray, *a), lambda *a: function(torch, torch.as_tensor, *a)


FUNCTIONS = {
    "squares by head": lambda np, array, s, b, h, i, j: s * abs(s) * array(GATE)[h] + b,
    "a table": lambda np, array, s, b, h, i, j: s + 1.0 * array(TABLE)[h, abs(i - j) % 60],
    "by document": lambda np, array, s, b, h, i, j: (
        np.where(array(DOCUMENT)[i] == array(DOCUMENT)[j], s, s - 10.0) * (1 + 0.1 * np.cos(1.0 * (i - j)))
    ),
    "conditions": lambda np, array, s, b, h, i, j: (
        np.where((s > 0) & (i // 3 != j), np.tanh(s) ** 3, np.exp(-s) / (2 + i)) + np.sign(s) * np.floor(s)
    ),
    "an activation": lambda np, array, s, b, h, i, j: s * (jax.nn.sigmoid(s) if np is jnp else torch.sigmoid(s)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_compute_what_torch_computes(name):
    of_jax, of_torch = both(FUNCTIONS[name])
    mask, arrays = FAMILIES["causal_document"](), inputs()

    def call(q, k, v):
        return fm.attention(q, k, v, mask, score=of_jax, return_lse=True)

    def call_of_torch(q, k, v):
        return flashmask.attention(q, k, v, mask, score=of_torch, return_lse=True)

    found, expected = jax.jit(lambda *a: results(call, *a))(*arrays), results_of_torch(call_of_torch, arrays)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(np.asarray(a), b.numpy(), rtol=2e-4, atol=2e-4)


def test_text_and_captured_tracers_are_operands():
    q, k, v = inputs()
    text = scores.function("mul(score, at(0, h))", GATE)

    @jax.jit
    def scaled(q, k, v, gate):
        return fm.attention(q, k, v, score=lambda s, b, h, i, j: s * gate[h])

    expected = np.asarray(fm.attention(q, k, v, score=text))
    np.testing.assert_array_equal(np.asarray(scaled(q, k, v, GATE)), expected)
    mapped = jax.vmap(lambda q: fm.attention(q[None], k[:1], v[:1], score=text)[0])(jnp.stack([q[0], q[1]]))
    np.testing.assert_array_equal(np.asarray(mapped[0]), expected[0])


def test_functions_in_float64_are_the_reference():
    jax.config.update("jax_enable_x64", True)
    try:
        arrays = inputs(batch=1, rows=9, columns=9, dim=8, value_dim=8, dtype=np.float64)
        of_jax, of_torch = both(FUNCTIONS["squares by head"])
        found = jax.jit(lambda *a: results(lambda q, k, v: fm.attention(q, k, v, score=of_jax, return_lse=True), *a))(
            *arrays
        )
        expected = results_of_torch(
            lambda q, k, v: flashmask.attention(q, k, v, score=of_torch, return_lse=True), arrays, dtype=torch.float64
        )
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(np.asarray(a), b.numpy(), rtol=1e-12, atol=1e-12)
    finally:
        jax.config.update("jax_enable_x64", False)


def test_functions_refuse_what_they_cannot_have():
    q, k, v = inputs()
    by_batch, gate = scores.function("mul(score, add(b, 1))"), jnp.asarray(GATE)
    refused(
        NotImplementedError,
        "where a function of scores reads b",
        jax.vmap(lambda q: fm.attention(q[None], k[:1], v[:1], score=by_batch)),
        q,
    )
    refused(
        NotImplementedError,
        "a gradient of operand0 of a function of scores was asked for",
        jax.grad(lambda gate: fm.attention(q, k, v, score=lambda s, b, h, i, j: s * gate[h]).sum()),
        gate,
    )
    refused(
        NotImplementedError,
        "score computes broadcast_in_dim() (",
        lambda: fm.attention(q, k, v, score=lambda s, *_: jnp.sort(s[None])[0]),
    )
    whole = scores.function("mul(score, at(0, h))", GATE.astype("int32"))
    refused(TypeError, "operand 0 has dtype int32", lambda: fm.attention(q, k, v, score=whole))
