# SPDX-License-Identifier: Apache-2.0
"""torchtitan's models with FlashMaskAttention in the place of VarlenAttention: its own attention on each document."""

import importlib
import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torchtitan runs on torch")
pytest.importorskip("torchtitan", reason="these tests run torchtitan's own models: scripts/test-trainers torchtitan")

from ranks import torchrun  # noqa: E402
from torchtitan.config import ParallelismConfig  # noqa: E402
from torchtitan.config.override import OverrideConfig, apply_overrides  # noqa: E402
from torchtitan.models import llama3  # noqa: E402
from torchtitan.models.common.attention import (  # noqa: E402
    ScaledDotProductAttention,
    VarlenAttention,
    create_varlen_metadata_for_document,
)

from flashmask.integrations.torchtitan import FlashMaskAttention  # noqa: E402

OVERRIDE = OverrideConfig(imports=["flashmask.integrations.torchtitan.flashmask_attention"])
DOCUMENTS = [[5, 1, 10], [16]]  # of the two sequences of a batch


def positions(documents):
    return torch.stack([torch.cat([torch.arange(length) for length in row]) for row in documents])


def draw(*, heads=4, kv_heads=2, dim=16, value_dim=16):
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, 16, heads, dim), (2, 16, kv_heads, dim), (2, 16, kv_heads, value_dim)]
    return [torch.randn(shape, generator=generator, requires_grad=True) for shape in shapes]


def each_document_alone(q, k, v, **options):
    """torchtitan's ScaledDotProductAttention, which knows no documents, on one after another."""
    alone = ScaledDotProductAttention(None)
    sequences = []
    for sequence, lengths in enumerate(DOCUMENTS):
        parts = zip(*(each[sequence : sequence + 1].split(lengths, 1) for each in (q, k, v)), strict=True)
        sequences.append(torch.cat([alone(*part, enable_gqa=q.shape[2] != k.shape[2], **options) for part in parts], 1))
    return torch.cat(sequences)


@pytest.mark.parametrize("value_dim", [16, 8])
def test_attention_and_gradients_are_those_of_torchtitans_own(value_dim):
    masks = create_varlen_metadata_for_document(positions(DOCUMENTS))
    ours = FlashMaskAttention.Config().build()
    inputs = draw(value_dim=value_dim)
    found = ours(*inputs, attention_masks=masks, scale=0.3, enable_gqa=True)
    expected = each_document_alone(*inputs, scale=0.3)
    torch.testing.assert_close(found, expected, atol=2e-6, rtol=1e-5)
    upstream = torch.randn(found.shape, generator=torch.Generator().manual_seed(1))
    gradients = [torch.autograd.grad(each, inputs, upstream, retain_graph=True) for each in (found, expected)]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, atol=5e-6, rtol=1e-5)


def test_a_window_is_the_one_of_varlen_attention():
    """(w, 0): w keys before its own; by hand, token by token."""
    masks = create_varlen_metadata_for_document(positions(DOCUMENTS))
    q, k, v = draw(heads=1, kv_heads=1)
    found = FlashMaskAttention.Config(window_size=(2, 0)).build()(q, k, v, attention_masks=masks)
    for row, begin in ((3, 1), (5, 5), (6, 6), (15, 13)):
        scores = (q[0, row, 0] @ k[0, begin : row + 1, 0].T) / 4
        torch.testing.assert_close(found[0, row, 0], scores.softmax(0) @ v[0, begin : row + 1, 0], atol=1e-6, rtol=1e-5)


def test_out_transform_gets_the_lse_with_its_gradient():
    """As gpt-oss of torchtitan scales by a sink: o · sigmoid(lse - sink) is attention with one more key of value 0."""
    masks = create_varlen_metadata_for_document(torch.arange(16).expand(2, 16))
    q, k, v = draw(heads=1, kv_heads=1)
    module = FlashMaskAttention.Config(window_size=(-1, -1)).build()
    out = module(q, k, v, attention_masks=masks, out_transform=lambda o, lse: o * torch.sigmoid(lse - 0.7)[..., None])
    scores = torch.cat([q[:, :, 0] @ k[:, :, 0].mT / 4, torch.full((2, 16, 1), 0.7)], -1)
    expected = scores.softmax(-1)[..., :-1] @ v[:, :, 0]
    torch.testing.assert_close(out[:, :, 0], expected, atol=1e-6, rtol=1e-5)
    found, wanted = (torch.autograd.grad(each.square().sum(), (q, k, v)) for each in (out, expected))
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, atol=5e-6, rtol=1e-4)


def llama(*, overridden):
    spec = llama3.model_registry("debugmodel", attn_backend="varlen")
    if overridden:
        replaced = apply_overrides(OVERRIDE, spec)
        assert len(replaced) == len(spec.model.layers)
    spec.model.layers = spec.model.layers[:2]
    torch.manual_seed(0)
    model = spec.model.build()
    model.init_states()
    return model


