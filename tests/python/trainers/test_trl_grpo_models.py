# SPDX-License-Identifier: Apache-2.0
"""Families of models under shared prompts: scores and gradients of TRL's padded rows, and bits of an answer alone."""

import pytest

torch = pytest.importorskip("torch", reason="TRL runs on torch")
pytest.importorskip("trl", reason="its trainers are what is tested: scripts/test-trainers trl")

import transformers  # noqa: E402
from policy_updates import PROMPTS, assert_same_gradients, batch, policy, save, scores  # noqa: E402
from trl import GRPOTrainer  # noqa: E402
from trl_models import SIZES  # noqa: E402

import flashmask.transformers  # noqa: E402
from flashmask.trl import SharedPromptGRPOTrainer  # noqa: E402

flashmask.transformers.register()

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:.*window:UserWarning"),
]
BASE = {**SIZES, "vocab_size": 62, "pad_token_id": 0}
HEADS = {**BASE, "head_dim": 8}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
STATES = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "shared_expert_intermediate_size": 16,
}
WINDOW = {"sliding_window": 8}
HYBRID = ["sliding_attention", "full_attention"]
FAMILIES = {
    "Llama": lambda: transformers.LlamaConfig(**BASE),
    "Qwen3": lambda: transformers.Qwen3Config(**HEADS),
    "Gemma 2": lambda: transformers.Gemma2Config(
        **HEADS, **WINDOW, final_logit_softcapping=3.0, attn_logit_softcapping=5.0
    ),
    "Gemma 3": lambda: transformers.Gemma3TextConfig(**HEADS, **WINDOW, layer_types=HYBRID),
    "Mistral": lambda: transformers.MistralConfig(**HEADS, **WINDOW),
    "Granite": lambda: transformers.GraniteConfig(**BASE, logits_scaling=4.0),
    "Qwen3-MoE": lambda: transformers.Qwen3MoeConfig(**HEADS, **EXPERTS),
    "Qwen3-Next": lambda: transformers.Qwen3NextConfig(**HEADS, **EXPERTS, **STATES),
}
BALANCED = ("Qwen3-MoE", "Qwen3-Next")  # with a loss that balances experts unless it is turned off


@pytest.fixture(params=FAMILIES)
def family(request, tmp_path):
    """A family's name, the folder of a small model and what trainers over it take."""
    made = save(tmp_path, lambda: transformers.AutoModelForCausalLM.from_config(FAMILIES[request.param]()))
    return request.param, made, {"router_aux_loss_coef": 0.0} if request.param in BALANCED else {}


def scored(trainer, given):
    """Log-probabilities and entropies of a batch, and the gradients of a weighted sum of both."""
    found = scores(trainer, given, compute_entropy=True)
    generator = torch.Generator().manual_seed(4)
    weights = [torch.randn(each.shape, generator=generator) * given["completion_mask"] for each in found]
    sum((each * weight).sum() for each, weight in zip(found, weights, strict=True)).backward()
    named = trainer.model.named_parameters()
    return found, {name: each.grad for name, each in named if each.grad is not None}


@pytest.mark.parametrize("invariant", [False, True])
def test_scores_and_gradients_are_those_of_trl(invariant, family):
    _, folder, options = family
    given = batch((150, 131, 150) if invariant else PROMPTS)
    ours = scored(policy(SharedPromptGRPOTrainer, folder, "flashmask", invariant=invariant, **options), given)
    theirs = scored(policy(GRPOTrainer, folder, "eager", **options), given)
    for found, expected in zip(ours[0], theirs[0], strict=True):
        torch.testing.assert_close(found, expected, rtol=5e-6, atol=5e-6)
    assert_same_gradients(ours[1], theirs[1])


def alone(trainer, given, row):
    """Log-probabilities of an answer from its prompt and itself, without padding."""
    parts = [given[name][row][given[f"{name[:-3]}mask"][row].bool()] for name in ("prompt_ids", "completion_ids")]
    ids = torch.cat(parts)[None]
    found = trainer.model(input_ids=ids, labels=ids, fused_lm_head=True, invariant=True)
    return found.log_probs[0, len(parts[0]) - 1 :]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_answer_has_the_bits_that_it_has_behind_its_prompt_alone(dtype, family):
    name, folder, options = family
    if name in BALANCED:
        pytest.skip("products over the tokens of an expert round by how many there are")
    given = batch((150, 300, 150))
    trainer = policy(SharedPromptGRPOTrainer, folder, "flashmask", dtype=dtype, invariant=True, **options)
    with torch.no_grad():
        together = scores(trainer, given)[0]
        for row, (found, mask) in enumerate(zip(together, given["completion_mask"], strict=True)):
            assert torch.equal(found[mask.bool()], alone(trainer, given, row)[: mask.sum()]), f"row {row}"
