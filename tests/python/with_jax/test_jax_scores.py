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
