# SPDX-License-Identifier: Apache-2.0
"""flashmask.jax on a CPU: the bits of PyTorch's calls under every family of masks, and the formula.

scripts/test jax runs this with the newest JAX that is supported.
"""

import ctypes
import runpy
from functools import partial
from pathlib import Path

import pytest

jax = pytest.importorskip("jax", reason="scripts/test jax runs this where JAX is")
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from attention_oracle import softmax_attention  # noqa: E402
from jax_cases import N, assert_close, assert_same_bits, inputs, refused, results, results_under, sinks_of, weights  # noqa: E402
from mask_families import FAMILIES  # noqa: E402
from torch_cases import as_torch, operand, our_torch, results_of_torch  # noqa: E402

import flashmask  # noqa: E402
import flashmask.jax as fm  # noqa: E402
from flashmask import masks  # noqa: E402
from flashmask._abi.library import call as call_library  # noqa: E402
from flashmask._abi.problem import make_problem  # noqa: E402

EXAMPLE = Path(__file__).parents[3] / "examples/train_packed_jax.py"


# ---- results ----


@pytest.mark.parametrize("name", FAMILIES)
def test_bits_are_those_of_torch_under_every_mask(name):
    mask = FAMILIES[name]()
    arrays = inputs(rows=mask.shape.rows, columns=mask.shape.columns)
    assert_same_bits(results_under(operand(mask), arrays), results_of_torch(our_torch(mask), arrays))


@pytest.mark.parametrize(("dtype", "layout"), [("float32", "bhsd"), ("bfloat16", "bshd"), ("float16", "bhsd")])
def test_bits_are_those_of_torch_in_every_dtype_and_layout_with_sinks(dtype, layout):
    mask, options = FAMILIES["causal_document"](), {"layout": layout, "scale": 0.3}
    arrays = inputs(dtype=dtype)
    if layout == "bhsd":
        arrays = tuple(array.swapaxes(1, 2) for array in arrays)
    found = results_under(operand(mask), arrays, sinks_of(), **options)
    assert [each.dtype for each in found] == [dtype, jnp.float32, dtype, dtype, dtype, jnp.float32]
    assert_same_bits(found, results_of_torch(our_torch(mask, **options), arrays, sinks_of()))


@pytest.mark.parametrize(("heads", "kv_heads", "batch"), [(2, 2, 1), (1, 1, 2), (4, 1, 2), (0, 0, 2), (2, 1, 0)])
def test_bits_are_those_of_torch_for_any_number_of_heads(heads, kv_heads, batch):
    mask, arrays = FAMILIES["causal"](), inputs(batch=batch, heads=heads, kv_heads=kv_heads)
    assert_same_bits(results_under(operand(mask), arrays), results_of_torch(our_torch(mask), arrays))


def test_results_are_those_of_the_formula():
    mask, arrays = FAMILIES["causal_document"](), inputs()
    formula = partial(softmax_attention, visible=torch.from_numpy(mask.to_dense()))
    expected = results_of_torch(formula, arrays, sinks_of(), torch.float64)
    # A row that sees its sink alone passes no gradient on.
    assert_close(results_under(operand(mask), arrays, sinks_of()), expected)


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_float64_is_the_formula_to_its_last_digits(layout):
    jax.config.update("jax_enable_x64", True)
    try:
        arrays = inputs(batch=1, rows=9, columns=9, dim=8, value_dim=8, dtype=np.float64)

        def call(*every):
            *turned, s = (x.swapaxes(1, 2) if x.ndim == 4 and layout == "bhsd" else x for x in every)
            o, lse = fm.attention(*turned, masks.causal(9, 9), sinks=s, layout=layout, return_lse=True)
            return (o.swapaxes(1, 2) if layout == "bhsd" else o), lse

        found = jax.jit(lambda *a: results(call, *a))(*arrays, sinks_of())
        assert [str(each.dtype) for each in found] == ["float64"] * 5 + ["float32"]
        formula = partial(softmax_attention, visible=torch.ones(1, 1, 9, 9, dtype=torch.bool).tril())
        expected = results_of_torch(formula, arrays, sinks_of(), torch.float64)
        for each, other in zip(found[:5], expected[:5], strict=True):
            np.testing.assert_allclose(each, other, rtol=0, atol=2e-15 * max(1.0, other.abs().max().item()))
        np.testing.assert_allclose(found[5], expected[5], rtol=1e-6)
    finally:
        jax.config.update("jax_enable_x64", False)


