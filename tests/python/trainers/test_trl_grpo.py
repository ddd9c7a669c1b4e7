# SPDX-License-Identifier: Apache-2.0
"""Policy updates that compute each prompt once against TRL's own, on padded rows."""

import itertools

import pytest

torch = pytest.importorskip("torch", reason="TRL runs on torch")
trl = pytest.importorskip("trl", reason="its trainers are what is tested: scripts/test-trainers trl")
peft = pytest.importorskip("peft", reason="adapters are one of the cases")

from policy_updates import (  # noqa: E402
    CHECKPOINTING,
    GROUP,
    PROMPTS,
    answers,
    assert_same_metrics,
    assert_same_step,
    batch,
    history,
    policy,
    ratios,
    save,
    scores,
    step,
    with_given_answers,
)
from trl import GRPOTrainer, RLOOTrainer  # noqa: E402

import flashmask.transformers  # noqa: E402
from flashmask.trl import SharedPromptGRPOTrainer, SharedPromptRLOOTrainer, share_prompts  # noqa: E402

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
    "checkpointing": {CHECKPOINTING: True},
    "several iterations": {"num_iterations": 2, "beta": 0.04},
    "truncated answers": {"mask_truncated_completions": True},
    "shared in whole units": {"invariant": True},
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


def rollouts():
    """Answers of several turns: what a tool said between them is part of the answer, and marked as not the policy's."""
    generator = torch.Generator().manual_seed(7)

    def roll(prompts, trainer):
        made = answers(len(prompts), generator)
        return {
            "prompt_ids": trainer.processing_class(prompts)["input_ids"],
            "completion_ids": made,
            "logprobs": None,
            "env_mask": [[int(place % 5 < 3) for place in range(len(each))] for each in made],
        }

    return roll


def test_a_run_with_tools_is_that_of_trl(folder):
    made = pair(SharedPromptGRPOTrainer, GRPOTrainer, folder, rollout_func=rollouts)
    for trainer in made:
        trainer.rollout_func = rollouts()
    assert_same_run(*map(trained, made))


@pytest.mark.full
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_of_adapters_is_that_of_trl(loss, level, folder):
    options = {"loss_type": loss, "importance_sampling_level": level, "beta": 0.04, "num_iterations": 2}
    run(SharedPromptGRPOTrainer, GRPOTrainer, folder, **options, peft_config=ADAPTER)


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


SPLIT = {"per_device_train_batch_size": 2 * GROUP, "steps_per_generation": 4, "learning_rate": 0.0, "max_steps": 4}


@pytest.mark.parametrize("size", [GROUP, 2 * GROUP, 3])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_before_an_update_every_ratio_is_exactly_1(dtype, size, folder):
    options = {**SPLIT, "per_device_train_batch_size": size, "dtype": dtype}
    found = ratios(policy(SharedPromptGRPOTrainer, folder, "flashmask", **options))
    assert len(found) == 4 and found == [0.0] * 4


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_whole_units_make_ratios_exactly_1_in_any_order(dtype, folder):
    """Unlike single tokens, for which answers that come together in another call round otherwise."""
    options = {**SPLIT, "dtype": dtype, "keep_order": True}
    assert max(ratios(policy(SharedPromptGRPOTrainer, folder, "flashmask", **options))) > 0
    assert ratios(policy(SharedPromptGRPOTrainer, folder, "flashmask", invariant=True, **options)) == [0.0] * 4


@pytest.mark.parametrize("invariant", [True, False])
def test_another_token_of_an_answer_moves_no_other_answer_by_a_bit(invariant, folder):
    trainer = policy(SharedPromptGRPOTrainer, folder, "flashmask", invariant=invariant)
    given = batch()
    before = scores(trainer, given)[0]
    changed = given["completion_ids"].clone()
    changed[2, 0] = 63 - changed[2, 0]
    moved = (scores(trainer, {**given, "completion_ids": changed})[0] != before).any(1)
    assert moved.nonzero().flatten().tolist() == [2]


