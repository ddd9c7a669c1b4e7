# SPDX-License-Identifier: Apache-2.0
"""masks.from_block_mask(): FlexAttention's lists of blocks as its compiled kernels obey them, and its predicate."""

import pytest
import torch
from mask_mods import CASES, B, H
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, create_mask

import flashmask
from flashmask import masks
from flashmask.masks._block_mask import made_from_block_mask

ABSENT, PARTIAL, FULL = range(3)


def shown(mask, sizes):
    return torch.from_numpy(mask.to_dense()).bool().expand(sizes)


@pytest.mark.parametrize("name", CASES)
def test_what_create_block_mask_made_is_the_predicates_mask(name):
    mask_mod, rows, columns, way = CASES[name]()
    sizes = (B, H, rows, columns)
    made = made_from_block_mask(create_block_mask(mask_mod, *sizes, device="cpu", BLOCK_SIZE=32))
    assert torch.equal(shown(made.mask, sizes), create_mask(mask_mod, *sizes, device="cpu"))
    assert made.way == way


def listed(kinds, mask_mod, size, sizes):
    """A BlockMask whose lists say kinds [batch, heads, row blocks, column blocks]."""

    def lists(chosen):
        return chosen.sum(-1).int(), (~chosen).int().argsort(dim=-1, stable=True).int()

    return BlockMask.from_kv_blocks(
        *lists(kinds == PARTIAL), *lists(kinds == FULL), BLOCK_SIZE=size, mask_mod=mask_mod, seq_lengths=sizes[2:]
    )


def even(b, h, q, kv):
    return torch.stack([q, kv]).sum() % 2 == 0


