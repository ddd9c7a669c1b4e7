# SPDX-License-Identifier: Apache-2.0
"""What the tests of masks hold masks against."""

import numpy as np


def grid(rows, columns):
    """Row numbers [rows, 1] and column numbers [1, columns]."""
    return np.arange(rows)[:, None], np.arange(columns)[None, :]


def documents_of(lengths, tokens):
    """The document of every token [tokens], −1 in the padding."""
    ids = np.full(tokens, -1)
    ids[: sum(lengths)] = np.repeat(np.arange(len(lengths)), lengths)
    return ids


def check(mask, expected):
    """Compares [rows, columns], with heads or batch and heads before, with what the mask shows."""
    expected = np.asarray(expected, bool)
    shown = mask.to_dense()
    assert shown.dtype == np.bool_
    assert shown.shape == mask.shape == (1,) * (4 - expected.ndim) + expected.shape
    np.testing.assert_array_equal(shown.reshape(expected.shape), expected)
