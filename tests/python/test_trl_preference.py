# SPDX-License-Identifier: Apache-2.0
"""Preference trainers that hold a question once against TRL's own, on padded pairs."""

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="TRL runs on torch")
trl = pytest.importorskip("trl", reason="its trainers are what is tested")
peft = pytest.importorskip("peft", reason="adapters are one of the cases")

import transformers  # noqa: E402
from trl import DPOConfig, DPOTrainer, RewardConfig, RewardTrainer  # noqa: E402
from trl_models import SIZES, language_model, preferences, reward_model, tokenizer  # noqa: E402

import flashmask.transformers  # noqa: E402
from flashmask.trl import SharedQuestionDPOTrainer, SharedQuestionRewardTrainer  # noqa: E402

flashmask.transformers.register()

OURS, THEIRS = (SharedQuestionDPOTrainer, SharedQuestionRewardTrainer), (DPOTrainer, RewardTrainer)
LOSSES = (
    *("sigmoid", "hinge", "ipo", "exo_pair", "nca_pair", "robust", "bco_pair", "sppo_hard", "aot", "aot_unpaired"),
    *("apo_zero", "apo_down", "discopop", "sft", "sigmoid_norm"),
)


TIMES = ("runtime", "per_second", "flos")


pytestmark = pytest.mark.usefixtures("one_thread")


def arguments(kind, folder, **options):
    settled = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 4,
        "max_steps": 3,
        "learning_rate": 1e-3,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
        "bf16": False,
        "activation_checkpointing": False,
    }
    return kind(**{**settled, **options})


def attention_of(kind):
    return "flashmask" if kind in OURS else "eager"


def dpo(kind, folder, *, data=None, model=None, named=None, **options):
    """A trainer over a small Llama, or what `model` makes of the name of an attention implementation."""
    made = (model or language_model)(attention_of(kind))
    references = {"ref_model": language_model(attention_of(kind), seed=1)} if named is None and model is None else {}
    return kind(
        model=made,
        **(references if named is None else named),
        args=arguments(DPOConfig, folder, **options),
        train_dataset=data or preferences(),
        eval_dataset=preferences(4, seed=9),
        processing_class=tokenizer(),
    )


def reward(kind, folder, *, data=None, **options):
    return kind(
        model=reward_model(attention_of(kind)),
        args=arguments(RewardConfig, folder, **options),
        train_dataset=data or preferences(),
        eval_dataset=preferences(4, seed=9),
        processing_class=tokenizer(),
    )


def first_batch(trainer):
    return trainer._prepare_inputs(next(iter(trainer.get_train_dataloader())))


def step(trainer):
    """Loss, gradients and metrics of the first batch."""
    trainer.model.zero_grad()
    trainer._total_train_tokens = 0
    loss = trainer.compute_loss(trainer.model, first_batch(trainer))
    loss.backward()
    gradients = {name: each.grad for name, each in trainer.model.named_parameters() if each.requires_grad}
    return loss.detach(), gradients, {name: values[-1] for name, values in trainer._metrics["train"].items()}


def assert_close(found, expected):
    assert found.keys() == expected.keys()
    for name, value in found.items():
        assert value == pytest.approx(expected[name], rel=1e-4, abs=2e-5), name


def assert_same_step(ours, theirs):
    (loss, gradients, metrics), (other_loss, other_gradients, other_metrics) = map(step, (ours, theirs))
    torch.testing.assert_close(loss, other_loss, rtol=2e-6, atol=2e-6)
    assert gradients.keys() == other_gradients.keys() and len(gradients) > 3
    for name, gradient in gradients.items():
        bound = 2e-5 * other_gradients[name].abs().max().item() + 1e-9
        torch.testing.assert_close(gradient, other_gradients[name], rtol=0, atol=bound)
    assert sum(each.abs().max().item() for each in gradients.values()) > 0
    assert_close(metrics, other_metrics)


@pytest.fixture(scope="module")
def trainers(tmp_path_factory):
    return [dpo(kind, tmp_path_factory.mktemp("dpo")) for kind in (SharedQuestionDPOTrainer, DPOTrainer)]


def test_a_question_is_computed_once(trainers):
    trainer = trainers[0]
    batch = first_batch(trainer)
    lengths = batch["attention_mask"].sum(1)
    shared = [
        int((one == other).long().cumprod(0)[: min(m, n) - 1].sum())
        for one, other, m, n in zip(*batch["input_ids"].chunk(2), *lengths.chunk(2), strict=True)
    ]
    assert min(shared) >= 3
    assert batch["shared_questions"]["input_ids"].shape == (1, int(lengths.sum()) - sum(shared))
    seen = []
    hook = trainer.model.model.layers[0].register_forward_pre_hook(lambda _, given: seen.append(given[0].shape[:2]))
    trainer.compute_loss(trainer.model, batch)
    hook.remove()
    assert seen == [batch["shared_questions"]["input_ids"].shape]


