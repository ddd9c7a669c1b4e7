# SPDX-License-Identifier: Apache-2.0
"""Masks of pairs that users hand to a model, and what attention says of keywords that it cannot honour."""

import pytest

torch = pytest.importorskip("torch", reason="Transformers runs on torch")
transformers = pytest.importorskip("transformers", reason="tests its integration")

from torch.nn.attention.flex_attention import create_block_mask  # noqa: E402
from transformers.masking_utils import create_causal_mask  # noqa: E402

from flashmask.transformers import flashmask_attention_forward, flashmask_mask, register  # noqa: E402

register()

TOKENS = 12
IDS = torch.arange(2 * TOKENS).reshape(2, TOKENS)


def logits(attention, **arguments):
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=50, attn_implementation=attention,
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(config).eval()(IDS, **arguments).logits


def visible():
    """Causal, and the second sequence of the batch is two documents."""
    made = torch.ones(2, TOKENS, TOKENS, dtype=torch.bool).tril()
    made[1, 5:, :5] = False
    return made


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.int32, torch.uint8], ids=str)
def test_masks_of_pairs_without_heads_are_those_of_one_head(dtype):
    expected = logits("sdpa", attention_mask=visible()[:, None])
    found = logits("flashmask", attention_mask=visible().to(dtype))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(found, logits("flashmask"), atol=1e-3)


def test_numbers_to_add_are_refused():
    message = r"attention_mask is torch\.float32 \[2, 12, 12\], numbers to add .* booleans or 0 and 1, \[B, tokens\] or"
    with pytest.raises(ValueError, match=message):
        logits("flashmask", attention_mask=visible().float())


def layer(**arguments):
    query, key = torch.randn(2, 4, TOKENS, 8), torch.randn(2, 2, TOKENS, 8)
    module = torch.nn.Module()
    return flashmask_attention_forward(module, query, key, key, arguments.pop("attention_mask", None), **arguments)


def test_a_layer_takes_its_own_masks_of_rank_three_only():
    layer(attention_mask=flashmask_mask(batch_size=2, q_length=TOKENS, kv_length=TOKENS))
    with pytest.raises(
        ValueError, match=r"attention_mask has shape \[2, 12, 12\]; expected \[2, 12\], .* \[2, 1, 12, 12\]"
    ):
        layer(attention_mask=visible())


@pytest.mark.parametrize("named", [{"cache": object()}, {}], ids=["older", "newer"])
def test_continuous_batching_is_named(named):
    """Its keywords as Transformers hands them on, in their order."""
    ends = torch.tensor([0, TOKENS])
    with pytest.raises(
        ValueError, match=r"came to flashmask's attention: a paged cache \(continuous batching\) is not"
    ):
        layer(logits_indices=ends, logits_processor_args=ends, read_index=[ends], write_index=[ends], **named)


def near(b, h, i, j):
    return (j <= i) & ((i - j < 4) | (j % 5 == 0))


def block_mask(tokens=TOKENS):
    documents = torch.tensor([[0] * TOKENS, [0] * 5 + [1] * (TOKENS - 5)])
    return create_block_mask(
        lambda b, h, i, j: near(b, h, i, j) & (documents[b, i] == documents[b, j]),
        2,
        None,
        tokens,
        tokens,
        device="cpu",
    )


def test_a_block_mask_of_flex_attention_is_the_mask():
    row, column = torch.arange(TOKENS)[:, None], torch.arange(TOKENS)
    pairs = visible() & near(0, 0, row, column)
    found = logits("flashmask", attention_mask=block_mask())
    torch.testing.assert_close(found, logits("sdpa", attention_mask=pairs[:, None]), atol=1e-5, rtol=1e-5)


def test_block_masks_of_other_sizes_and_beside_row_indices_are_refused():
    with pytest.raises(ValueError, match=r"a BlockMask of shape \(2, 1, 8, 8\); the layer has 12 queries and 12 keys"):
        layer(attention_mask=block_mask(8))
    rows = torch.full((1, 1, TOKENS, 1), TOKENS, dtype=torch.int32)
    with pytest.raises(ValueError, match=r"a BlockMask as attention_mask and startend_row_indices .* came together"):
        layer(attention_mask=block_mask(), startend_row_indices=rows)


def test_masks_that_users_make_of_functions_reach_the_layers():
    """or_mask_function and and_mask_function of Transformers, as a model's own forward would hand them on."""

    def made(attention):
        config = transformers.LlamaConfig(attn_implementation=attention)
        kept = torch.tensor([[1] * TOKENS, [1] * 5 + [0] * 2 + [1] * (TOKENS - 7)])
        return create_causal_mask(
            config, torch.zeros(2, TOKENS, 1), kept, None,
            or_mask_function=lambda b, h, i, j: (i < 4) & (j < 4),
            and_mask_function=lambda b, h, i, j: (i - j).abs() < 6,
        )  # fmt: skip

    found, expected = made("flashmask"), made("sdpa")
    assert found.dtype is torch.int32 and expected.dtype is torch.bool
    found, expected = logits("flashmask", attention_mask=found), logits("sdpa", attention_mask=expected)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
