# SPDX-License-Identifier: Apache-2.0
"""Masks need NumPy only."""

import pickle

import numpy as np
import pytest

import flashmask
from flashmask import masks


def test_masks_are_built_explained_and_pickled() -> None:
    mask = masks.causal_document([4, 3, 3], 10)
    i, j = np.arange(10)[:, None], np.arange(10)
    of = np.repeat([0, 1, 2], [4, 3, 3])
    np.testing.assert_array_equal(mask.to_dense()[0, 0], (j <= i) & (of[i] == of[j]))
    assert mask.explain().visible_pairs == 22
    assert str(mask).count("\n") == 10
    assert pickle.loads(pickle.dumps(mask)) == mask
    assert masks.from_dense(mask.to_dense()) == mask
    assert (mask & flashmask.block_maps.sliding((10, 10), 16, 0, 0)) == mask
    values, causal = mask.to_startend_row_indices()
    assert masks.from_startend_row_indices(values, causal=causal) == mask


def test_row_indices_need_a_tensor() -> None:
    with pytest.raises(TypeError, match=r"startend_row_indices is list \[3\]; expected an int32 tensor"):
        flashmask.RowIndices([3], causal=True)  # type: ignore[arg-type]
