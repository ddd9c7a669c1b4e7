# SPDX-License-Identifier: Apache-2.0
"""Policy updates that compute each prompt once against TRL's own, on padded rows."""

import itertools

import pytest

torch = pytest.importorskip("torch", reason="TRL runs on torch")
trl = pytest.importorskip("trl", reason="its trainers are what is tested: scripts/test-trainers trl")
peft = pytest.importorskip("peft", reason="adapters are one of the cases")

from policy_updates import (  # noqa: E402
    GROUP,
    PROMPTS,
    assert_same_metrics,
    assert_same_step,
    batch,
    history,
    policy,
    save,
    scores,
    step,
    with_given_answers,
)
from trl import GRPOTrainer, RLOOTrainer  # noqa: E402

import flashmask.transformers  # noqa: E402
from flashmask.trl import SharedPromptGRPOTrainer, SharedPromptRLOOTrainer  # noqa: E402

flashmask.transformers.register()

LOSSES = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo")
LEVELS = ("token", "sequence")

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save(tmp_path_factory.mktemp("llama"))


def pair(ours, theirs, folder, **options):
    return policy(ours, folder, "flashmask", **options), policy(theirs, folder, "eager", **options)


def move(model):
    """Makes a reference model that differs from the policy."""
    generator = torch.Generator().manual_seed(3)
    for weight in model.parameters():
        weight.data += 0.05 * torch.randn(weight.shape, generator=generator)


@pytest.fixture(scope="module")
def trainers(folder):
    made = pair(SharedPromptGRPOTrainer, GRPOTrainer, folder, beta=0.04)
    for trainer in made:
        move(trainer.ref_model)
    return made


@pytest.fixture(scope="module")
def batches(trainers):
    """A batch for each of the trainers, with the old log-probabilities of a policy some updates away."""
    given = batch()
    with torch.no_grad():
        old = scores(trainers[1], given)[0]
        noise = 0.3 * torch.randn(old.shape, generator=torch.Generator().manual_seed(2))
        given["old_per_token_logps"] = old + noise
        return [{**given, "ref_per_token_logps": scores(each, given, each.ref_model)[0]} for each in trainers]


def test_log_probabilities_and_entropies_are_those_of_trl(trainers, batches):
    for options in ({}, {"batch_size": 6}):
        ours, theirs = (
            scores(trainer, given, compute_entropy=True, **options)
            for trainer, given in zip(trainers, batches, strict=True)
        )
        for found, expected in zip(ours, theirs, strict=True):
            assert found.requires_grad and found.shape == expected.shape == batches[0]["completion_mask"].shape
            torch.testing.assert_close(found, expected, rtol=2e-6, atol=2e-6)
    torch.testing.assert_close(*(given["ref_per_token_logps"] for given in batches), rtol=2e-6, atol=2e-6)
    assert scores(trainers[0], batches[0])[1] is None


def test_a_prompt_passes_through_the_model_once(trainers, batches):
    seen = []
    hook = trainers[0].model.get_input_embeddings().register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    scores(trainers[0], batches[0])
    scores(trainers[0], batches[0], batch_size=GROUP)
    hook.remove()
    sizes = batches[0]["completion_mask"].sum(1)
    counted = [
        prompt - 1 + sum(int(size) + 1 for size in sizes[number * GROUP :][:GROUP] if size)
        for number, prompt in enumerate(PROMPTS)
    ]
    assert [each.shape for each in seen] == [(1, count) for count in (sum(counted) - PROMPTS[0] + 1, *counted)]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_is_that_of_trl(loss, level, trainers, batches, monkeypatch):
    for beta, trainer in itertools.product((0.0, 0.04), trainers):
        monkeypatch.setattr(trainer, "loss_type", loss)
        monkeypatch.setattr(trainer, "importance_sampling_level", level)
        monkeypatch.setattr(trainer, "beta", beta)
        if trainer is trainers[1]:
            assert_same_step(*map(step, trainers, batches))


SETTINGS = {
    "on policy": {},
    "entropy of few tokens": {"top_entropy_quantile": 0.3},
    "entropy bonus": {"entropy_coef": 0.1, "_entropy_bonus_enabled": True},
    "off-policy mask": {"off_policy_mask_threshold": 0.02},
}


@pytest.mark.parametrize("case", SETTINGS)
def test_settings_of_the_loss_are_those_of_trl(case, trainers, batches, monkeypatch):
    for trainer in trainers:
        for name, value in SETTINGS[case].items():
            monkeypatch.setattr(trainer, name, value)
    if case == "on policy":
        batches = [{name: each for name, each in given.items() if not name.startswith("old")} for given in batches]
    assert_same_step(*map(step, trainers, batches))


def test_results_of_tools_are_read_and_not_trained(trainers, batches):
    tools = torch.ones_like(batches[0]["completion_mask"])
    tools[:, 2:5] = 0
    batches = [{**given, "tool_mask": tools} for given in batches]
    found = [step(trainer, given) for trainer, given in zip(trainers, batches, strict=True)]
    assert_same_step(*found)
    assert found[0][0] != step(trainers[0], {**batches[0], "tool_mask": torch.ones_like(tools)})[0]


