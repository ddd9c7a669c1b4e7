# SPDX-License-Identifier: Apache-2.0
"""Every builder against a predicate of one line, at awkward sizes."""

import numpy as np
import pytest
from visibility import check, documents_of, grid

from flashmask import masks

SIZES = [(1, 1), (10, 10), (65, 130), (130, 65), (1, 200), (0, 5), (5, 0), (127, 127)]
PACKINGS = [([4, 3, 3], 10), ([], 7), ([0, 5, 0, 0, 70, 1], 80), ([1] * 9, 9), ([130], 130), ([64, 64, 0], 128)]


@pytest.mark.parametrize(("rows", "columns"), SIZES)
def test_full_shows_everything(rows, columns):
    check(masks.full(rows, columns), np.ones((rows, columns)))


@pytest.mark.parametrize(("rows", "columns"), SIZES)
def test_causal_is_aligned_bottom_right(rows, columns):
    i, j = grid(rows, columns)
    check(masks.causal(rows, columns), j <= i + columns - rows)


@pytest.mark.parametrize(("rows", "columns"), SIZES)
@pytest.mark.parametrize("window", [1, 3, 64, 1000])
def test_sliding_window_counts_self(rows, columns, window):
    i, j = grid(rows, columns)
    own = i + columns - rows
    check(masks.sliding_window(rows, columns, window), (j <= own) & (j > own - window))


def test_columns_are_as_many_as_rows_unless_given():
    assert masks.causal(10) == masks.causal(10, 10)
    square, wide = masks.sliding_window(10, 10, 3), masks.sliding_window(10, 12, 3)
    assert masks.sliding_window(10, 3) == masks.sliding_window(10, window=3) == square
    assert masks.sliding_window(10, None, 3) == masks.sliding_window(rows=10, columns=10, window=3) == square
    assert masks.sliding_window(10, 3, columns=12) == masks.sliding_window(10, 12, window=3) == wide != square


@pytest.mark.parametrize(
    "call",
    [
        lambda: masks.sliding_window(10),
        lambda: masks.sliding_window(10, columns=12),
        lambda: masks.sliding_window(10, 12, 3, columns=12),
        lambda: masks.sliding_window(10, 12, 3, 4),
        lambda: masks.sliding_window(10, 12, 3, window=3),
    ],
)
def test_a_window_is_given_once(call):
    with pytest.raises(TypeError, match=r"takes \(rows, window\) or \(rows, columns, window\), each of them once"):
        call()


@pytest.mark.parametrize(("rows", "columns"), SIZES)
@pytest.mark.parametrize(("left", "right"), [(0, 0), (2, 1), (None, 3), (70, None), (None, None)])
def test_window_has_two_sides(rows, columns, left, right):
    i, j = grid(rows, columns)
    own = i + columns - rows
    near = (j >= own - (left if left is not None else 10**6)) & (j <= own + (right if right is not None else 10**6))
    check(masks.window(rows, columns, left, right), near)


@pytest.mark.parametrize(("rows", "columns"), SIZES)
@pytest.mark.parametrize("dilation", [1, 2, 5])
def test_dilated_window_keeps_every_nth(rows, columns, dilation):
    i, j = grid(rows, columns)
    away = j - (i + columns - rows)
    check(
        masks.dilated_window(rows, columns, 3, 2, dilation),
        (away % dilation == 0) & (away >= -3 * dilation) & (away <= 2 * dilation),
    )


@pytest.mark.parametrize("tokens", [1, 10, 130])
def test_global_tokens_see_and_are_seen(tokens):
    i, j = grid(tokens, tokens)
    near = (j >= i - 2) & (j <= i + 1)
    check(masks.global_sliding_window(tokens, 1, 2, 1), near | (i < 1) | (j < 1))
    if tokens > 7:
        at = np.array([7, 2])
        check(masks.global_tokens(tokens, at, 2, 1), near | np.isin(i, at) | np.isin(j, at))