@pytest.mark.parametrize("name", ["causal_document", "graph"])
def test_what_is_said_of_one_mask_in_every_way_has_the_same_bits(name):
    mask, arrays = FAMILIES[name](), inputs()
    expected = results_under(operand(mask), arrays)
    visible = mask.to_dense()
    for given in (mask, visible, visible[0, 0].tolist()):  # constants
        found = jax.jit(lambda *a, m=given: results(lambda *b: fm.attention(*b, m, return_lse=True), *a))(*arrays)
        assert_same_bits(found, expected)
    for given in (jnp.asarray(visible), jnp.asarray(visible[0, 0])):
        assert_same_bits(results_under(given, arrays), expected)


def test_masks_may_differ_per_batch_entry_and_head():
    arrays, rows = inputs(), FAMILIES["causal_document"]().to_startend_row_indices()[0]
    expected = results_under(fm.RowIndices(jnp.asarray(rows), True), arrays)
    for heads in (1, 2, 4):
        each = jnp.broadcast_to(rows, (2, heads, *rows.shape[2:]))
        assert_same_bits(results_under(fm.RowIndices(each, True), arrays), expected)


def test_head_dims_are_padded_right_for_gpus():
    from flashmask.jax._foreign import _foreign, _padded
    from flashmask.jax._site import Options, Site

    arrays = inputs(dim=13, value_dim=15)
    forward = Site(Options(), False, ("q", "k", "v"))
    o, lse = _foreign(forward, *arrays)
    assert_close(_padded(forward, *arrays), (o, lse))
    backward = Site(Options(), True, ("q", "k", "v", "o", "lse", "grad_o", "grad_lse"))
    saved = (*arrays, o, lse, weights(o.shape, o.dtype), weights(lse.shape, lse.dtype))
    assert_close(_padded(backward, *saved), _foreign(backward, *saved))


def test_dropout_is_that_of_the_seed_that_a_key_says():
    (q, k, v), key = inputs(), jax.random.key(7)
    computed = jax.jit(lambda key: fm.attention(q, k, v, masks.causal(N, N), dropout=0.25, key=key))
    o = computed(key)
    assert_same_bits([computed(key), computed(jax.random.key_data(key))], [o, o])
    assert not np.array_equal(o, computed(jax.random.key(8)))

    low, high = (int(word) for word in jax.random.key_data(key))
    problem = make_problem([q.shape, k.shape, v.shape], "float32", None, 0.25)
    kept = np.empty((2, 4, N, N), np.uint8)
    address = kept.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
    call_library("dropout_expand", ctypes.byref(problem.struct()), low | high << 32, 0, address, kept.size)
    expected, _ = softmax_attention(
        *map(as_torch, (q, k, v)),
        visible=torch.ones(1, 1, N, N, dtype=torch.bool).tril(),
        kept=torch.from_numpy(kept),
        keep_scale=1 / 0.75,
    )
    assert_close(o, expected.numpy())


def test_gradients_under_dropout_are_those_of_what_was_kept():
    q, k, v = inputs()
    key = jax.random.key(3)

    def loss(v):
        return (fm.attention(q, k, v, masks.causal(N, N), dropout=0.5, key=key) * jnp.cos(q[..., :1])).sum()

    # The loss is linear in v, so its gradient gives the loss itself.
    np.testing.assert_allclose(jnp.vdot(jax.grad(loss)(v), v), loss(v), rtol=1e-4)


# ---- builders ----

