# SPDX-License-Identifier: Apache-2.0
"""Builders of sparse attention, trees and graphs against predicates."""

import itertools

import numpy as np
import pytest
from visibility import check, grid

from flashmask import masks


def test_dropped_segments_lose_the_scores_inside():
    i, j = grid(70, 70)
    dropped = [(60, 66), (2, 5), (9, 9)]
    inside = np.any([(b <= i) & (i < e) & (b <= j) & (j < e) for b, e in dropped], axis=0)
    check(masks.qk_sparse_segments(70, dropped), (j <= i) & ~inside)


def test_hashed_tokens_see_their_bucket():
    rng = np.random.default_rng(1)
    queries = np.array(sorted(zip(rng.integers(0, 5, 70), range(70), strict=True)))
    keys = np.array(sorted(zip(rng.integers(0, 5, 90), range(90), strict=True)))
    same = queries[:, None, 0] == keys[None, :, 0]
    check(masks.hash_sparse_sorted(queries, keys), same & (keys[None, :, 1] <= queries[:, None, 1]))


@pytest.mark.parametrize("heads", [1, 3])
def test_keys_are_evicted(heads):
    i, j = grid(70, 70)
    evicted_at = np.random.default_rng(2).integers(np.arange(70) + 1, 71, (heads, 70))
    seen = (j <= i) & (i < evicted_at[:, None, :])
    check(masks.random_eviction(70, evicted_at), seen)
    check(masks.random_eviction(70, list(evicted_at[0])), seen[0])


def test_big_bird_holds_window_global_and_random_blocks():
    blocks, block = 12, 16
    mask = masks.big_bird(
        blocks * block - 3, block=block, window_blocks=1, global_blocks=2, random_blocks=3, heads=2, seed=7
    )
    shown = mask.to_dense()[0]
    i, j = grid(blocks, blocks)
    known = (abs(i - j) <= 1) | (i < 2) | (j < 2)
    for head in shown:
        whole = head[::block, ::block]
        np.testing.assert_array_equal(head, np.kron(whole, np.ones((block, block)))[: head.shape[0], : head.shape[1]])
        assert whole[known].all()
        others = blocks - known.sum(axis=1)
        np.testing.assert_array_equal((whole & ~known).sum(axis=1), np.minimum(others, 3))
    assert (shown[0] != shown[1]).any()
    assert masks.big_bird(64, seed=2**64 - 1).shape == (1, 1, 64, 64)


