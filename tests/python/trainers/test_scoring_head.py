# SPDX-License-Identifier: Apache-2.0
"""Log-probabilities out of a model's own call, against its logits."""

import pytest

torch = pytest.importorskip("torch", reason="heads are torch's")
transformers = pytest.importorskip("transformers", reason="models are those of Transformers")

from flashmask.integrations._scoring_head import log_probs_of_call  # noqa: E402

SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "vocab_size": 64, "head_dim": 8}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 0}


def model(family, **options):
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**SIZES, **HEADS, initializer_range=0.5, **options)
    return getattr(transformers, f"{family}ForCausalLM")(config)


def inputs():
    ids = torch.randint(1, 64, (1, 12), generator=torch.Generator().manual_seed(0))
    labels = ids.roll(-1, 1)
    labels[0, 3:5] = -100
    return {"input_ids": ids, "shift_labels": labels, "use_cache": False}


def test_they_are_those_of_the_logits_and_the_head_is_as_before():
    of, given = model("Llama"), inputs()
    found = log_probs_of_call(of, of, given, 0.7)
    assert "forward" not in vars(of.lm_head)
    held = given["shift_labels"] >= 0
    logits = of(given["input_ids"]).logits / 0.7
    chosen = logits.log_softmax(-1).gather(-1, given["shift_labels"].clamp(min=0)[..., None])[..., 0]
    entropy = torch.distributions.Categorical(logits=logits).entropy()
    weights = torch.linspace(0.5, 2, int(held.sum()))
    gradients = []
    for each, expected in zip(found, (chosen, entropy), strict=True):
        torch.testing.assert_close(each[held], expected[held], rtol=1e-5, atol=1e-5)
        assert not each[~held].any()
    for pair in (found, (chosen, entropy)):
        total = sum((each[held] * weights).sum() for each in pair)
        gradients.append(torch.autograd.grad(total, list(of.parameters())))
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("family", "options"), [("Gemma2", {"final_logit_softcapping": 30.0}), ("Granite", {"logits_scaling": 2.0})]
)
def test_a_model_that_changes_logits_after_its_head_is_refused(family, options):
    of = model(family, **options)
    with pytest.raises(ValueError, match=f"{family}ForCausalLM changes logits after its head"):
        log_probs_of_call(of, of, inputs(), 1.0)
    assert "forward" not in vars(of.lm_head)


def test_a_head_with_adapters_is_refused():
    peft = pytest.importorskip("peft", reason="adapters are PEFT's")
    of = peft.get_peft_model(model("Llama"), peft.LoraConfig(target_modules=["lm_head"])).get_base_model()
    with pytest.raises(
        ValueError, match=r"the head of LlamaForCausalLM is a peft\.tuners\.\S+\.Linear; prompts are shared"
    ):
        log_probs_of_call(of, of, inputs(), 1.0)
