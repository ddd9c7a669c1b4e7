# SPDX-License-Identifier: Apache-2.0
"""masks.dflash: blocks of drafts that see the context before their anchors."""

import numpy as np
import pytest
import torch

import flashmask
from flashmask import masks


def visible(anchors, keep, block, tokens, document_ids=None):
    """Booleans [queries, keys] by the words of the documentation."""
    of_row = np.repeat(np.arange(len(anchors)), block)
    key = np.arange(tokens + len(of_row))
    of_key = np.where(key < tokens, -1, (key - tokens) // block)
    context = (of_key == -1) & (key < anchors[of_row][:, None])
    if document_ids is not None:
        run = np.cumsum(np.diff(document_ids, prepend=document_ids[0]) != 0)  # equal numbers may come back
        run[document_ids < 0] = -2  # padding
        of_token = np.concatenate([run, np.full(len(of_row), -3)])
        context &= of_token == np.where(run < 0, -4, run)[anchors[of_row]][:, None]
    seen = context | (of_key == of_row[:, None])
    return seen & keep[of_row][:, None]


def test_every_pair_is_seen_as_it_should():
    rng = np.random.default_rng(0)
    for _ in range(300):
        tokens, block, blocks, batch = (int(each) for each in rng.integers([0, 1, 0, 1], [30, 6, 7, 3]))
        anchors = np.sort(rng.integers(0, tokens + 1, (batch, blocks)))
        keep = np.arange(blocks) < rng.integers(0, blocks + 1, (batch, 1))
        rows = masks.dflash(torch.from_numpy(anchors), block, tokens, keep=torch.from_numpy(keep))
        dense = rows.to_dense().astype(bool)
        assert dense.shape == (batch, 1, blocks * block, tokens + blocks * block)
        for entry in range(batch):
            assert np.array_equal(dense[entry, 0], visible(anchors[entry], keep[entry], block, tokens))
        assert rows.to_mask().form == "intervals"


def test_blocks_see_the_document_of_their_anchor():
    rng = np.random.default_rng(1)
    for _ in range(300):
        tokens, block, blocks, batch = (int(each) for each in rng.integers([1, 1, 0, 1], [30, 6, 9, 3]))
        anchors = np.sort(rng.integers(0, tokens, (batch, blocks)))
        keep = np.arange(blocks) < rng.integers(0, blocks + 1, (batch, 1))
        ids = np.repeat(rng.integers(-1, 4, 30), rng.integers(1, 8, 30))[: batch * tokens].reshape(batch, tokens)
        given = torch.from_numpy(ids[0] if batch == 1 else ids)
        rows = masks.dflash(torch.from_numpy(anchors), block, tokens, keep=torch.from_numpy(keep), document_ids=given)
        dense = rows.to_dense().astype(bool)
        for entry in range(batch):
            expected = visible(anchors[entry], keep[entry], block, tokens, ids[entry])
            assert np.array_equal(dense[entry, 0], expected)
        assert rows.to_mask().form == "intervals"


def test_attention_under_it_is_attention_over_what_is_seen():
    torch.manual_seed(0)
    anchors, block, tokens = torch.tensor([3, 9, 9, 20]), 4, 24
    q, k, v = torch.randn(1, 16, 2, 32), torch.randn(1, 40, 2, 32), torch.randn(1, 40, 2, 32)
    rows = masks.dflash(anchors, block, tokens)
    found = flashmask.attention(q, k, v, rows)
    seen = torch.from_numpy(visible(anchors.numpy(), np.ones(4, bool), block, tokens))
    expected = torch.nn.functional.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), attn_mask=seen)
    torch.testing.assert_close(found, expected.transpose(1, 2), atol=1e-5, rtol=1e-5)


def test_a_compiled_function_makes_it_in_one_graph():
    def make(anchors, keep):
        return masks.dflash(anchors, 4, 24, keep=keep).startend_row_indices

    anchors, keep = torch.tensor([[3, 9, 0], [1, 2, 5]]), torch.tensor([[True, True, False], [True, True, True]])
    compiled = torch.compile(make, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(anchors, keep), make(anchors, keep))


@pytest.mark.parametrize(
    ("anchors", "options", "error", "says"),
    [
        ([3, 2], {}, ValueError, r"anchors\[0\] falls from 3 to 2; expected them to ascend"),
        ([3, 11], {}, ValueError, "anchors holds 11; expected 0 to 10"),
        ([3, 4], {"keep": torch.tensor([False, True])}, ValueError, "expected all kept blocks first"),
        ([3, 4], {"keep": torch.tensor([1, 1])}, TypeError, "expected booleans, one per anchor"),
        ([3, 4], {"keep": torch.tensor([True])}, ValueError, r"expected one value per anchor, \[2\]"),
        ([3, 10], {"document_ids": torch.zeros(10).long()}, ValueError, "anchors holds 10; expected 0 to 9"),
        ([3, 4], {"document_ids": torch.zeros(9).long()}, ValueError, r"document_ids is \[9\] on cpu; exp"),
        ([3, 4], {"document_ids": torch.zeros(10)}, TypeError, "document_ids holds torch.float32"),
        ([3, 4], {"block": 0}, ValueError, "block is 0"),
        ([3.0, 4.0], {}, TypeError, "anchors holds torch.float32 values"),
    ],
)
def test_wrong_calls_say_what_is_expected(anchors, options, error, says):
    with pytest.raises(error, match=says):
        masks.dflash(torch.tensor(anchors), **{"block": 2, "tokens": 10, **options})
