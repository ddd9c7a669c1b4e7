# SPDX-License-Identifier: Apache-2.0
"""Masks of torchtitan's FlexAttention in FlashMaskFlexAttention. Two ranks are in test_torchtitan.py."""

import pytest

torch = pytest.importorskip("torch", reason="torchtitan runs on torch")
pytest.importorskip("torchtitan", reason="these tests run torchtitan's own masks: scripts/test-trainers torchtitan")

import torch.nn.attention.flex_attention as flex  # noqa: E402
import torchtitan.models.common.attention as titan  # noqa: E402
from attention_oracle import softmax_attention  # noqa: E402
from torchtitan.config.override import OverrideConfig, apply_overrides  # noqa: E402
from torchtitan.models import gpt_oss  # noqa: E402

from flashmask.integrations import _torchtitan_masks as translated  # noqa: E402
from flashmask.integrations.torchtitan import FlashMaskFlexAttention  # noqa: E402

OVERRIDE = OverrideConfig(imports=["flashmask.integrations.torchtitan.flashmask_flex_attention"])
BATCH, TOKENS = 2, 150  # more than one block of a BlockMask, and not whole ones
ONE = torch.cat([torch.arange(length) for length in (60, 1, 89)])[None]
TWO = torch.cat([ONE, torch.arange(TOKENS)[None]])
MODS = {
    "causal": lambda: [titan.get_causal_mask_mod()],
    "documents": lambda: [titan.get_document_mask_mod(TWO)],
    "causal documents": lambda: [
        titan.get_causal_mask_mod(),
        titan.get_efficient_causal_mask_mod_for_packed_document(TWO),
    ],
    "of one sequence": lambda: [
        titan.get_causal_mask_mod(),
        titan.get_efficient_causal_mask_mod_for_packed_document(ONE),
    ],
    "window": lambda: [titan.get_sliding_window_mask_mod(7), titan.get_causal_mask_mod()],
    "window of documents": lambda: [flex.and_masks(*MODS["causal documents"]()), titan.get_sliding_window_mask_mod(1)],
    "fixed blocks": lambda: [titan.get_fixed_block_mask_mod(32)],
    "all": lambda: [titan.get_fixed_block_mask_mod(64), *MODS["documents"](), titan.get_sliding_window_mask_mod(40)],
}


def every_third(b, h, q, k):
    return (k % 3 == 0) | (q == k)


FOREIGN = {
    "another predicate": lambda: [titan.get_causal_mask_mod(), every_third],
    "an alternative": lambda: [flex.or_masks(titan.get_fixed_block_mask_mod(32), titan.get_causal_mask_mod())],
    "half of a mask": lambda: [titan.get_efficient_causal_mask_mod_for_packed_document(ONE)],
    "before the first document": lambda: [
        titan.get_causal_mask_mod(),
        titan.get_efficient_causal_mask_mod_for_packed_document(ONE + (torch.arange(TOKENS) < 5)),
    ],
}


def block_mask(mods):
    return flex.create_block_mask(flex.and_masks(*mods), BATCH, None, TOKENS, TOKENS, device="cpu")


def visible(mods):
    return flex.create_mask(flex.and_masks(*mods), BATCH, 1, TOKENS, TOKENS, device="cpu")


@pytest.mark.parametrize("name", MODS)
def test_torchtitans_masks_are_read_without_a_look_at_pairs(name, monkeypatch):
    monkeypatch.setattr("flashmask.masks._block_mask._evaluated", lambda *_: pytest.fail("pairs were looked at"))
    mods = MODS[name]()
    mask = translated.of_block_mask(block_mask(mods))
    assert mask.form == "intervals"
    found = torch.from_numpy(mask.to_dense()).bool().expand(BATCH, 1, TOKENS, TOKENS)
    assert torch.equal(found, visible(mods))


@pytest.mark.parametrize("name", FOREIGN)
def test_other_predicates_are_read_too(name):
    mods = FOREIGN[name]()
    mask = translated.of_block_mask(block_mask(mods))
    assert torch.equal(torch.from_numpy(mask.to_dense()).bool().expand(BATCH, 1, TOKENS, TOKENS), visible(mods))