class AloneByHand(torch.nn.Module):
    """In the place of an inner attention."""

    def forward(self, q, k, v, *, attention_masks, scale=None, enable_gqa=False):
        return each_document_alone(q, k, v, scale=scale)


def test_a_model_of_torchtitan_makes_the_masks_and_trains():
    model = llama(overridden=True)
    assert all(isinstance(layer.attention.inner_attention, FlashMaskAttention) for layer in model.layers.values())
    at = positions(DOCUMENTS)
    tokens = torch.randint(0, 2048, (2, 16), generator=torch.Generator().manual_seed(2))
    logits = model(tokens, positions=at, attention_masks=model.get_attention_masks(at))
    logits.logsumexp(-1).sum().backward()
    found = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    for layer in model.layers.values():
        layer.attention.inner_attention = AloneByHand()
    expected = model(tokens, positions=at, attention_masks=None)
    expected.logsumexp(-1).sum().backward()
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)
    for one, other in zip(found, [parameter.grad for parameter in model.parameters()], strict=True):
        torch.testing.assert_close(one, other, atol=2e-4, rtol=1e-3)


def test_no_document_sees_another():
    """A token of one document changes; not a bit of another one's loss does."""
    model = llama(overridden=True)
    at = positions(DOCUMENTS)
    tokens = torch.randint(0, 2048, (2, 16), generator=torch.Generator().manual_seed(2))
    changed = tokens.clone()
    changed[0, 7] += 1  # of the third document
    masks = model.get_attention_masks(at)
    logits, others = (model(each, positions=at, attention_masks=masks) for each in (tokens, changed))
    same = (logits == others).all(-1)
    assert same[0, :6].all() and same[1].all() and not same[0, 7:].any()


@pytest.mark.parametrize(
    ("model", "balancer", "backend"),
    [
        ("llama3", "headtail", "varlen"),
        ("llama3", "", "varlen"),
        ("qwen3", "ptrr", "varlen"),
        ("llama3", "headtail", "flex"),
        ("gpt_oss", "ptrr", "flex"),
    ],
)
def test_two_ranks_of_context_parallelism_have_the_losses_of_one(model, balancer, backend, tmp_path):
    """20 steps through torchtitan's own cp_shard() and apply_cp_to_forward()."""
    program = Path(__file__).with_name("torchtitan_ranks.py")
    for ranks in (1, 2):
        done = torchrun(program, tmp_path, model, balancer, backend, ranks=ranks)
        assert done.returncode == 0, done.stderr[-3000:]
    one, two = (json.loads((tmp_path / f"{ranks}.json").read_text()) for ranks in (1, 2))
    assert len(two) == 20 and two[-1] < two[0] - 0.1
    assert two == pytest.approx(one, rel=2e-5)


@pytest.mark.parametrize("model", ["llama3", "qwen3"])
def test_configs_with_the_override_take_context_parallelism_and_others_stay_refused(model):
    models = importlib.import_module(f"torchtitan.models.{model}")
    trainer = importlib.import_module("torchtitan.trainer").Trainer
    spec = models.model_registry("debugmodel", attn_backend="varlen")
    parallelism = ParallelismConfig(context_parallel_degree=2)
    config = trainer.Config(model_spec=spec, parallelism=parallelism)
    with pytest.raises(NotImplementedError, match="Varlen attention is not supported with CP"):
        spec.model.update_from_config(config=config)
    apply_overrides(OVERRIDE, spec)
    spec.model.update_from_config(config=config)


def test_torchtitans_own_modules_stay_refused_and_its_masks_its_own():
    from torchtitan.distributed.context_parallel import api, apply_cp_to_forward

    with pytest.raises(NotImplementedError, match="Variable-length attention CP is not yet supported"):
        apply_cp_to_forward([torch.nn.Module.__new__(VarlenAttention)], None)
    assert api.apply_cp_to_forward is apply_cp_to_forward
    module = FlashMaskAttention.Config().build()
    apply_cp_to_forward([module], None)
    masks = create_varlen_metadata_for_document(positions(DOCUMENTS))
    with pytest.raises(ValueError, match="or with context parallelism what cp_shard"):
        module(*draw(), attention_masks=masks)


def test_other_masks_and_options_are_refused():
    module = FlashMaskAttention.Config().build()
    inputs = draw()
    with pytest.raises(ValueError, match=r"attention_masks is NoneType; FlashMaskAttention takes a VarlenMetadata"):
        module(*inputs, attention_masks=None)
    masks = create_varlen_metadata_for_document(positions(DOCUMENTS))
    with pytest.raises(ValueError, match="score_mod came to FlashMaskAttention"):
        module(*inputs, attention_masks=masks, score_mod=lambda score, *_: score)
    assert isinstance(FlashMaskAttention.Config(), VarlenAttention.Config)  # which models ask for
