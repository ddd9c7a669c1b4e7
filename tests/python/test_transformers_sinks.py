"""gpt-oss, whose layers have attention sinks: the same logits and gradients as eager attention, alone and packed."""

import pytest

torch = pytest.importorskip("torch", reason="Transformers runs on torch")
transformers = pytest.importorskip("transformers", reason="tests its integration")

import flashmask.transformers  # noqa: E402

# Of a name with "flash" in it Transformers thinks that it is FlashAttention, and takes another kernel for gpt-oss.
NAME = "masks"
LENGTHS = [7, 1, 12, 4]
flashmask.transformers.register(NAME)
flashmask.transformers.register("masks-everywhere", visit="all")


def model(implementation):
    torch.manual_seed(0)
    config = transformers.GptOssConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        vocab_size=40,
        num_local_experts=2,
        num_experts_per_tok=1,
        sliding_window=5,
        layer_types=["sliding_attention", "full_attention"],
        max_position_embeddings=128,
        pad_token_id=0,
    )
    made = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=implementation).eval()
    for layer in made.model.layers:
        torch.nn.init.normal_(layer.self_attn.sinks, std=2)
    return made


def gradients(made, logits):
    weights = torch.randn(logits.shape, generator=torch.Generator().manual_seed(2))
    made.zero_grad()
    (logits * weights).sum().backward()
    return {name: p.grad for name, p in made.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("name", [NAME, "masks-everywhere"])
def test_packed_documents_are_each_document_alone(name):
    eager, ours = model("eager"), model(name)
    ids = torch.randint(1, 40, (1, sum(LENGTHS)), generator=torch.Generator().manual_seed(1))
    positions = torch.cat([torch.arange(length) for length in LENGTHS])[None]
    alone = torch.cat([eager(part, use_cache=False).logits for part in ids.split(LENGTHS, 1)], 1)
    packed = ours(ids, position_ids=positions, use_cache=False).logits
    torch.testing.assert_close(packed, alone, atol=2e-6, rtol=1e-5)
    expected, found = gradients(eager, alone), gradients(ours, packed)
    assert "model.layers.0.self_attn.sinks" in found
    for parameter, gradient in expected.items():
        torch.testing.assert_close(found[parameter], gradient, atol=2e-5, rtol=1e-4, msg=parameter)


def test_sinks_change_the_logits_and_generation_keeps_them():
    eager, ours = model("eager"), model(NAME)
    ids = torch.randint(1, 40, (1, 9), generator=torch.Generator().manual_seed(1))
    expected, found = (each.generate(ids, max_new_tokens=8, do_sample=False) for each in (eager, ours))
    assert torch.equal(found, expected)
    with torch.no_grad():
        before = ours(ids).logits
        ours.model.layers[0].self_attn.sinks += 3
        assert not torch.allclose(ours(ids).logits, before)
