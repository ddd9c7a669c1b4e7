# SPDX-License-Identifier: Apache-2.0
"""T5 and a model of speech, whose scores have a learned bias: the same outputs and gradients as eager attention."""

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="Transformers runs on torch")
transformers = pytest.importorskip("transformers", reason="tests its integration")

from cuda_device import needs_gpu  # noqa: E402

import flashmask.transformers  # noqa: E402
from flashmask.transformers._attention import flashmask_attention_forward  # noqa: E402

NAMES = ("masks", "masks-everywhere")
flashmask.transformers.register(NAMES[0])
flashmask.transformers.register(NAMES[1], visit="all")


def model(implementation, dropout=0.0):
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=64,
        d_model=32,
        d_kv=16,
        d_ff=48,
        num_layers=2,
        num_heads=4,
        relative_attention_num_buckets=8,
        relative_attention_max_distance=20,
        dropout_rate=dropout,
        decoder_start_token_id=0,
    )
    return transformers.AutoModelForSeq2SeqLM.from_config(config, attn_implementation=implementation)


def batch():
    generator = torch.Generator().manual_seed(1)
    present = torch.ones(2, 37, dtype=torch.long)
    present[1, 30:] = 0
    return {
        "input_ids": torch.randint(1, 64, (2, 37), generator=generator),
        "attention_mask": present,
        "labels": torch.randint(1, 64, (2, 19), generator=generator),
    }


@pytest.mark.parametrize("name", NAMES)
def test_t5_learns_its_bias_as_under_eager(name):
    found = []
    for implementation in ("eager", name):
        made = model(implementation)
        out = made(**batch())
        out.loss.backward()
        found.append((out.logits.detach(), {name: p.grad for name, p in made.named_parameters()}))
    torch.testing.assert_close(found[1][0], found[0][0], atol=2e-5, rtol=1e-4)
    learned = [name for name in found[0][1] if "relative_attention_bias" in name]
    assert len(learned) == 2 and all(found[0][1][name].abs().max() > 0 for name in learned)
    for parameter, gradient in found[0][1].items():
        torch.testing.assert_close(found[1][1][parameter], gradient, atol=1e-5, rtol=1e-3, msg=parameter)


@needs_gpu
def test_t5_learns_its_bias_on_a_gpu_as_under_eager():
    """In bfloat16: at most twice as far from eager attention in float32 as eager attention in bfloat16."""
    found = []
    for implementation, dtype in (("eager", torch.float32), ("eager", torch.bfloat16), (NAMES[0], torch.bfloat16)):
        made = model(implementation).to("cuda", dtype)
        out = made(**{name: each.cuda() for name, each in batch().items()})
        out.loss.backward()
        learned = {name: p.grad for name, p in made.named_parameters() if "relative_attention_bias" in name}
        assert len(learned) == 2
        found.append([out.logits.detach().double(), *(each.double() for each in learned.values())])
    for exact, naive, ours in zip(*found, strict=True):
        assert (ours - exact).norm() <= 2 * (naive - exact).norm() + 1e-3 * exact.norm()


def test_the_bias_of_queries_and_distances_of_speech_models_is_learned_as_under_eager():
    generator = torch.Generator().manual_seed(1)
    present = torch.ones(2, 37, dtype=torch.long)
    present[1, 30:] = 0
    given = {"input_features": torch.randn(2, 37, 20, generator=generator), "attention_mask": present}
    sizes = {"hidden_size": 32, "output_hidden_size": 32, "intermediate_size": 48, "feature_projection_input_dim": 20}
    kept = dict.fromkeys(
        ("hidden_dropout", "attention_dropout", "activation_dropout", "feat_proj_dropout", "conformer_conv_dropout"),
        0.0,
    )
    found = []
    for implementation in ("eager", NAMES[0]):
        torch.manual_seed(0)
        config = transformers.Wav2Vec2BertConfig(
            num_hidden_layers=2, num_attention_heads=4, layerdrop=0.0, apply_spec_augment=False, **sizes, **kept
        )
        made = transformers.AutoModel.from_config(config, attn_implementation=implementation).train()
        out = made(**given).last_hidden_state
        out.sin().sum().backward()
        found.append((out.detach(), {name: p.grad for name, p in made.named_parameters() if p.grad is not None}))
    torch.testing.assert_close(found[1][0], found[0][0], atol=2e-5, rtol=1e-4)
    assert found[0][1].keys() == found[1][1].keys()
    assert any("distance_embedding" in name for name in found[0][1])
    for parameter, gradient in found[0][1].items():
        torch.testing.assert_close(found[1][1][parameter], gradient, atol=2e-5, rtol=1e-3, msg=parameter)


def test_t5_generates_what_eager_does():
    ids = batch()["input_ids"]
    tokens = [
        model(name).eval().generate(ids, max_new_tokens=8, min_new_tokens=8, do_sample=False)
        for name in ("eager", NAMES[0])
    ]
    assert torch.equal(*tokens)


def test_t5_trains_with_its_dropout():
    made = model(NAMES[0], dropout=0.1).train()
    losses = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        losses.append(made(**batch()).loss)
    assert losses[0] == losses[1] != losses[2]
    losses[2].backward()
    assert all(torch.isfinite(p.grad).all() for p in made.parameters())


def test_where_it_is_not_served_a_bias_is_refused_by_name():
    q, k = torch.zeros(1, 4, 6, 8), torch.zeros(1, 2, 6, 8)
    layer = SimpleNamespace(config=SimpleNamespace(_attn_implementation=NAMES[0]), training=False)
    bias = torch.zeros(1, 4, 6, 6)
    with pytest.raises(ValueError, match="position_bias came to flashmask's attention with tokens spread over ranks"):
        flashmask_attention_forward(layer, q, k, k, None, position_bias=bias, sharding=object())
