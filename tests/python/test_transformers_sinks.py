# SPDX-License-Identifier: Apache-2.0
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


def attention_by_formula(q, k, v, visible, sinks):
    """q [B, Hq, Sq, D], k and v [B, Hkv, Sk, D], sinks [B, Hq, Sq, 1]; rows of the result lie [B, Sq, Hq, D]."""
    group = q.shape[1] // k.shape[1]
    scores = q @ k.repeat_interleave(group, 1).transpose(2, 3) * q.shape[3] ** -0.5
    scores = scores.masked_fill(~visible, float("-inf"))
    weights = torch.cat([scores, sinks], -1).softmax(-1)[..., :-1]
    return (weights @ v.repeat_interleave(group, 1)).transpose(1, 2)


def layer_inputs(rows, keys):
    generator = torch.Generator().manual_seed(3)
    shapes = [(2, 4, rows, 8), (2, 2, keys, 8), (2, 2, keys, 8), (2, 4, rows, 1)]
    return [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]


@pytest.mark.parametrize("rows", [30, 5, 1], ids=["prompt", "drafts", "one token"])
@pytest.mark.parametrize("last", [True, False], ids=["a last dimension of 1", "as lse"])
def test_sinks_of_each_query_are_those_of_the_formula(rows, last):
    """As Inkling's layers hand them on, which beside them have a bias that keeps these models away."""
    q, k, v, sinks = layer_inputs(rows, 30)
    module = torch.nn.Module().eval()
    given = sinks if last else sinks[..., 0]
    key = torch.arange(30)
    ends = torch.where(key < 7, 20, 30) - (30 - rows)  # later rows do not see the first keys
    begins = key - (30 - rows)
    indices = torch.stack([ends, begins], -1).clamp(min=0).int()[None, None]
    if rows == 30:
        options = {"startend_row_indices": indices[..., :1], "is_causal": True}
    else:
        options = {"startend_row_indices": indices, "is_causal": False}
    found, _ = flashmask.transformers.flashmask_attention_forward(module, q, k, v, None, sinks=given, **options)
    row = torch.arange(30 - rows, 30)[:, None]
    visible = (key <= row) & ~((key < 7) & (row >= 20))
    expected = attention_by_formula(q, k, v, visible, sinks)
    torch.testing.assert_close(found, expected, atol=2e-6, rtol=1e-5)
    weights = torch.randn(expected.shape, generator=torch.Generator().manual_seed(4))
    right, ours = (torch.autograd.grad((each * weights).sum(), (q, k, v, sinks)) for each in (expected, found))
    for name, a, b in zip(("q", "k", "v", "sinks"), ours, right, strict=True):
        torch.testing.assert_close(a, b, atol=2e-5, rtol=1e-4, msg=name)


def test_sinks_of_heads_and_of_queries_at_once_are_refused():
    q, k, v, sinks = (each.detach() for each in layer_inputs(6, 6))
    with pytest.raises(ValueError, match="s_aux and sinks came to flashmask's attention"):
        flashmask.transformers.flashmask_attention_forward(
            torch.nn.Module(), q, k, v, None, sinks=sinks, s_aux=torch.zeros(4)
        )
    with pytest.raises(ValueError, match=r"sinks has shape \[2, 4, 5\]; expected"):
        flashmask.transformers.flashmask_attention_forward(torch.nn.Module(), q, k, v, None, sinks=sinks[:, :, :5])