def test_blocks_that_were_left_out_stay_hidden():
    given = flex.BlockMask.from_kv_blocks(
        torch.ones(1, 1, 2, dtype=torch.int32),
        torch.zeros(1, 1, 2, 2, dtype=torch.int32),
        mask_mod=every_third,
        seq_lengths=(TOKENS, TOKENS),
    )
    found = torch.from_numpy(translated.of_block_mask(given).to_dense()).bool()[0, 0]
    expected = flex.create_mask(every_third, 1, 1, TOKENS, TOKENS, device="cpu")[0, 0]
    expected[:, 128:] = False
    assert torch.equal(found, expected)


def test_a_mask_is_made_once():
    given = block_mask(MODS["causal documents"]())
    assert translated.of_block_mask(given) is translated.of_block_mask(given)


def draw():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(BATCH, TOKENS, heads, 16, generator=generator, requires_grad=True) for heads in (4, 2, 2)]


@pytest.mark.parametrize("name", ["window of documents", "another predicate"])
def test_attention_and_gradients_under_a_block_mask(name):
    mods = (MODS | FOREIGN)[name]()
    q, k, v = draw()
    module = FlashMaskFlexAttention.Config(block_size=64).build()
    found = module(
        *(q, k, v),
        attention_masks=block_mask(mods),
        scale=0.3,
        enable_gqa=True,
        out_transform=lambda o, lse: o * lse[..., None],
    )
    o, lse = softmax_attention(*(each.double() for each in (q, k, v)), visible(mods), 0.3)
    expected = o * lse.mT[..., None]
    torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=1e-5)
    gradients = [torch.autograd.grad(each.square().sum(), (q, k, v)) for each in (found, expected)]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


def test_layers_compile_as_one_graph_and_no_mask_compiles_again(monkeypatch):
    """torchtitan compiles each of its layers so; the masks that it makes come with ours."""
    module = FlashMaskFlexAttention.Config().build()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    monkeypatch.setattr(titan, "_compiled_create_block_mask", flex.create_block_mask)
    for length in (60, 20, 30):
        positions = torch.cat([torch.arange(length), torch.arange(TOKENS - length)])[None].expand(BATCH, -1)
        mods = [titan.get_causal_mask_mod(), titan.get_efficient_causal_mask_mod_for_packed_document(positions)]
        mask = titan.create_attention_mask(flex.and_masks(*mods), BATCH, None, TOKENS, TOKENS, device="cpu")
        q, k, v = draw()
        found = compiled(q, k, v, attention_masks=mask)
        expected, _ = softmax_attention(*(each.double() for each in (q, k, v)), visible(mods))
        torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=1e-5)
        found.sum().backward()
        monkeypatch.setattr(torch._dynamo.config, "error_on_recompile", length == 20)


def test_the_override_gives_each_layer_the_module_and_the_model_its_masks():
    """gpt-oss has a window in every other layer, hence two masks."""
    spec = gpt_oss.model_registry("debugmodel", attn_backend="flex")
    replaced = apply_overrides(OVERRIDE, spec)
    assert len(replaced) == len(spec.model.layers)
    for layer in spec.model.layers:
        assert isinstance(layer.attention.inner_attention, FlashMaskFlexAttention.Config)


def test_other_masks_and_options_are_refused():
    module = FlashMaskFlexAttention.Config().build()
    with pytest.raises(ValueError, match="attention_masks is NoneType; FlashMaskFlexAttention takes a BlockMask"):
        module(*draw(), attention_masks=None)
    mask = block_mask(MODS["causal"]())
    with pytest.raises(ValueError, match="score_mod came to FlashMaskFlexAttention"):
        module(*draw(), attention_masks=mask, score_mod=lambda score, *_: score)
    module.is_spread = True
    with pytest.raises(ValueError, match="or with context parallelism what cp_shard"):
        module(*draw(), attention_masks=mask)
