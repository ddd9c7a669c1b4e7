# SPDX-License-Identifier: Apache-2.0
"""Masks from booleans, bits, predicates, pairs, compressed rows and row indices."""

import numpy as np
import pytest
import scipy.sparse
import torch
from visibility import check, grid

from flashmask import masks


def random_scores(*shape, density=0.3, seed=0):
    return np.random.default_rng(seed).random(shape) < density


SHAPES = [(1, 1), (10, 7), (65, 130), (3, 65, 64), (2, 3, 10, 70), (0, 5), (5, 0)]


@pytest.mark.parametrize("shape", SHAPES)
def test_dense_scores_come_back(shape):
    visible = random_scores(*shape)
    check(masks.from_dense(visible), visible)
    check(masks.from_dense(torch.from_numpy(visible)), visible)
    check(masks.from_packed(np.packbits(visible, axis=-1, bitorder="little"), shape[-1]), visible)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "int64", ">i4"])
def test_dense_integers_are_zero_or_one(dtype):
    visible = random_scores(2, 1, 33, 70)
    check(masks.from_dense(visible.astype(dtype)), visible)
    two = visible.astype(dtype)
    two[1, 0, 4, 5] = 2
    with pytest.raises(ValueError, match=r"batch 1, head 0, row 4, column 5 is 2"):
        masks.from_dense(two)


def test_dense_scores_have_any_strides():
    visible = random_scores(2, 3, 40, 70)
    for view in (
        visible.transpose(1, 0, 3, 2),
        visible[:, ::2, ::-1, 1::3],
        np.broadcast_to(visible[:, :1], (2, 5, 40, 70)),
    ):
        check(masks.from_dense(view), view)
    check(masks.from_dense(torch.from_numpy(visible).permute(0, 1, 3, 2)), visible.swapaxes(2, 3))
    check(masks.from_dense([[True, False], [1, 1]]), [[1, 0], [1, 1]])


def test_dense_scores_that_fit_become_intervals():
    i, j = grid(130, 130)
    mask = masks.from_dense(j <= i)
    assert mask.form == "intervals"
    assert mask == masks.causal(130, 130)
    assert masks.from_dense(random_scores(130, 130)).form == "bits"


@pytest.mark.parametrize(("rows", "columns"), [(10, 10), (65, 130), (0, 4), (4, 0)])
def test_pairs_and_compressed_rows(rows, columns):
    visible = random_scores(rows, columns)
    pairs = np.argwhere(visible)
    pairs = np.concatenate([pairs, pairs[:3]])[::-1]
    check(masks.from_pairs(rows, columns, pairs), visible)
    check(masks.from_pairs(rows, columns, torch.from_numpy(pairs.copy())), visible)
    check(masks.from_pairs(rows, columns, [tuple(map(int, pair)) for pair in pairs]), visible)
    for matrix in (scipy.sparse.csr_matrix(visible), scipy.sparse.csr_array(visible)):
        check(masks.from_csr(matrix), visible)


def test_other_sparse_formats_are_refused():
    matrix = scipy.sparse.csc_matrix(random_scores(4, 4))
    with pytest.raises(TypeError, match="'csc'; expected csr"):
        masks.from_csr(matrix)


def masked_rows(values, causal, rows):
    """Booleans of row indices, by the definition: a loop over heads and columns."""
    batch, heads, columns, n = values.shape
    r, j = grid(rows, columns)
    visible = np.ones((batch, heads, rows, columns), bool)
    for b in range(batch):
        for h in range(heads):
            v = values[b, h].T
            if causal:
                end = rows if n == 1 else v[1]
                masked = ((r >= v[0]) & (r < end)) | (j > r + columns - rows)
            elif n == 2:
                masked = (r >= v[0]) | (r < v[1])
            else:
                masked = ((r >= v[0]) & (r < v[1])) | ((r >= v[2]) & (r < v[3]))
            visible[b, h] = ~masked
    return visible


@pytest.mark.parametrize(("causal", "n"), [(True, 1), (True, 2), (False, 2), (False, 4)])
@pytest.mark.parametrize(("rows", "columns"), [(9, 9), (5, 70), (70, 5), (1, 3)])
def test_row_indices_mean_what_the_table_says(causal, n, rows, columns):
    values = np.random.default_rng(n).integers(-3, rows + 4, (2, 3, columns, n), dtype=np.int32)
    expected = masked_rows(values, causal, rows)
    mask = masks.from_startend_row_indices(values, causal=causal, rows=rows)
    check(mask, expected)
    check(masks.from_startend_row_indices(torch.from_numpy(values), causal=causal, rows=rows), expected)
    check(masks.from_startend_row_indices(values.tolist(), causal=causal, rows=rows), expected)
    if mask.form == "intervals":
        again, flag = mask.to_startend_row_indices()
        assert again.dtype == np.int32
        assert again.shape[:3] == (2, 3, columns)
        check(masks.from_startend_row_indices(again, causal=flag, rows=rows), expected)


@pytest.mark.parametrize(
    ("mask", "n", "causal"),
    [
        (masks.causal_document([4, 3, 3]), 1, True),
        (masks.qk_sparse_segments(10, [(2, 5)]), 2, True),
        (masks.document([4, 3, 3]), 2, False),
        (masks.global_sliding_window(10, 2, 1, 1), 4, False),
    ],
)
def test_row_indices_are_as_short_as_can_be(mask, n, causal):
    values, flag = mask.to_startend_row_indices()
    assert (values.shape, flag) == ((1, 1, 10, n), causal)
    assert masks.from_startend_row_indices(values, causal=flag) == mask


def test_row_indices_of_the_published_examples():
    values, causal = masks.causal_document([4, 3, 3]).to_startend_row_indices()
    assert causal
    assert values.ravel().tolist() == [4, 4, 4, 4, 7, 7, 7, 10, 10, 10]
    values, causal = masks.sliding_window(10, 10, 3).to_startend_row_indices()
    assert causal
    assert values.ravel().tolist() == [3, 4, 5, 6, 7, 8, 9, 10, 10, 10]


def test_row_indices_cannot_say_everything():
    with pytest.raises(NotImplementedError, match="column 0"):
        masks.dilated_window(9, 9, 2, 1, 2).to_startend_row_indices()
