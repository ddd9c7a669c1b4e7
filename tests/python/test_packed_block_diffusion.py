# SPDX-License-Identifier: Apache-2.0
"""masks.packed_block_diffusion, in both orders of tokens."""

from itertools import pairwise

import numpy as np
import pytest
import torch

import flashmask
from flashmask import masks


def visible(ends, block, tokens):
    """Booleans [2 tokens, 2 tokens] of [x_t | x_0], token by token, by the words of the documentation."""
    seen = np.zeros((2 * tokens, 2 * tokens), bool)
    for begin, end in pairwise(ends):
        for i in range(begin, end):
            for j in range(begin, end):
                row, column = (i - begin) // block, (j - begin) // block
                seen[i, j] = row == column
                seen[i, tokens + j] = column < row
                seen[tokens + i, tokens + j] = column <= row
    return seen


def drawn(rng):
    """Ends of documents, some of them empty, tokens with padding, and a block."""
    ends = np.concatenate([[0], rng.integers(0, 9, rng.integers(0, 5)).cumsum()])
    return ends, int(rng.integers(1, 7)), int(ends[-1] + rng.integers(0, 5))


def test_every_pair_is_seen_as_it_should_in_both_orders():
    rng = np.random.default_rng(0)
    forms = set()
    for _ in range(200):
        ends, block, tokens = drawn(rng)
        given, expected = torch.from_numpy(ends), visible(ends, block, tokens)
        assert np.array_equal(masks.packed_block_diffusion(given, block, tokens).numpy(), expected)
        order = masks.interleaved_blocks(given, block, tokens).numpy()
        assert np.array_equal(np.sort(order), np.arange(2 * tokens))
        rows = masks.packed_block_diffusion(given, block, tokens, interleaved=True)
        assert np.array_equal(rows.to_dense()[0, 0].astype(bool), expected[order][:, order])
        forms.add(rows.to_mask().form)
    assert forms == {"intervals"}


def test_the_booleans_are_written_once():
    """Beside the result nothing is as large as an eighth of it, for blocks of 16 tokens."""
    ends, tokens = torch.tensor([0, 300, 1000, 1024]), 1024
    with torch.profiler.profile(profile_memory=True) as profile:
        result = masks.packed_block_diffusion(ends, 16, tokens)
    sizes = sorted(event.self_cpu_memory_usage for event in profile.events())
    assert sizes[-1] == result.numel() and sizes[-2] < result.numel() / 8


def test_one_document_is_block_diffusion():
    found = masks.packed_block_diffusion(torch.tensor([0, 20]), 6, 20)
    assert np.array_equal(found.numpy(), masks.block_diffusion(20, 6).to_dense()[0, 0])


def test_a_block_larger_than_any_document_is_the_document():
    ends = torch.tensor([0, 4, 10], dtype=torch.int32)
    for interleaved in (False, True):
        found, expected = (
            masks.packed_block_diffusion(ends, block, 12, interleaved=interleaved) for block in (2**63 - 1, 6)
        )
        if interleaved:
            found, expected = found.startend_row_indices, expected.startend_row_indices
        assert torch.equal(found, expected)


def test_both_orders_are_the_same_attention():
    torch.manual_seed(0)
    ends, tokens = torch.tensor([0, 37, 50, 90]), 96
    order = masks.interleaved_blocks(ends, 8, tokens)
    q, k, v = (torch.randn(1, 2 * tokens, 2, 32) for _ in range(3))
    halves = flashmask.attention(q, k, v, masks.packed_block_diffusion(ends, 8, tokens))
    rows = masks.packed_block_diffusion(ends, 8, tokens, interleaved=True)
    blocks = flashmask.attention(q[:, order], k[:, order], v[:, order], rows)
    torch.testing.assert_close(blocks[:, order.argsort()], halves, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("interleaved", [False, True])
def test_a_compiled_function_makes_it_in_one_graph(interleaved):
    def make(ends):
        found = masks.packed_block_diffusion(ends, 4, 24, interleaved=interleaved)
        return found.startend_row_indices if interleaved else found

    ends = torch.tensor([0, 7, 20])
    assert torch.equal(torch.compile(make, fullgraph=True, backend="aot_eager")(ends), make(ends))


def test_wrong_calls_say_what_is_expected():
    with pytest.raises(ValueError, match="block is 0"):
        masks.packed_block_diffusion(torch.tensor([0, 4]), 0, 8)
    with pytest.raises(ValueError, match=r"cu_seqlens is \[0, 9\]; expected cumulative lengths"):
        masks.packed_block_diffusion(torch.tensor([0, 9]), 2, 8)
    with pytest.raises(TypeError, match="cu_seqlens is list"):
        masks.interleaved_blocks([0, 4], 2, 8)
