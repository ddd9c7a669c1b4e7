# SPDX-License-Identifier: Apache-2.0
"""Shared prompts on a GPU in bfloat16: ratios before an update, and the bits of an answer's attention alone."""

import pytest

torch = pytest.importorskip("torch", reason="TRL runs on torch")
pytest.importorskip("trl", reason="its trainers are what is tested: scripts/test-trainers trl")

from cuda_device import needs_gpu  # noqa: E402
from document_bits import same_bits  # noqa: E402
from policy_updates import CHECKPOINTING, GROUP, batch, policy, ratios, save, scores  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402
from trl_models import SIZES  # noqa: E402

import flashmask.transformers  # noqa: E402
from flashmask import masks  # noqa: E402
from flashmask.data import pack_rollouts  # noqa: E402
from flashmask.transformers._shared_prefix import unit_of_bits  # noqa: E402
from flashmask.trl import SharedPromptGRPOTrainer  # noqa: E402

flashmask.transformers.register()

DEVICE = "cuda"
KERNELS = pytest.mark.parametrize("kernel", ["", "sm80"], ids=["of this GPU", "of mma.sync"])
DIMS = pytest.mark.parametrize("dim", [64, 128])
SPLIT = {"steps_per_generation": 4, "learning_rate": 0.0, "max_steps": 4}

pytestmark = needs_gpu


def trainer_over(folder, dim, **options):
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 4 * dim, "intermediate_size": 6 * dim}
    made = {**SPLIT, "per_device_train_batch_size": 2 * GROUP, "use_cpu": DEVICE == "cpu", "bf16": True, **options}
    return policy(SharedPromptGRPOTrainer, save(folder, **heads), "flashmask", dtype="bfloat16", **made)


@KERNELS
@DIMS
def test_before_an_update_every_ratio_is_exactly_1(dim, kernel, tmp_path, monkeypatch):
    monkeypatch.setenv("FLASHMASK_KERNEL", kernel)
    assert ratios(trainer_over(tmp_path, dim)) == [0.0] * 4


@KERNELS
@DIMS
@pytest.mark.parametrize("invariant", [False, True])
def test_a_policy_that_learns_has_the_scores_of_the_old_one(invariant, dim, kernel, tmp_path, monkeypatch):
    """With gradients and checkpointing, and without, prompts of several tiles."""
    monkeypatch.setenv("FLASHMASK_KERNEL", kernel)
    trainer = trainer_over(tmp_path, dim, invariant=invariant, **{CHECKPOINTING: True})
    trainer.model.train()
    given = {name: each.to(DEVICE) for name, each in batch((1500, 300, 40, 1500)).items()}
    learning = scores(trainer, given)[0]
    with torch.no_grad():
        old = scores(trainer, given)[0]
    assert learning.requires_grad and same_bits(learning, old)


@KERNELS
@DIMS
def test_attention_of_an_answer_has_the_bits_that_it_has_behind_its_prompt_alone(dim, kernel, monkeypatch):
    """Prompts that end within a tile and at its edge, and answers of other lengths in front of each."""
    monkeypatch.setenv("FLASHMASK_KERNEL", kernel)
    model = LlamaForCausalLM(LlamaConfig(**{**SIZES, "hidden_size": 4 * dim, "vocab_size": 62})).bfloat16()
    unit = unit_of_bits(model, torch.device(DEVICE))
    generator = torch.Generator().manual_seed(0)
    prompts = [torch.randint(50, (size,), generator=generator) for size in (300, 1, 1024, 513)]
    sizes = torch.randint(1, 400, (len(prompts), GROUP), generator=generator).tolist()
    rollouts = [
        torch.cat([prompt, torch.randint(50, (size,), generator=generator)])
        for prompt, of_prompt in zip(prompts, sizes, strict=True)
        for size in of_prompt
    ]
    limits = [len(prompt) - 1 for prompt in prompts for _ in range(GROUP)]
    packed = pack_rollouts(rollouts, shared_until=limits, unit=unit)
    tokens = packed["input_ids"].shape[1]
    q, k, v = (torch.randn(1, tokens, heads, dim, generator=generator).bfloat16().to(DEVICE) for heads in (4, 2, 2))

    def attend(mask, *given):
        return flashmask.attention(*given, mask, invariant=True, return_lse=True)

    o, lse = attend(masks.from_startend_row_indices(packed["startend_row_indices"], causal=True), q, k, v)
    different = []
    for rollout, places in zip(rollouts, packed["rows"], strict=True):
        size = len(rollout)
        rows = places[:size].to(DEVICE)
        alone = attend(masks.causal(size, size), *(each[:, rows] for each in (q, k, v)))
        if not (same_bits(o[:, rows], alone[0]) and same_bits(lse[:, :, rows], alone[1])):
            different.append(size)
    assert different == [], f"unit {unit}"