@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_of_dpo_is_that_of_trl(loss, trainers, monkeypatch):
    for trainer in trainers:
        monkeypatch.setattr(trainer, "loss_types", [loss])
        monkeypatch.setattr(trainer, "label_smoothing", 0.1)
    assert_same_step(*trainers)


SETTINGS = {
    "several losses": {"loss_types": ["sigmoid", "bco_pair", "sft"], "loss_weights": [0.8, 0.2, 1.0]},
    "weights of tokens": {"ld_alpha": 0.5},
    "another divergence": {"f_divergence_type": "js_divergence"},
}


@pytest.mark.parametrize("case", SETTINGS)
def test_settings_of_the_loss_are_those_of_trl(case, trainers, monkeypatch):
    for trainer in trainers:
        for name, value in SETTINGS[case].items():
            monkeypatch.setattr(trainer, name, value)
    assert_same_step(*trainers)


OPTIONS = {
    "weights of pairs": {"use_weighting": True},
    "cut behind": {"max_length": 9},
    "cut before": {"max_length": 9, "truncation_mode": "keep_end"},
    "padded to a multiple": {"pad_to_multiple_of": 16},
    "checkpointed": {"activation_checkpointing": True},
}


@pytest.mark.parametrize("case", OPTIONS)
def test_options_of_dpo_are_those_of_trl(case, tmp_path):
    ours, theirs = (dpo(kind, tmp_path, **OPTIONS[case]) for kind in (SharedQuestionDPOTrainer, DPOTrainer))
    assert_same_step(ours, theirs)


def test_precomputed_references_are_those_of_trl(tmp_path):
    options = {"precompute_ref_log_probs": True, "precompute_ref_batch_size": 3}
    ours, theirs = (dpo(kind, tmp_path, **options) for kind in (SharedQuestionDPOTrainer, DPOTrainer))
    for name in ("ref_chosen_logps", "ref_rejected_logps"):
        found, expected = (torch.tensor(trainer.train_dataset[name]) for trainer in (ours, theirs))
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert_same_step(ours, theirs)


def test_references_are_precomputed_on_packed_pairs(tmp_path, monkeypatch):
    seen = []
    precompute = DPOTrainer.compute_ref_log_probs
    monkeypatch.setattr(
        DPOTrainer,
        "compute_ref_log_probs",
        lambda *given: seen.append("shared_questions" in given[2]) or precompute(*given),
    )
    dpo(SharedQuestionDPOTrainer, tmp_path, data=preferences(seed=21), precompute_ref_log_probs=True)
    assert seen and all(seen)


def test_adapters_are_trained_against_the_model_without_them(tmp_path):
    lora = {"peft_config": peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)}
    ours, theirs = (dpo(kind, tmp_path, named=lora) for kind in (SharedQuestionDPOTrainer, DPOTrainer))
    assert_same_step(ours, theirs)
    assert all("lora" in name for name, each in ours.model.named_parameters() if each.requires_grad)


def windowed(attention):
    torch.manual_seed(0)
    sizes = transformers.MistralConfig(**SIZES, vocab_size=62, sliding_window=4, attn_implementation=attention)
    return transformers.MistralForCausalLM(sizes)


def test_windows_reach_back_from_an_answer_into_its_question(tmp_path):
    ours, theirs = (
        dpo(kind, tmp_path, model=windowed, named={"ref_model": windowed(attention_of(kind))})
        for kind in (SharedQuestionDPOTrainer, DPOTrainer)
    )
    assert_same_step(ours, theirs)


def hybrid(attention, seed=0):
    """A small Qwen3-Next without experts: a gated delta rule, then attention."""
    torch.manual_seed(seed)
    sizes = transformers.Qwen3NextConfig(
        **SIZES,
        vocab_size=62,
        layer_types=["linear_attention", "full_attention"],
        linear_num_key_heads=2,
        linear_num_value_heads=2,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        num_experts=0,
        mlp_only_layers=[0, 1],
        attn_implementation=attention,
    )
    return transformers.Qwen3NextForCausalLM(sizes)


def test_a_state_forks_behind_the_question(tmp_path):
    options = {"model": hybrid, "router_aux_loss_coef": 0.0}
    ours, theirs = (
        dpo(kind, tmp_path, named={"ref_model": hybrid(attention_of(kind), seed=1)}, **options)
        for kind in (SharedQuestionDPOTrainer, DPOTrainer)
    )
    assert_same_step(ours, theirs)


@pytest.mark.parametrize("make", [dpo, reward])
def test_training_and_evaluation_log_what_trl_logs(make, tmp_path):
    logs = []
    for kind in (OURS[make is reward], THEIRS[make is reward]):
        trainer = make(kind, tmp_path)
        trainer.train()
        trainer.evaluate()
        logs.append(trainer.state.log_history)
    assert len(logs[0]) == len(logs[1]) == 5
    for entries in zip(*logs, strict=True):
        assert_close(*({name: each[name] for name in each if not name.endswith(TIMES)} for each in entries))


