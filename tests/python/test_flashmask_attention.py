# SPDX-License-Identifier: Apache-2.0
"""flashmask_attention(): what existing callers rely on."""

import inspect

import pytest
import torch
from attention_oracle import assert_within_bound, random_inputs, softmax_attention, value_and_gradients

import flashmask
from flashmask import masks
from flashmask._torch.plans.mask_source import BLOCK

pytestmark = pytest.mark.kernels

ROWS, COLUMNS = 37, 53


def visible_of(values, causal, rows):
    """Booleans [batch, heads, rows, columns] by the definition of the row indices."""
    i = torch.arange(rows)[:, None]
    columns = values.shape[2]
    seen = torch.ones(*values.shape[:2], rows, columns, dtype=torch.bool)
    vectors = [values[..., n][:, :, None, :] for n in range(values.shape[3])]
    if causal:
        seen &= torch.arange(columns)[None] <= i + columns - rows
        lower = (vectors[0], vectors[1] if len(vectors) == 2 else rows)
        return seen & ~((i >= lower[0]) & (i < lower[1]))
    if len(vectors) == 2:
        return seen & ~(i >= vectors[0]) & ~(i < vectors[1])
    return seen & ~((i >= vectors[0]) & (i < vectors[1])) & ~((i >= vectors[2]) & (i < vectors[3]))


def check(rows, columns, seen, dtype=torch.float32, **arguments):
    q, k, v, grad_o, grad_lse = random_inputs(2, rows, columns, 4, 2, 16, 16)
    inputs = [t.to(dtype) for t in (q, k, v)]

    def formula(*t):
        return softmax_attention(*t, seen)

    def ours(*t):
        return flashmask.flashmask_attention(*t, return_softmax_lse=True, **arguments)

    run = [(formula, torch.float64), (formula, dtype), (ours, dtype)]
    results = [value_and_gradients(f, inputs, grad_o.to(dtype), grad_lse, kind) for f, kind in run]
    assert_within_bound(results[2], results[0], results[1], dtype)


def test_has_the_signature_of_the_papers_function():
    parameters = inspect.signature(flashmask.flashmask_attention).parameters
    assert list(parameters) == [
        "query",
        "key",
        "value",
        "startend_row_indices",
        "dropout",
        "causal",
        "window_size",
        "return_softmax_lse",
        "return_seed_offset",
        "fixed_seed_offset",
        "rng_name",
        "training",
        "name",
        "softmax_scale",
        "block_mask",
        "deterministic",  # which that function does not have, as the options
        "options",
    ]
    defaults = [p.default for p in parameters.values()][3:-1]
    assert defaults == [None, 0.0, False, None, False, False, None, "", True, None, None, None, False]
    assert [p.kind for p in parameters.values()][4:-1] == [inspect.Parameter.KEYWORD_ONLY] * 12


@pytest.mark.parametrize("heads", [1, 2, 4])
@pytest.mark.parametrize(("causal", "n"), [(True, 1), (True, 2), (False, 2), (False, 4)])
def test_reads_row_indices(causal, n, heads):
    generator = torch.Generator().manual_seed(n + heads)
    # Beyond [0, rows], misordered and overlapping: all of that is legal.
    values = torch.randint(-5, ROWS + 6, (2, heads, COLUMNS, n), generator=generator, dtype=torch.int32)
    seen = visible_of(values, causal, ROWS)
    check(ROWS, COLUMNS, seen, startend_row_indices=values, causal=causal)
    check(ROWS, COLUMNS, visible_of(values[:1], causal, ROWS), startend_row_indices=values[:1], causal=causal)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_reads_row_indices_in_half_precision(dtype):
    values = torch.tensor([20] * 20 + [53] * 33, dtype=torch.int32)[None, None, :, None]
    check(COLUMNS, COLUMNS, visible_of(values, True, COLUMNS), dtype, startend_row_indices=values, causal=True)