def neighbours(length, kernel, dilation):
    """Booleans [length, length]: the nearest `kernel` of the same residue."""
    seen = np.zeros((length, length), bool)
    for token in range(length):
        alike = np.arange(token % dilation, length, dilation)
        place = token // dilation
        begin = min(max(place - kernel // 2, 0), len(alike) - kernel)
        seen[token, alike[begin : begin + kernel]] = True
    return seen


@pytest.mark.parametrize(
    "axes", [[(10, 3, 3)], [(5, 3), (9, 5)], [(4, 2), (3, 3), (6, 3, 2)], [(70, 4)]], ids=["1d", "2d", "3d", "even"]
)
def test_neighbourhoods_stay_whole_at_borders(axes):
    expected = np.ones((1, 1), bool)
    for axis in axes:
        expected = np.kron(expected, neighbours(*axis, *[1] * (3 - len(axis))))
    check(masks.neighbourhood(axes), expected)
    if len(axes) == 2:
        check(masks.neighbourhood_2d(*axes), expected)
    if len(axes) == 3:
        check(masks.neighbourhood_3d(*axes), expected)
    check(masks.neighbourhood([masks.NeighbourhoodAxis(*axis) for axis in axes]), expected)


@pytest.mark.parametrize(("tokens", "stride"), [(1, 1), (70, 8), (130, 64)])
def test_factorised_patterns(tokens, stride):
    i, j = grid(tokens, tokens)
    check(masks.strided_factorised(tokens, stride), (j <= i) & ((i - j <= stride) | ((i - j) % stride == 0)))
    own = i // stride == j // stride
    check(masks.fixed_factorised(tokens, stride, 1), (j <= i) & (own | (j % stride >= stride - 1)))


@pytest.mark.parametrize("heads", [1, 2])
def test_scfa_keeps_the_order_of_tokens(heads):
    rng = np.random.default_rng(3)
    i, j = grid(70, 90)
    causal = j <= i + 20
    queries, keys = rng.integers(0, 4, (heads, 70)), rng.integers(0, 4, (heads, 90))
    check(masks.scfa_hash_sparse(queries, keys), causal & (queries[:, :, None] == keys[:, None, :]))
    kept_queries, kept_keys = rng.random((heads, 70)) < 0.7, rng.random((heads, 90)) < 0.7
    kept = kept_queries[:, :, None] & kept_keys[:, None, :]
    check(masks.scfa_qk_sparse(kept_queries, kept_keys.astype(np.int32)), causal & kept)


def ancestors(parents):
    """Booleans [nodes, nodes]: a node's ancestors and itself."""
    seen = np.eye(len(parents), dtype=bool)
    for node in range(len(parents)):
        above = parents[node]
        while above >= 0:
            seen[node, above] = True
            above = parents[above]
    return seen


@pytest.mark.parametrize("order", ["depth_first", "as_given"])
def test_nodes_of_a_tree_see_their_ancestors(order):
    parents, lengths = [-1, 0, 0, 2, 2], [2, 0, 1, 63, 2]
    mask, positions = masks.tree(parents, lengths, 70, order)
    node = np.full(70, -1)
    for k, (begin, length) in enumerate(zip(positions, lengths, strict=True)):
        assert (node[begin : begin + length] == -1).all()
        node[begin : begin + length] = k
    i, j = grid(70, 70)
    check(mask, ancestors(parents)[node[i], node[j]] & (j <= i) & (node[i] >= 0) & (node[j] >= 0))
    if order == "as_given":
        np.testing.assert_array_equal(positions, np.cumsum([0, *lengths[:-1]]))


def test_depth_first_gathers_torn_subtrees():
    with pytest.raises(ValueError, match="tree"):
        masks.tree([-1, 0, 0, 1], [1, 1, 1, 1], order="as_given")
    mask, positions = masks.tree([-1, 0, 0, 1], [1, 1, 1, 1])
    assert sorted(positions) == [0, 1, 2, 3]
    assert mask.to_dense()[0, 0, positions[3], positions[1]]
    assert not mask.to_dense()[0, 0, positions[3], positions[2]]


@pytest.mark.parametrize("sight", ["ancestors", "parent"])
def test_speculation_trees_keep_their_order(sight):
    parents = [-1, 0, 0, 1, 2, 1, 2, 5]
    seen = ancestors(parents)
    if sight == "parent":
        seen = np.eye(8, dtype=bool) | np.array([[above == node for node in range(8)] for above in parents])
    expected = np.zeros((10, 13), bool)
    expected[:8, :3] = True
    expected[:8, 3:11] = seen
    check(masks.tree_in_order(parents, 10, 3, sight), expected)


@pytest.mark.parametrize("candidates", [[2, 2, 1], [3], [], [4, 1, 2]])
def test_medusa_is_a_tree_in_order(candidates):
    paths = [p for depth in range(len(candidates)) for p in itertools.product(*map(range, candidates[: depth + 1]))]
    parents = [paths.index(path[:-1]) if len(path) > 1 else -1 for path in paths]
    np.testing.assert_array_equal(masks.medusa_parents(candidates), parents)
    assert masks.medusa_tree(candidates, 20, 2) == masks.tree_in_order(parents, 20, 2)
    assert masks.medusa_tree(candidates, 20, 0, "parent") == masks.tree_in_order(parents, 20, 0, "parent")


@pytest.mark.parametrize(("symmetric", "self_loops"), [(False, False), (True, False), (False, True), (True, True)])
def test_graphs_show_their_edges(symmetric, self_loops):
    edges = np.random.default_rng(4).integers(0, 90, (200, 2))
    expected = np.zeros((90, 90), bool)
    expected[edges[:, 0], edges[:, 1]] = True
    if symmetric:
        expected |= expected.T
    if self_loops:
        expected |= np.eye(90, dtype=bool)
    check(masks.graph(90, edges, symmetric=symmetric, self_loops=self_loops), expected)
    check(masks.graph(90, iter(edges.tolist()), symmetric=symmetric, self_loops=self_loops), expected)
    check(masks.graph(3, []), np.zeros((3, 3)))