def test_nan_stays_in_its_answer_under_whole_units(folder):
    trainer = policy(SharedPromptGRPOTrainer, folder, "flashmask", invariant=True)
    given = batch((150, 150))
    for name in ("prompt_ids", "completion_ids"):
        given[name][given[name] == 61] = 60
    given["completion_ids"][2, 0] = 61
    before = scores(trainer, given)[0]
    trainer.model.get_input_embeddings().weight.data[61] = torch.nan
    after = scores(trainer, given)[0]
    others = torch.arange(len(after)) != 2
    assert torch.equal(after[others], before[others]) and after[2, 1:].isnan().any()


def test_what_a_sampler_says_of_its_tokens_is_weighed_as_in_trl(folder):
    """As vLLM does, whose weights TRL corrects for, by a function of one's own."""
    ratios = []
    for trainer in pair(SharedPromptGRPOTrainer, GRPOTrainer, folder):
        generate = with_given_answers(trainer)._generate_single_turn

        def sample(*given, generate=generate):
            answers = generate(*given)[0]
            return answers, [[-2.0 - 0.1 * token for token in range(len(each))] for each in answers]

        trainer._generate_single_turn, trainer.use_vllm = sample, True
        torch.manual_seed(1)
        held = trainer._prepare_inputs(next(iter(trainer.get_train_dataloader())))
        order = held["completion_ids"].tolist()
        rows = sorted(range(len(order)), key=order.__getitem__)
        ratios.append((held["importance_sampling_ratio"][rows], step(trainer, held)[2]))
    torch.testing.assert_close(ratios[0][0], ratios[1][0], rtol=1e-5, atol=1e-6)
    assert_same_metrics(ratios[0][1], ratios[1][1])


def test_subclasses_that_keep_trls_methods_are_served(folder, trainers, batches, monkeypatch):
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    from trl.experimental.gmpo import GMPOConfig, GMPOTrainer

    ours, theirs = pair(GMPOTrainer, GMPOTrainer, folder, config=GMPOConfig)
    assert share_prompts(ours) is ours
    assert_same_step(*map(step, (ours, theirs), batches))


def test_a_second_call_changes_the_options(folder):
    trainer = share_prompts(policy(GRPOTrainer, folder, "flashmask"))
    given = batch()
    plain = scores(trainer, given)[0]
    aligned = scores(share_prompts(trainer, invariant=True), given)[0]
    assert torch.equal(scores(policy(SharedPromptGRPOTrainer, folder, "flashmask", invariant=True), given)[0], aligned)
    assert torch.equal(scores(share_prompts(trainer), given)[0], plain) and not torch.equal(plain, aligned)


def changed(**attributes):
    """share_prompts() of a trainer one of whose settings, or of its arguments' or its model's, is another one."""

    def share(folder):
        trainer = policy(GRPOTrainer, folder, "flashmask")
        for name, value in attributes.items():
            owner = (
                trainer if hasattr(trainer, name) else trainer.args if hasattr(trainer.args, name) else trainer.model
            )
            setattr(owner, name, value)
        share_prompts(trainer)

    return share


def with_another_attention(folder):
    share_prompts(policy(GRPOTrainer, folder, "sdpa"))


def with_another_reference(folder):
    trainer = policy(GRPOTrainer, folder, "flashmask", beta=0.1)
    trainer.ref_model.set_attn_implementation("sdpa")
    share_prompts(trainer)


def with_another_attention_later(folder):
    trainer = policy(SharedPromptGRPOTrainer, folder, "flashmask")
    trainer.model.set_attn_implementation("eager")
    scores(trainer, batch())


def with_images(folder):
    trainer = policy(SharedPromptGRPOTrainer, folder, "flashmask")
    scores(trainer, batch(), num_images=[1] * 16, pixel_values=torch.zeros(16, 3))


def with_dropout(folder):
    trainer = policy(GRPOTrainer, folder, "flashmask")
    trainer.model.model.layers[1].self_attn.attention_dropout = 0.1
    share_prompts(trainer)
    share_prompts(trainer, invariant=True)