@pytest.mark.parametrize("mask_mod", [lambda b, h, q, kv: q >= kv, lambda b, h, q, kv: (q * kv) % 3 == b, even])
@pytest.mark.parametrize("size", [(32, 32), (16, 48), (20, 20)])
def test_absent_blocks_hide_full_ones_show_and_partial_ones_ask(mask_mod, size):
    sizes = _, _, rows, columns = 2, 3, 150, 130
    blocks = -(-rows // size[0]), -(-columns // size[1])
    kinds = torch.randint(0, 3, (2, 3, *blocks), generator=torch.Generator().manual_seed(0))
    made = made_from_block_mask(listed(kinds, mask_mod, size, sizes))
    wide = kinds.repeat_interleave(size[0], 2)[:, :, :rows].repeat_interleave(size[1], 3)[..., :columns]
    expected = torch.where(wide == PARTIAL, create_mask(mask_mod, *sizes, device="cpu"), wide == FULL)
    assert torch.equal(shown(made.mask, sizes), expected)


def of_entry_and_head(b, h, q, kv):
    return q >= kv + 3 * b - h


@pytest.mark.parametrize("mask_mod", [of_entry_and_head, lambda b, h, q, kv: (q * kv) % 3 == h, even])
@pytest.mark.parametrize("size", [(32, 32), (20, 20)])
def test_lists_of_one_entry_and_head_serve_a_call_of_more(mask_mod, size):
    """As in FlexAttention's kernels, the predicate then gets the numbers of the call's entries and heads."""
    sizes = _, _, rows, columns = 2, 3, 100, 90
    blocks = -(-rows // size[0]), -(-columns // size[1])
    kinds = torch.randint(0, 3, (1, 1, *blocks), generator=torch.Generator().manual_seed(0))
    block_mask = listed(kinds, mask_mod, size, sizes)
    wide = kinds.repeat_interleave(size[0], 2)[:, :, :rows].repeat_interleave(size[1], 3)[..., :columns]
    expected = torch.where(wide == PARTIAL, create_mask(mask_mod, *sizes, device="cpu"), wide == FULL)
    assert torch.equal(shown(made_from_block_mask(block_mask, sizes[:2]).mask, sizes), expected)
    q, k, v = (torch.randn(2, 3, tokens, 8) for tokens in (rows, columns, columns))
    found = flashmask.flex_attention(q, k, v, block_mask=block_mask)
    dense = flashmask.attention(q, k, v, masks.from_dense(expected), layout="bhsd")
    torch.testing.assert_close(found, dense)


@pytest.mark.parametrize(
    ("row", "column", "kind", "expected"), [(1, 1, ABSENT, False), (1, 0, PARTIAL, None), (0, 1, FULL, True)]
)
def test_one_block_that_is_listed_otherwise_is_what_the_list_says(row, column, kind, expected):
    kinds = torch.tensor([[PARTIAL, ABSENT], [FULL, PARTIAL]])
    kinds[row, column] = kind
    given = listed(kinds[None, None], lambda b, h, q, kv: q >= kv, (64, 64), (1, 1, 100, 100))
    visible = torch.ones(100, 100).tril().bool()
    if expected is not None:
        visible[64 * row : 64 * row + 64, 64 * column : 64 * column + 64] = expected
    assert torch.equal(shown(masks.from_block_mask(given), (1, 1, 100, 100))[0, 0], visible)


def test_lists_without_full_blocks_are_read():
    kinds = torch.tensor([[PARTIAL, ABSENT], [PARTIAL, PARTIAL]])[None, None]
    given = listed(kinds, lambda b, h, q, kv: q >= kv, (64, 64), (1, 1, 100, 100))
    given.full_kv_num_blocks = given.full_kv_indices = None
    assert masks.from_block_mask(given) == masks.causal(100, 100)


def test_only_partial_blocks_are_evaluated():
    asked = []

    def mask_mod(b, h, q, kv):
        asked.append(kv)
        return torch.stack([q >= kv]).any()  # symbols do not stack

    kinds = torch.tensor([[PARTIAL, ABSENT], [FULL, ABSENT]])[None, None]
    made = made_from_block_mask(listed(kinds, mask_mod, (16, 16), (1, 1, 32, 32)))
    expected = torch.zeros(32, 32, dtype=torch.bool)
    expected[:16, :16] = torch.ones(16, 16).tril().bool()
    expected[16:, :16] = True
    assert torch.equal(shown(made.mask, (1, 1, 32, 32))[0, 0], expected)
    assert len(asked) <= 4  # the trace, which rows tell planes apart, and one row of blocks


def test_attention_under_a_block_mask():
    q = torch.randn(2, 150, 4, 8)
    mask = masks.from_block_mask(create_block_mask(lambda b, h, q, kv: q >= kv, None, None, 150, 150, device="cpu"))
    assert torch.equal(flashmask.attention(q, q, q, mask), flashmask.attention(q, q, q, masks.causal(150, 150)))


def test_transformers_block_masks_are_read(monkeypatch):
    masking_utils = pytest.importorskip("transformers.masking_utils", reason="makes the block masks")
    from transformers import LlamaConfig

    def without_compiling(*arguments, _compile, **keywords):
        return create_block_mask(*arguments, **keywords)

    monkeypatch.setattr(masking_utils, "create_block_mask", without_compiling)
    config = LlamaConfig(hidden_size=8, num_attention_heads=1, num_hidden_layers=1)
    config._attn_implementation = "flex_attention"
    config.sliding_window, config.attention_chunk_size = 7, 16
    padding = torch.ones(2, 40, dtype=torch.long)
    padding[0, :5] = 0
    position_ids = torch.cat([torch.arange(25), torch.arange(15)])[None].expand(2, 40)
    for make, given in (
        (masking_utils.create_causal_mask, {}),
        (masking_utils.create_causal_mask, {"attention_mask": padding}),
        (masking_utils.create_causal_mask, {"position_ids": position_ids}),
        (masking_utils.create_sliding_window_causal_mask, {"attention_mask": padding}),
        (masking_utils.create_chunked_causal_mask, {"attention_mask": padding}),
        (masking_utils.create_bidirectional_mask, {"attention_mask": padding}),
    ):
        arguments = {"attention_mask": None, "past_key_values": None, "position_ids": None} | given
        if make is masking_utils.create_bidirectional_mask:
            arguments = {"attention_mask": arguments["attention_mask"]}
        block_mask = make(config=config, inputs_embeds=torch.zeros(2, 40, 8), **arguments)
        made = made_from_block_mask(block_mask)
        sizes = (*block_mask.kv_num_blocks.shape[:2], *block_mask.seq_lengths)
        assert torch.equal(shown(made.mask, sizes), create_mask(block_mask.mask_mod, *sizes, device="cpu"))
        assert made.way == "columns"


def test_what_is_no_block_mask_is_refused():
    made = create_block_mask(lambda b, h, q, kv: q >= kv, None, None, 150, 150, device="cpu", BLOCK_SIZE=32)
    with pytest.raises(TypeError, match=r"block_mask is Tensor of .* expected a BlockMask of FlexAttention"):
        masks.from_block_mask(torch.ones(4, 4))
    with pytest.raises(ValueError, match="Cannot use mask_mod from a sliced BlockMask; set it to that of"):
        masks.from_block_mask(made[:, :, :2])
    sliced = made[:, :, :2]
    sliced.mask_mod = made.mask_mod
    with pytest.raises(ValueError, match=r"block_mask lists 2 blocks of rows, .* expected 5 for 150 rows"):
        masks.from_block_mask(sliced)
