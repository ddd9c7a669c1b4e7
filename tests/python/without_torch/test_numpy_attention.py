# SPDX-License-Identifier: Apache-2.0
"""attention() of NumPy arrays and others that say DLPack."""

import pickle

import numpy as np
import pytest

import flashmask
from flashmask import masks

pytestmark = pytest.mark.kernels

TOKENS = 60


def arrays(dtype=np.float32, rows=TOKENS, columns=TOKENS):
    random = np.random.default_rng(0)
    shapes = ((2, rows, 4, 16), (2, columns, 2, 16), (2, columns, 2, 8))
    return [random.standard_normal(shape).astype(dtype) for shape in shapes]


def softmax_attention(q, k, v, visible):
    q, k, v = (t.astype(np.float64) for t in (q, k, v))
    k, v = (np.repeat(t, 2, axis=2) for t in (k, v))
    scores = np.einsum("bihd,bjhd->bhij", q, k) / np.sqrt(q.shape[3])
    weights = np.exp(scores) * visible
    total = weights.sum(axis=-1)
    with np.errstate(divide="ignore"):
        lse = np.log(total)
    weights /= np.where(total > 0, total, 1)[..., None]
    return np.einsum("bhij,bjhd->bihd", weights, v), lse


class Foreign:
    """Another library's array: it says DLPack and nothing else."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **arguments):
        return self.array.__dlpack__(**arguments)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-5), (np.float16, 3e-3), (np.float64, 1e-12)])
@pytest.mark.parametrize("form", ["intervals", "bits"])
def test_agrees_with_a_softmax(dtype, tolerance, form):
    q, k, v = arrays(dtype)
    visible = np.random.default_rng(1).random((4, TOKENS, TOKENS)) < 0.4
    visible[:, 5] = False
    mask = masks.causal_document([40, 15], TOKENS) if form == "intervals" else masks.from_dense(visible)
    o, lse = flashmask.attention(q, k, v, mask, return_lse=True)
    expected, expected_lse = softmax_attention(q, k, v, mask.to_dense())
    assert type(o) is np.ndarray
    assert o.dtype == dtype
    assert lse.dtype == (np.float64 if dtype == np.float64 else np.float32)
    np.testing.assert_allclose(o, expected, atol=tolerance, rtol=tolerance)
    np.testing.assert_allclose(lse, expected_lse, atol=max(tolerance, 1e-6), rtol=tolerance)
    assert (o[:, 58] == 0).all() == (form == "intervals")


def test_takes_brain_floats():
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes, which gives NumPy bfloat16, is not installed")
    q, k, v = arrays(ml_dtypes.bfloat16)
    o = flashmask.attention(q, k, v)
    assert o.dtype == ml_dtypes.bfloat16
    np.testing.assert_allclose(o.astype(float), softmax_attention(q, k, v, True)[0], atol=2e-2)


def test_takes_layouts_plans_booleans_and_any_strides():
    q, k, v = arrays()
    mask = masks.causal(TOKENS, TOKENS)
    expected = flashmask.attention(q, k, v, mask)
    swapped = [t.swapaxes(1, 2) for t in (q, k, v)]
    np.testing.assert_array_equal(flashmask.attention(*swapped, mask, layout="bhsd").swapaxes(1, 2), expected)
    plan = flashmask.plan(mask, q, k, v)
    np.testing.assert_array_equal(flashmask.attention(q, k, v, plan=plan), expected)
    again = pickle.loads(pickle.dumps(plan))
    np.testing.assert_array_equal(flashmask.attention(q, k, v, plan=again), expected)
    np.testing.assert_array_equal(flashmask.attention(q, k, v, np.tri(TOKENS, dtype=bool)), expected)
    scattered = [np.asfortranarray(q), k[:, ::-1].copy()[:, ::-1], np.repeat(v, 2, axis=3)[..., ::2]]
    np.testing.assert_array_equal(flashmask.attention(*scattered, mask), expected)
    np.testing.assert_array_equal(
        flashmask.attention(q[:, ::-1], k, v), flashmask.attention(np.ascontiguousarray(q[:, ::-1]), k, v)
    )


def test_takes_arrays_of_other_libraries():
    q, k, v = arrays()
    np.testing.assert_array_equal(flashmask.attention(*(Foreign(t) for t in (q, k, v))), flashmask.attention(q, k, v))


def test_takes_sizes_of_zero():
    q, k, v = arrays(columns=0)
    o, lse = flashmask.attention(q, k, v, return_lse=True)
    assert (o == 0).all()
    assert np.isneginf(lse).all()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"q": [1.0]}, TypeError, "q is list"),
        ({"q": np.zeros((2, 60, 4, 16), np.int32)}, TypeError, "q has dtype int32; expected float32"),
        ({"q": np.zeros((2, 60, 4, 16), ">f4")}, TypeError, "q has dtype >f4"),
        ({"k": np.zeros((2, 60, 2, 16))}, TypeError, "dtypes float32, float64, float32; expected one dtype"),
        ({"k": np.zeros((2, 60, 16), np.float32)}, ValueError, r"k has shape \[2, 60, 16\]"),
        ({"mask": masks.causal(9, 60)}, ValueError, "mask has 9 rows; expected 60"),
        ({"layout": "bhsd"}, ValueError, "q has 60 heads; expected a multiple of those of k"),
    ],
)
def test_refuses_bad_arguments(change, error, message):
    q, k, v = arrays()
    if "layout" in change:
        k, v = (np.zeros((2, 7, 4, 16), np.float32) for _ in range(2))
    with pytest.raises(error, match=message):
        flashmask.attention(**{"q": q, "k": k, "v": v, **change})