def with_dropout_of_adapters(folder):
    adapter = peft.LoraConfig(r=2, target_modules=["q_proj"], lora_dropout=0.05)
    policy(SharedPromptGRPOTrainer, folder, "flashmask", invariant=True, peft_config=adapter)


def with_a_learnt_prompt(folder):
    learnt = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    policy(SharedPromptGRPOTrainer, folder, "flashmask", peft_config=learnt)


def with_an_empty_prompt(folder):
    given = batch()
    given["prompt_mask"][3] = 0
    scores(policy(SharedPromptGRPOTrainer, folder, "flashmask"), given)


class Parallel:
    cp_enabled, sp_enabled = False, True


def over_ranks(folder):
    trainer = policy(GRPOTrainer, folder, "flashmask")
    trainer.accelerator.state.parallelism_config = Parallel()
    try:
        share_prompts(trainer)
    finally:
        trainer.accelerator.state.parallelism_config = None


REFUSED = {
    "another attention": (with_another_attention, "attn_implementation='sdpa', under which answers to one prompt"),
    "of the reference model": (with_another_reference, "attn_implementation='sdpa', under which answers to one prompt"),
    "set later": (with_another_attention_later, "attn_implementation='eager', under which answers to one prompt"),
    "a state": (changed(_is_stateful=True), "LlamaForCausalLM has layers with a state, which carry one answer"),
    "images": (with_images, "pixel_values came with 16 rows: prompts with images are not shared yet"),
    "balanced experts": (
        changed(aux_loss_enabled=True, router_aux_loss_coef=0.5),
        "router_aux_loss_coef is 0.5: the loss that balances experts would count the tokens of a prompt once, and TRL "
        "counts them 4 times; set router_aux_loss_coef=0.0 in GRPOConfig",
    ),
    "a learnt prompt": (
        with_a_learnt_prompt,
        "adapter 'default' learns a prompt, .* shared prompts are packed without",
    ),
    "continuous batching": (
        changed(use_transformers_continuous_batching=True),
        "use_transformers_continuous_batching is True: generation would need a paged cache",
    ),
    "context parallelism": (over_ranks, r"spreads sequences over ranks \(cp_size or sp_size\)"),
    "dropout": (with_dropout, "model.layers.1.self_attn of LlamaForCausalLM drops with a probability of 0.1, beside"),
    "dropout of adapters": (with_dropout_of_adapters, "lora_dropout.default of .* drops with a probability of 0.05"),
    "an empty prompt": (with_an_empty_prompt, "prompt 3 has no tokens; expected one, which predicts its answer"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", REFUSED)
def test_what_would_mix_answers_or_count_differently_is_refused_by_name(case, folder):
    share, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        share(folder)


def test_other_trainers_are_refused(folder):
    with pytest.raises(TypeError, match=r"share_prompts\(\) got a object; expected a GRPOTrainer, RLOOTrainer or"):
        share_prompts(object())

    class Own(GRPOTrainer):
        def _prepare_inputs(self, inputs):
            return super()._prepare_inputs(inputs)

    with pytest.raises(TypeError, match=r"Own has a _prepare_inputs\(\) of its own in place of GRPOTrainer's"):
        share_prompts(policy(Own, folder, "flashmask"))


@pytest.mark.parametrize("make", [SharedPromptGRPOTrainer, SharedPromptRLOOTrainer, lambda: share_prompts(object())])
def test_another_version_of_trl_is_refused(make, monkeypatch):
    monkeypatch.setattr(trl, "__version__", "1.17.0")
    with pytest.raises(ImportError, match=r"TRL 1.17.0 is installed; .* install trl==1.16"):
        make()


def test_a_group_that_is_cut_is_warned_of(folder):
    expected = "a group of 4 answers is cut over micro-batches of 6, each of which computes its prompt; set per_device"
    with pytest.warns(UserWarning, match=expected):
        policy(SharedPromptGRPOTrainer, folder, "flashmask", per_device_train_batch_size=6, steps_per_generation=2)