LENGTHS = [5, 0, 9, 4]
PACKED = {
    "cu_seqlens": np.cumsum([0, *LENGTHS]),
    "segment_ids": np.array([0] * 5 + [1] * 9 + [0] * 4 + [-1] * 3),
    "position_ids": np.concatenate([np.arange(5), np.arange(9), np.arange(4), np.arange(3)]),
}
OPTIONS = [{}, {"window": 7}, {"causal": False}, {"causal": False, "window": 5}, {"prefix": 4}]
OPTIONS += [{"window": 2**31 - 1}, {"causal": False, "window": 2**31}, {"prefix": 2**31 - 1}, {"prefix": 2**40}]


@pytest.mark.parametrize("name", PACKED)
def test_builders_are_those_of_torch(name):
    given, tokens = PACKED[name], (21,) if name == "cu_seqlens" else ()
    ours, theirs = getattr(fm, f"from_{name}"), getattr(masks, f"from_{name}".replace("segment", "document"))
    prefix = np.array([2, 9, 9, 1]) if name == "cu_seqlens" else np.array([2, 9, 1, 3])  # one per document

    def built(given, prefix):
        every = [ours(given, *tokens, **options) for options in OPTIONS]
        return [*every, ours(given, *tokens, prefix=prefix)]

    found = jax.jit(built)(given, prefix)
    expected = [theirs(torch.from_numpy(given), *tokens, **options) for options in OPTIONS]
    expected.append(theirs(torch.from_numpy(given), *tokens, prefix=torch.from_numpy(prefix)))
    for each, other in zip(found, expected, strict=True):
        assert each.causal == other.causal
        np.testing.assert_array_equal(each.startend_row_indices, other.startend_row_indices)
    if not tokens:
        pairs = jax.jit(built)(np.stack([given, given]), np.stack([prefix, prefix]))
        for each, other in zip(pairs, expected, strict=True):
            for entry in (0, 1):
                np.testing.assert_array_equal(each.startend_row_indices[entry], other.startend_row_indices[0])


def test_builders_take_integers_of_any_width():
    tokens = 300
    ends = np.array([0, 100, 255])
    expected = masks.from_cu_seqlens(torch.from_numpy(ends), tokens, window=9).startend_row_indices
    positions = np.append(np.arange(256), np.arange(44)).astype(np.uint8)
    restarts = masks.causal_document([256, 44]).to_startend_row_indices()[0]
    for dtype in (np.uint8, np.int16, np.uint32):
        found = fm.from_cu_seqlens(jnp.asarray(ends.astype(dtype)), tokens, window=9)
        np.testing.assert_array_equal(found.startend_row_indices, expected)
        unlimited = fm.from_cu_seqlens(ends, tokens, prefix=np.full(2, np.iinfo(dtype).max, dtype))
        whole = fm.from_cu_seqlens(ends, tokens, causal=False)
        np.testing.assert_array_equal(
            unlimited.startend_row_indices[:, :, :255], whole.startend_row_indices[:, :, :255]
        )
    np.testing.assert_array_equal(fm.from_position_ids(positions).startend_row_indices, restarts)
    refused(
        ValueError,
        "segment_ids holds 4294967297, which JAX cuts to int32",
        fm.from_segment_ids,
        np.array([1, 2**32 + 1]),
    )


def test_row_indices_of_torch_are_refused():
    theirs = flashmask.RowIndices(torch.zeros(1, 1, N, 1, dtype=torch.int32), True)
    with pytest.raises(TypeError, match=r"mask is a flashmask\.RowIndices, which holds a torch tensor"):
        fm.attention(*inputs(), theirs)


def test_the_example_trains_to_the_losses_of_padded_documents(capsys):
    assert runpy.run_path(str(EXAMPLE), run_name="example")["main"]() == 0
    losses = [float(line.split()[3]) for line in capsys.readouterr().out.splitlines()[:-1]]
    assert len(losses) == 20
    assert losses[-1] < losses[0] - 0.5