@pytest.mark.parametrize(("rows", "columns"), [(ROWS, COLUMNS), (COLUMNS, ROWS)])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [None, -1, 0, 4, (3, 6), (6, 0), (-1, 5), (5, None), (100, 100)])
def test_windows_are_aligned_bottom_right(window, causal, rows, columns):
    left, right = window if isinstance(window, tuple) else (window, window)
    own = torch.arange(rows)[:, None] + columns - rows
    j = torch.arange(columns)[None]
    seen = torch.ones(rows, columns, dtype=torch.bool)
    if left is not None and left >= 0:
        seen &= j >= own - left
    if right is not None and right >= 0 and not causal:
        seen &= j <= own + right
    if causal:
        seen &= j <= own
    check(rows, columns, seen[None, None], window_size=window, causal=causal)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("heads", [1, 2, 4])
def test_block_masks_leave_blocks_out(causal, heads):
    rows, columns = 200, 300
    blocks = torch.randint(0, 2, (2, heads, 2, 3), dtype=torch.int32, generator=torch.Generator().manual_seed(heads))
    values = torch.full((1, 1, columns, 1 if causal else 2), 150, dtype=torch.int32)
    values[..., 1:] = 10
    kept = blocks.bool().repeat_interleave(BLOCK, 2).repeat_interleave(BLOCK, 3)[:, :, :rows, :columns]
    i, j = torch.arange(rows)[:, None], torch.arange(columns)[None]
    alone = kept & (j <= i + columns - rows) if causal else kept
    check(rows, columns, alone, block_mask=blocks, causal=causal)
    seen = kept & visible_of(values, causal, rows)
    check(rows, columns, seen, block_mask=blocks, startend_row_indices=values, causal=causal)


def tensors(tokens=48):
    return random_inputs(2, tokens, tokens, 4, 2, 16, 16)[:3]


def test_returns_what_was_asked_for_in_order():
    q, k, v = tensors()
    o = flashmask.flashmask_attention(q, k, v)
    assert isinstance(o, torch.Tensor)
    expected, lse = flashmask.attention(q, k, v, return_lse=True)
    assert torch.equal(o, expected)
    pair = flashmask.flashmask_attention(q, k, v, return_softmax_lse=True)
    assert torch.equal(pair[1], lse)
    assert len(pair) == 2
    o, seed = flashmask.flashmask_attention(q, k, v, return_seed_offset=True)
    assert seed.dtype == torch.int64
    assert seed.tolist() == [0, 0]
    three = flashmask.flashmask_attention(q, k, v, return_softmax_lse=True, return_seed_offset=True, dropout=0.5)
    assert [t.shape for t in three] == [o.shape, lse.shape, (2,)]


def kept_of(seed_offset, p, shape):
    """Which probabilities the library says survive."""
    import ctypes

    import numpy as np

    from flashmask._abi import structs as s
    from flashmask._abi.library import call

    batch, heads, rows, columns = shape
    problem = s.Problem(batch, rows, columns, heads, heads, 8, 8, 0, 0, 0, 0.0, p)
    kept = np.empty(shape, np.uint8)
    seed, offset = seed_offset.tolist()
    call(
        "dropout_expand",
        ctypes.byref(problem),
        seed,
        offset,
        kept.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8)),
        kept.size,
    )
    return torch.from_numpy(kept)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_drops_what_its_seed_says_forward_and_backward(dtype):
    p = 0.25
    q, k, v, grad_o, _ = random_inputs(2, 48, 48, 4, 2, 16, 16)
    leaves = [t.to(dtype).requires_grad_() for t in (q, k, v)]
    o, seed = flashmask.flashmask_attention(*leaves, causal=True, dropout=p, return_seed_offset=True)
    found = torch.autograd.grad(o, leaves, grad_o.to(dtype))
    kept = kept_of(seed, p, (2, 4, 48, 48))
    assert abs(kept.float().mean() - 0.75) < 0.02
    seen = torch.ones(48, 48, dtype=torch.bool).tril()[None, None]
    exact = [t.detach().double().requires_grad_() for t in leaves]
    expected, _ = softmax_attention(*exact, seen, kept=kept, keep_scale=1 / 0.75)
    torch.testing.assert_close(o.double(), expected, atol=1e-5, rtol=1e-4)
    for a, b in zip(found, torch.autograd.grad(expected, exact, grad_o.double()), strict=True):
        torch.testing.assert_close(a.double(), b, atol=1e-4, rtol=1e-4)