def test_a_batch_without_answers_is_one_token_with_gradients_of_zero(trainers, batches):
    batches = [{**given, "completion_mask": torch.zeros_like(given["completion_mask"])} for given in batches]
    seen = []
    hook = trainers[0].model.get_input_embeddings().register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    loss, gradients, _ = step(trainers[0], batches[0])
    hook.remove()
    assert [each.shape for each in seen] == [(1, 1)]
    assert loss == step(trainers[1], batches[1])[0] == 0
    assert all(each is not None and not each.any() for each in gradients.values())


def test_rloo_is_that_of_trl(folder, trainers, batches):
    found = []
    for trainer, given in zip(pair(SharedPromptRLOOTrainer, RLOOTrainer, folder), batches, strict=True):
        old = (given["old_per_token_logps"] * given["completion_mask"]).sum(1)
        found.append(step(trainer, {**given, "old_logps": old}))
    assert_same_step(*found)


def trained(trainer):
    """What a run logged, its evaluation with it, and the weights it ended with."""
    torch.manual_seed(1)
    trainer.train()
    trainer.evaluate()
    return history(trainer), {name: each.detach() for name, each in trainer.model.named_parameters()}


def assert_same_weights(ours, theirs):
    for name, weight in ours[1].items():
        torch.testing.assert_close(weight, theirs[1][name], rtol=2e-5, atol=2e-6)


def assert_same_run(ours, theirs):
    assert len(ours[0]) == len(theirs[0]) == 5
    for entries in zip(ours[0], theirs[0], strict=True):
        assert_same_metrics(*entries)
    assert_same_weights(ours, theirs)


ADAPTER = {"r": 4, "target_modules": ["q_proj", "v_proj"], "init_lora_weights": False}
RUNS = {
    "reference model": {"beta": 0.04},
    "adapter": {"beta": 0.04, "peft_config": ADAPTER},
    "checkpointing": {"activation_checkpointing": True},
    "several iterations": {"num_iterations": 2, "beta": 0.04},
    "truncated answers": {"mask_truncated_completions": True},
    "accumulation, in TRL's order": {
        "per_device_train_batch_size": GROUP,
        "gradient_accumulation_steps": 4,
        "keep_order": True,
    },
}


def run(ours, theirs, folder, compare=assert_same_run, **options):
    if "peft_config" in options:
        options["peft_config"] = peft.LoraConfig(**options["peft_config"])
    shared = {name: options.pop(name) for name in ("keep_order", "invariant") if name in options}
    made = policy(ours, folder, "flashmask", **options, **shared), policy(theirs, folder, "eager", **options)
    compare(*(trained(with_given_answers(each)) for each in made))


@pytest.mark.parametrize("case", RUNS)
def test_a_run_is_that_of_trl(case, folder):
    run(SharedPromptGRPOTrainer, GRPOTrainer, folder, **RUNS[case])


@pytest.mark.parametrize("options", [{"num_iterations": 2, "beta": 0.04}, {"invariant": True}], ids=str)
def test_a_run_of_rloo_is_that_of_trl(options, folder):
    run(SharedPromptRLOOTrainer, RLOOTrainer, folder, **options)


def test_whole_micro_batches_are_shuffled_and_train_as_in_trl(folder):
    """Micro-batches hold other answers than TRL's, whose gradients add up to the same."""
    run(
        SharedPromptGRPOTrainer,
        GRPOTrainer,
        folder,
        compare=assert_same_weights,
        per_device_train_batch_size=GROUP,
        gradient_accumulation_steps=4,
    )


def test_tokens_are_drawn_as_in_trl(folder):
    """Shuffles draw the same random numbers, so that models that agree generate the same answers all along."""
    seen = []
    for trainer in pair(
        SharedPromptGRPOTrainer, GRPOTrainer, folder, per_device_train_batch_size=GROUP, gradient_accumulation_steps=4
    ):
        held = []
        generate = trainer._generate_single_turn
        trainer._generate_single_turn = lambda *given, f=generate, to=held: to.append(f(*given)) or to[-1]
        torch.manual_seed(1)
        trainer.train()
        seen.append(held)
    assert len(seen[0]) == 3 and seen[0] == seen[1]


def ratios(trainer):
    """For each micro-batch of a run without learning, the differences of its log-probabilities from the old ones."""
    found = []
    score = trainer._compute_loss

    def compute_loss(model, inputs):
        with torch.no_grad():
            scored = scores(trainer, inputs)[0]
        found.append(((scored - inputs["old_per_token_logps"]) * inputs["completion_mask"]).abs().max().item())
        return score(model, inputs)

    trainer._compute_loss = compute_loss
    with_given_answers(trainer).train()
    return found


SPLIT = {"per_device_train_batch_size": 2 * GROUP, "steps_per_generation": 4, "learning_rate": 0.0, "max_steps": 4}
SIZES = [2 * GROUP, GROUP, 2]


@pytest.mark.parametrize("size", [GROUP, 2 * GROUP, 3])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_before_an_update_every_ratio_is_exactly_1(dtype, size, folder):
    options = {**SPLIT, "per_device_train_batch_size": size, "dtype": dtype}
    found = ratios(policy(SharedPromptGRPOTrainer, folder, "flashmask", **options))
    assert len(found) == 4 and found == [0.0] * 4
