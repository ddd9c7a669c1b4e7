# SPDX-License-Identifier: Apache-2.0
"""Masks by what their rows see: Mask.to_row_ranges and masks.from_row_ranges."""

import numpy as np
import pytest
from mask_families import FAMILIES

from flashmask import masks


def expanded(values, columns, batch):
    """What the ends of the rows say, as booleans [batch, heads, rows, columns]."""
    column = np.arange(columns)
    seen = column < values[:, 0, :, None]
    for begin, end in zip(values[:, 1::2].swapaxes(0, 1), values[:, 2::2].swapaxes(0, 1), strict=True):
        seen |= (begin[..., None] <= column) & (column < end[..., None])
    heads, lines = seen.shape[:2]
    return seen.reshape(heads, batch, lines // batch, columns).swapaxes(0, 1)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_goes_out_and_comes_back(family):
    mask = FAMILIES[family]()
    values = mask.to_row_ranges(most_ends=999)
    assert values.dtype == np.int32 and values.shape[1] % 2 == 1
    visible = mask.to_dense().astype(bool)
    assert np.array_equal(expanded(values, mask.shape.columns, mask.shape.batch), visible)
    back = masks.from_row_ranges(values, mask.shape.columns, batch=mask.shape.batch)
    assert np.array_equal(back.to_dense().astype(bool), visible)


def test_heads_and_batch_have_their_own_rows():
    one, two = masks.causal_document([3, 5], 8), masks.causal(8, 8)
    mask = masks.stack_batch([masks.stack_heads([one, two]), masks.stack_heads([two, one])])
    values = mask.to_row_ranges()
    assert values.shape == (2, 3, 16)
    assert np.array_equal(values[0, :, 8:], values[1, :, :8])
    assert np.array_equal(masks.from_row_ranges(values, 8, batch=2).to_dense(), mask.to_dense())


def test_what_does_not_fit_is_named():
    with pytest.raises(NotImplementedError, match="row 3 needs 3 ends of visible ranges; at most 1 are asked for"):
        masks.causal_document([3, 5], 8).to_row_ranges(most_ends=1)
    with pytest.raises(ValueError, match="most_ends is 4; give an odd number"):
        masks.causal(8, 8).to_row_ranges(most_ends=4)
    with pytest.raises(ValueError, match="there are 2 ends per row; give an odd number"):
        masks.from_row_ranges(np.zeros((1, 2, 8), np.int32), 8)
    with pytest.raises(ValueError, match=r"expected int32 \[heads, ends, batch \* rows\]"):
        masks.from_row_ranges(np.zeros((2, 8), np.int32), 8)
    with pytest.raises(ValueError, match="expected a multiple of the batch, 3"):
        masks.from_row_ranges(np.zeros((1, 1, 8), np.int32), 8, batch=3)