def test_dropout_is_seeded_from_torchs_generator():
    q, k, v = tensors()

    def attend(**arguments):
        return flashmask.flashmask_attention(q, k, v, dropout=0.5, return_seed_offset=True, **arguments)

    torch.manual_seed(5)
    (first, seed), (second, other) = attend(), attend()
    assert not torch.equal(seed, other)
    assert not torch.equal(first, second)
    torch.manual_seed(5)
    assert torch.equal(attend()[0], first)
    again, told = attend(fixed_seed_offset=other)
    assert torch.equal(again, second)
    assert torch.equal(told, other)
    assert torch.equal(attend(fixed_seed_offset=other.tolist())[0], second)
    before = torch.get_rng_state()
    plain, _ = attend(training=False)
    assert torch.equal(plain, flashmask.attention(q, k, v))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"startend_row_indices": torch.zeros(2, 1, 48, 1)}, TypeError, "startend_row_indices holds torch.float32"),
        ({"startend_row_indices": torch.zeros(48, 1, dtype=torch.int32)}, ValueError, r"has shape \[48, 1\]"),
        ({"startend_row_indices": torch.zeros(2, 1, 48, 4, dtype=torch.int32)}, ValueError, "with causal=True n is 1"),
        ({"startend_row_indices": torch.zeros(2, 1, 40, 1, dtype=torch.int32)}, ValueError, "has 40 columns; expected"),
        ({"startend_row_indices": torch.zeros(2, 3, 48, 1, dtype=torch.int32)}, ValueError, "startend_.*has 3 heads"),
        ({"startend_row_indices": torch.zeros(3, 1, 48, 1, dtype=torch.int32)}, ValueError, "has a batch of 3; expe"),
        ({"causal": 1}, TypeError, "causal is int 1"),
        ({"window_size": (1, 2, 3)}, ValueError, "window_size has 3 values"),
        ({"window_size": -2}, ValueError, r"window_size\[0\] is -2; expected at least -1"),
        ({"window_size": 1.5}, TypeError, r"window_size\[0\] is float 1.5"),
        ({"dropout": 1.0}, ValueError, "dropout is 1.0; expected a probability"),
        ({"dropout": -0.1}, ValueError, "dropout is -0.1"),
        ({"softmax_scale": 0}, ValueError, "softmax_scale is 0"),
        ({"fixed_seed_offset": torch.zeros(3)}, ValueError, r"fixed_seed_offset is torch.float32 \[3\]"),
        ({"fixed_seed_offset": 4}, TypeError, "fixed_seed_offset is int 4"),
        ({"block_mask": torch.zeros(2, 1, 1, 1)}, TypeError, "block_mask holds torch.float32"),
        (
            {"block_mask": torch.zeros(2, 1, 1, 2, dtype=torch.int32)},
            ValueError,
            r"block_mask has shape \[2, 1, 1, 2\]",
        ),
        ({"query": torch.zeros(2, 48, 3, 16)}, ValueError, "query has 3 heads; expected a multiple of those of key, 2"),
        ({"key": torch.zeros(2, 48, 2, 8)}, ValueError, "key has a head dim of 8; expected 16, that of query"),
        ({"value": torch.zeros(2, 48, 2, 16).half()}, TypeError, "query, key and value have dtypes"),
        ({"query": [1]}, TypeError, "query is list"),
    ],
)
def test_refuses_bad_arguments(arguments, error, message):
    q, k, v = tensors()
    with pytest.raises(error, match=message):
        flashmask.flashmask_attention(**{"query": q, "key": k, "value": v, "causal": True, **arguments})


def test_a_window_excludes_row_indices():
    values = torch.zeros(2, 1, 48, 1, dtype=torch.int32)
    with pytest.raises(ValueError, match="startend_row_indices and window_size are both given"):
        flashmask.flashmask_attention(*tensors(), values, causal=True, window_size=3)


def test_agrees_with_masks():
    q, k, v = tensors()
    mask = masks.causal_document([30, 18])
    values, causal = mask.to_startend_row_indices()
    found = flashmask.flashmask_attention(q, k, v, torch.from_numpy(values), causal=causal)
    assert torch.equal(found, flashmask.attention(q, k, v, mask))