@pytest.mark.parametrize(("lengths", "tokens"), PACKINGS)
def test_documents_see_themselves(lengths, tokens):
    i, j = grid(tokens, tokens)
    of = documents_of(lengths, tokens)
    same = (of[i] == of[j]) & (of[j] >= 0)
    check(masks.document(lengths, tokens), same)
    check(masks.causal_document(lengths, tokens), same & (j <= i))
    check(masks.sliding_window_document(lengths, tokens, 3), same & (j <= i) & (j > i - 3))
    if sum(lengths) == tokens:
        last = of == len(lengths) - 1
        check(masks.causal_blockwise(lengths, tokens), (same | last[i]) & (j <= i))


@pytest.mark.parametrize(("lengths", "tokens"), PACKINGS)
def test_prefixes_are_seen_both_ways(lengths, tokens):
    i, j = grid(tokens, tokens)
    of = documents_of(lengths, tokens)
    prefixes = [length // 2 for length in lengths]
    begins = np.cumsum([0, *lengths])
    in_prefix = np.array([d >= 0 and t < begins[d] + prefixes[d] for t, d in enumerate(of)], bool)
    same = (of[i] == of[j]) & (of[j] >= 0)
    check(masks.prefix_lm_document(lengths, prefixes, tokens), same & ((j <= i) | in_prefix[j]))
    check(masks.prefix_lm_causal(tokens, tokens // 2), (j <= i) | (j < tokens // 2))


def test_tokens_default_to_the_sum():
    assert masks.document([4, 3]).shape == (1, 1, 7, 7)
    assert masks.shared_question([(2, [1, 1])]).shape == (1, 1, 4, 4)


@pytest.mark.parametrize(("queries", "keys"), [([3, 5, 2], [4, 2, 4]), ([0, 70], [3, 64]), ([5, 1], [0, 9]), ([], [])])
def test_documents_of_two_lengths(queries, keys):
    i, j = grid(sum(queries), sum(keys))
    row, column = documents_of(queries, sum(queries)), documents_of(keys, sum(keys))
    same = row[i] == column[j]
    check(masks.document(query_lengths=queries, key_lengths=keys), same)
    row_end, column_end = np.cumsum([*queries, 0])[row[i]], np.cumsum([*keys, 0])[column[j]]
    check(masks.causal_document(query_lengths=queries, key_lengths=keys), same & (j - column_end <= i - row_end))


@pytest.mark.parametrize("documents", [[(4, [3, 3])], [(1, []), (0, [2, 0, 3]), (70, [60, 5])], []])
def test_answers_share_a_question(documents):
    tokens = sum(q + sum(answers) for q, answers in documents) + 3
    document, answer = np.full(tokens, -1), np.full(tokens, -1)
    at = 0
    for d, (question, answers) in enumerate(documents):
        for a, length in enumerate([question, *answers]):
            document[at : at + length], answer[at : at + length] = d, a
            at += length
    i, j = grid(tokens, tokens)
    seen = (document[i] == document[j]) & (document[j] >= 0) & (j <= i) & ((answer[j] == 0) | (answer[j] == answer[i]))
    check(masks.shared_question(documents, tokens), seen)


def test_spans_are_seen_both_ways():
    i, j = grid(70, 70)
    spans = [(1, 4), (6, 6), (60, 69)]
    inside = np.any([(b <= i) & (i < e) & (b <= j) & (j < e) for b, e in spans], axis=0)
    check(masks.bidirectional_spans(70, spans), (j <= i) | inside)


@pytest.mark.parametrize(("length", "block"), [(5, 2), (64, 16), (1, 3)])
def test_block_diffusion_denoises_from_clean_blocks(length, block):
    i, j = grid(2 * length, 2 * length)
    noisy_i, noisy_j = i < length, j < length
    block_i, block_j = i % length // block, j % length // block
    noisy = (noisy_j & (block_i == block_j)) | (~noisy_j & (block_j < block_i))
    check(masks.block_diffusion(length, block), np.where(noisy_i, noisy, ~noisy_j & (block_j <= block_i)))


@pytest.mark.parametrize(
    "kind", [list, tuple, np.array, lambda x: np.array(x, np.int32), lambda x: np.array(x, np.uint8)]
)
def test_lengths_come_in_any_container(kind):
    assert masks.causal_document(kind([4, 3, 3]), 10) == masks.causal_document([4, 3, 3], 10)
    assert masks.causal_document([4, 3, 3], np.int64(10)) == masks.causal_document([4, 3, 3], 10)
