# SPDX-License-Identifier: Apache-2.0
"""TRL's Online DPO with each prompt computed once for its two answers, against TRL's own on padded rows."""

import pytest

torch = pytest.importorskip("torch", reason="TRL runs on torch")
trl = pytest.importorskip("trl", reason="its trainers are what is tested: scripts/test-trainers trl")
peft = pytest.importorskip("peft", reason="adapters are one of the cases")

import transformers  # noqa: E402
from datasets import Dataset  # noqa: E402
from policy_updates import assert_same_gradients, reward, save  # noqa: E402
from trl_models import sentence, tokenizer  # noqa: E402

import flashmask.transformers  # noqa: E402
from flashmask.trl import share_prompts  # noqa: E402

flashmask.transformers.register()

pytestmark = pytest.mark.usefixtures("one_thread")

#: What TRL sums over padding too.
PADDED = ("objective/kl", "objective/non_score_reward", "objective/rlhf_reward", "objective/entropy")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save(tmp_path_factory.mktemp("llama"))


@pytest.fixture(autouse=True)
def silence(monkeypatch):
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")


def online(folder, attention, *, kind=None, peft_config=None, **options):
    from trl.experimental.online_dpo import OnlineDPOConfig, OnlineDPOTrainer

    generator = torch.Generator().manual_seed(5)
    settled = {
        "output_dir": str(folder) + "-out",
        "per_device_train_batch_size": 4,
        "max_new_tokens": 12,
        "max_length": 64,
        "max_steps": 1,
        "beta": 0.5,
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
        "bf16": False,
        "activation_checkpointing": False,
    }
    model, reference = (
        transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation=attention, dtype="float32")
        for _ in range(2)
    )
    for weight in reference.parameters():
        weight.data *= 0.9
    return (kind or OnlineDPOTrainer)(
        model,
        ref_model=None if peft_config else reference,
        reward_funcs=reward,
        args=OnlineDPOConfig(**{**settled, **options}),
        train_dataset=Dataset.from_dict({"prompt": [sentence(generator, 2, 24) for _ in range(8)]}),
        processing_class=tokenizer(),
        peft_config=peft_config,
    )


def stepped(trainer):
    """Loss, gradients and metrics of the first batch, and the number of tokens that its update computes."""
    torch.manual_seed(1)
    seen = []
    batch = next(iter(trainer.get_train_dataloader()))
    generate = trainer._generate

    def generated(*given):
        found = generate(*given)
        trainer.model.get_input_embeddings().register_forward_pre_hook(lambda _, ids: seen.append(ids[0].numel()))
        return found

    trainer._generate = generated
    loss = trainer.training_step(trainer.model, batch)
    gradients = {name: each.grad for name, each in trainer.model.named_parameters() if each.requires_grad}
    return loss, gradients, {name: value for name, value in trainer.stats.items() if name not in PADDED}, seen[0]


ADAPTER = {"r": 4, "target_modules": ["q_proj", "v_proj"], "init_lora_weights": False}
CASES = {
    "sigmoid": {},
    "ipo": {"loss_type": "ipo"},
    "a penalty where no token ends": {"missing_eos_penalty": 0.5},
    "prompts that are cut": {"max_length": 20},
    "adapter": {"peft_config": ADAPTER},
}


@pytest.mark.parametrize("case", CASES)
def test_a_step_is_that_of_trl(case, folder):
    options = dict(CASES[case])
    found = []
    for attention in ("flashmask", "eager"):
        if "peft_config" in options:
            options["peft_config"] = peft.LoraConfig(**ADAPTER)
        trainer = online(folder, attention, **options)
        found.append(stepped(share_prompts(trainer) if attention == "flashmask" else trainer))
    ours, theirs = found
    torch.testing.assert_close(ours[0], theirs[0], rtol=2e-6, atol=1e-6)
    assert_same_gradients(ours[1], theirs[1])
    assert ours[2].keys() == theirs[2].keys()
    for name, values in ours[2].items():
        torch.testing.assert_close(values, theirs[2][name], rtol=1e-5, atol=1e-5, msg=name)
    assert ours[3] < 0.8 * theirs[3]


def test_another_attention_is_refused(folder):
    with pytest.raises(ValueError, match="attn_implementation='sdpa', under which answers to one prompt would see"):
        share_prompts(online(folder, "sdpa"))


def test_trainers_with_a_step_of_their_own_are_refused(folder):
    from trl.experimental.online_dpo import OnlineDPOTrainer

    class Own(OnlineDPOTrainer):
        def training_step(self, *given):
            return super().training_step(*given)

    with pytest.raises(TypeError, match=r"Own has a training_step\(\) of its own in place of OnlineDPOTrainer's"):
        share_prompts(online(folder, "flashmask", kind=Own))