@pytest.mark.parametrize("options", [{}, {"center_rewards_coefficient": 0.1}], ids=str)
def test_a_reward_model_learns_as_in_trl(options, tmp_path):
    data = preferences(margin=lambda number: 0.1 * number)
    ours, theirs = (
        reward(kind, tmp_path, data=data, **options) for kind in (SharedQuestionRewardTrainer, RewardTrainer)
    )
    assert "margin" in first_batch(ours)
    assert_same_step(ours, theirs)


def test_another_token_of_a_pair_moves_no_other_pair_by_a_bit(trainers, tmp_path):
    of_rewards = reward(SharedQuestionRewardTrainer, tmp_path)

    def log_probs(examples):
        batch = trainers[0].data_collator(examples)
        return torch.stack(trainers[0].compute_ref_log_probs(trainers[0].model, batch))

    def rewards(examples):
        _, outputs = of_rewards.compute_loss(of_rewards.model, of_rewards.data_collator(examples), return_outputs=True)
        return outputs.logits.view(2, -1)

    for trainer, score in ((trainers[0], log_probs), (of_rewards, rewards)):
        examples = [trainer.train_dataset[number] for number in range(5)]
        before = score(examples)
        names = [name for name in ("prompt_ids", "chosen_ids", "rejected_ids") if name in examples[2]]
        changed = {name: list(examples[2][name]) for name in names}
        for name in names[:1] if "prompt_ids" in names else names:
            changed[name][0] = 61 - changed[name][0]
        changed["rejected_ids"][-2] = 61 - changed["rejected_ids"][-2]
        after = score([*examples[:2], {**examples[2], **changed}, *examples[3:]])
        others = [0, 1, 3, 4]
        assert torch.equal(after[:, others], before[:, others])
        assert (after[:, 2] != before[:, 2]).all()


def pairs_of(collator, *pairs):
    return collator([{"prompt_ids": a, "chosen_ids": b, "rejected_ids": c} for a, b, c in pairs])["shared_questions"]


def test_answers_keep_a_token_and_pairs_without_a_question_are_documents(trainers):
    packed = pairs_of(trainers[0].data_collator, ([5, 6], [7], [7]), ([], [3, 4], [8]), ([5], [6, 7], [6]))
    assert packed["input_ids"].tolist() == [[5, 6, 7, 7, 3, 4, 8, 5, 6, 7, 6]]
    assert packed["position_ids"].tolist() == [[0, 1, 2, 2, 0, 1, 0, 0, 1, 2, 1]]
    assert packed["startend_row_indices"].flatten().tolist() == [4, 4, 3, 4, 6, 6, 7, 11, 10, 10, 11]
    assert packed["rows"].tolist() == [[0, 1, 2], [4, 5, 0], [7, 8, 9], [0, 1, 3], [6, 0, 0], [7, 10, 0]]


def without(attribute, value):
    def made(_):
        model = language_model("flashmask")
        setattr(model.config, attribute, value)
        return model

    return made


def balanced(_):
    sizes = transformers.MixtralConfig(**SIZES, vocab_size=62, num_local_experts=2, attn_implementation="flashmask")
    return transformers.MixtralForCausalLM(sizes)


def stateful(_):
    model = language_model("flashmask")
    model._is_stateful = True
    return model


REFUSED = {
    "another attention": (lambda _: language_model("sdpa"), "attn_implementation='sdpa', under which answers"),
    "other layers": (without("layer_types", ["linear_attention"] * 2), r"has \['linear_attention'\] layers"),
    "a state": (stateful, "LlamaForCausalLM has layers with a state, which carry one answer into the next"),
    "balanced experts": (balanced, "router_aux_loss_coef is 0.001: the loss that balances experts"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_would_mix_answers_is_refused_by_name(case, tmp_path):
    model, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        dpo(SharedQuestionDPOTrainer, tmp_path, model=model, named={"ref_model": language_model("flashmask")})


def test_learnt_prompts_are_refused(tmp_path):
    learnt = {"peft_config": peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)}
    with pytest.raises(ValueError, match="adapter 'default' learns a prompt"):
        dpo(SharedQuestionDPOTrainer, tmp_path, named=learnt)


@pytest.mark.parametrize("kind", OURS)
def test_another_version_of_trl_is_refused(kind, monkeypatch):
    monkeypatch.setattr(trl, "__version__", "1.17.0")
    with pytest.raises(ImportError, match=r"TRL 1.17.0 is installed; .* install trl==1.16"):
        kind()


def test_precomputed_references_are_refused_with_context_parallelism():
    spread = SimpleNamespace(parallelism_config=SimpleNamespace(cp_enabled=True), torch_device_mesh={"cp": "mesh"})
    with pytest.raises(ValueError, match=r"^precompute_ref_log_probs=True with context parallelism"):
        SharedQuestionDPOTrainer._precompute_ref_logps(SimpleNamespace(accelerator=spread))
