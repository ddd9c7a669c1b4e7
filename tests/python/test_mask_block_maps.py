# SPDX-License-Identifier: Apache-2.0
"""Block maps against predicates over blocks."""

import copy
import pickle

import numpy as np
import pytest
import torch
from visibility import check, grid

import flashmask
from flashmask import block_maps, masks


def scores_of(keep, block, rows, columns):
    """Booleans of scores of booleans of blocks, the last of which may be ragged."""
    return np.kron(keep, np.ones((block, block), bool))[..., :rows, :columns]


@pytest.mark.parametrize(("rows", "columns", "block"), [(160, 160, 16), (150, 290, 64), (300, 130, 128), (5, 5, 16)])
def test_blocks_are_kept_as_a_whole(rows, columns, block):
    shape = (2, 3, -(-rows // block), -(-columns // block))
    keep = np.random.default_rng(0).random(shape) < 0.5
    block_map = flashmask.BlockMap((2, 3, rows, columns), block, keep)
    assert block_map.shape == (2, 3, rows, columns)
    assert block_map.block == block
    assert block_map.density == pytest.approx(keep.mean())
    check(block_map.to_mask(), scores_of(keep, block, rows, columns))
    check(masks.from_block_map(block_map), scores_of(keep, block, rows, columns))
    one = block_maps.create((rows, columns), block, torch.from_numpy(keep[0, 0]).int())
    check(one.to_mask(), scores_of(keep[0, 0], block, rows, columns))


def test_a_map_is_anded_onto_a_mask():
    keep = np.random.default_rng(1).random((2, 3)) < 0.5
    block_map = block_maps.create((200, 300), 128, keep)
    expected = scores_of(keep, 128, 200, 300) & masks.causal(200, 300).to_dense()
    check(masks.causal(200, 300) & block_map, expected)
    check(block_map & masks.causal(200, 300), expected)
    with pytest.raises(NotImplementedError, match="block map"):
        (masks.causal(200, 300) & block_map).to_startend_row_indices()
    with pytest.raises(TypeError):
        block_map & 3


@pytest.mark.parametrize(("rows", "columns"), [(10, 10), (8, 13), (13, 8)])
def test_builders_say_which_blocks(rows, columns):
    shape, block = (rows * 16, columns * 16), 16
    i, j = grid(rows, columns)
    own = i + columns - rows
    bits = own ^ j
    for name, block_map, keep in [
        ("butterfly", block_maps.butterfly(shape, block, 2), (own >= 0) & ((bits == 0) | (bits == 1) | (bits == 2))),
        ("all", block_maps.butterfly(shape, block), (own >= 0) & ((bits & (bits - 1)) == 0)),
        ("strided", block_maps.strided(shape, block, 4), (own - j) % 4 == 0),
        ("sliding", block_maps.sliding(shape, block, 2, 1), (j >= own - 2) & (j <= own + 1)),
    ]:
        shown = block_map.to_mask().to_dense()[0, 0, ::16, ::16]
        np.testing.assert_array_equal(shown, keep, err_msg=name)


def test_random_blocks_follow_their_seed():
    first, again, other = (block_maps.random((1, 2, 200, 160), 16, 3, seed).to_mask() for seed in (7, 7, 2**64 - 1))
    assert first == again
    assert first != other
    np.testing.assert_array_equal(first.to_dense()[:, :, ::16, ::16].sum(axis=-1), 3)


def test_blocks_are_kept_by_their_scores():
    scores = np.random.default_rng(2).standard_normal((10, 12)).astype(np.float32)
    scores[3, :11] = -np.inf
    shape = (160, 192)
    best = np.zeros((10, 12), bool)
    np.put_along_axis(best, np.argsort(-scores, axis=1, kind="stable")[:, :3], True, axis=1)
    best &= scores > -np.inf
    np.testing.assert_array_equal(block_maps.best(shape, 16, scores, 3).to_mask().to_dense()[0, 0, ::16, ::16], best)
    for given in (scores, torch.from_numpy(scores), scores.astype(np.float64), scores.tolist()):
        kept = block_maps.at_least(shape, 16, given, 0.5).to_mask().to_dense()[0, 0, ::16, ::16]
        np.testing.assert_array_equal(kept, scores >= 0.5)


@pytest.mark.parametrize(("rows", "columns"), [(64, 64), (50, 70), (0, 16)])
def test_blocks_of_dense_scores(rows, columns):
    visible = np.random.default_rng(3).random((2, 1, rows, columns)) < 0.003
    keep = np.zeros((2, 1, -(-rows // 16), -(-columns // 16)), bool)
    for at in np.argwhere(visible):
        keep[at[0], at[1], at[2] // 16, at[3] // 16] = True
    check(block_maps.from_dense(visible, 16).to_mask(), scores_of(keep, 16, rows, columns))


def test_maps_are_copied_and_pickled():
    block_map = block_maps.best((64, 64), 16, np.arange(16.0).reshape(4, 4), 2)
    for twin in (copy.copy(block_map), copy.deepcopy(block_map), pickle.loads(pickle.dumps(block_map))):
        assert twin.to_mask() == block_map.to_mask()
        assert twin.shape == (1, 1, 64, 64)
    assert repr(block_map) == "<flashmask.BlockMap batch=1, heads=1, rows=64, columns=64, block=16>"


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: block_maps.strided((64, 64), 20, 1), ValueError, "block is 20; expected a multiple of 16"),
        (lambda: block_maps.strided((64,), 16, 1), TypeError, r"shape is tuple \(64,\)"),
        (lambda: block_maps.strided((64, 64.0), 16, 1), TypeError, r"shape\[1\] is float 64.0"),
        (lambda: block_maps.strided((64, 64), 16, 0), ValueError, "stride is 0; expected at least 1"),
        (lambda: block_maps.create((64, 64), 16, np.ones((4, 3))), TypeError, "keep holds float64"),
        (lambda: block_maps.create((64, 64), 16, np.ones((4, 3), int)), ValueError, r"keep has shape \[4, 3\]"),
        (lambda: block_maps.create((64, 64), 32, [[1, 2], [0, 1]]), ValueError, "keep holds other values"),
        (lambda: block_maps.at_least((64, 64), 64, [[1.0]], "a"), TypeError, "threshold is str 'a'"),
        (lambda: block_maps.at_least((64, 64), 64, [[1.0]], float("nan")), ValueError, "threshold is nan"),
        (lambda: block_maps.best((64, 64), 64, [["a"]], 1), TypeError, "scores holds <U1 values; expected numbers"),
        (lambda: block_maps.random((64, 64), 64, 1, -1), ValueError, "seed is -1; expected at least 0"),
        (lambda: block_maps.from_dense(np.ones((4, 4)), 16), TypeError, "visible holds float64"),
        (lambda: masks.from_block_map(3), TypeError, "map is int 3; expected a BlockMap"),
    ],
)
def test_mistakes_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call()
