# SPDX-License-Identifier: Apache-2.0
"""TRL's trainers of policies over tiny models, batches that are padded on both sides, and steps to compare."""

import dataclasses

import torch
from datasets import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, TrainingArguments
from trl import GRPOConfig, RLOOConfig, RLOOTrainer
from trl_models import SIZES, sentence, tokenizer

GROUP = 4
PROMPTS = (24, 1, 9, 24)  # tokens of each group's prompt; the last is the first one again
ANSWER = 12  # tokens of the longest answer
BATCH = len(PROMPTS) * GROUP
_NAMED = {field.name for field in dataclasses.fields(TrainingArguments)}
CHECKPOINTING = "activation_checkpointing" if "activation_checkpointing" in _NAMED else "gradient_checkpointing"


def save(folder, make=None, **sizes):
    """Saves a model whose predictions differ clearly from token to token, and returns the folder."""
    torch.manual_seed(0)
    model = make() if make else LlamaForCausalLM(LlamaConfig(**{**SIZES, "vocab_size": 62, "pad_token_id": 0, **sizes}))
    for weight in model.parameters():
        torch.nn.init.normal_(weight, mean=float(weight.ndim == 1), std=0.2)
    model.save_pretrained(folder)
    return str(folder)


def reward(completion_ids, **_):
    return [sum(token % 2 for token in ids) / len(ids) + 0.01 * len(ids) for ids in completion_ids]


def policy(kind, folder, attention, *, dtype="float32", config=None, **options):
    """A trainer over the model in `folder`; options are its config's, or its own."""
    own = ("peft_config", "rollout_func", "invariant", "keep_order")
    named = {name: options.pop(name) for name in own if name in options}
    settled = {
        "output_dir": str(folder) + "-out",
        "per_device_train_batch_size": BATCH,
        "per_device_eval_batch_size": BATCH,
        "num_generations": GROUP,
        "max_completion_length": ANSWER,
        "max_steps": 3,
        "optim": "sgd",
        "learning_rate": 0.05,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0.0,
        "temperature": 0.9,
        "beta": 0.0,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
        "bf16": False,
        CHECKPOINTING: False,
        "model_init_kwargs": {"attn_implementation": attention, "dtype": dtype},
    }
    generator = torch.Generator().manual_seed(5)
    prompts = [sentence(generator, 2, 24) for _ in range(12)]
    made = config or (RLOOConfig if issubclass(kind, RLOOTrainer) else GRPOConfig)
    return kind(
        model=str(folder),
        reward_funcs=reward,
        args=made(**{**settled, **options}),
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        eval_dataset=Dataset.from_dict({"prompt": prompts[: len(PROMPTS)]}),
        processing_class=tokenizer(),
        **named,
    )


def answers(count, generator, eos=1):
    """Answers of 1 to ANSWER tokens, about half of which end with the token that ends them."""
    made = []
    for _ in range(count):
        size = int(torch.randint(1, ANSWER + 1, (), generator=generator))
        ids = torch.randint(2, 62, (size,), generator=generator).tolist()
        made.append(ids if torch.rand((), generator=generator) < 0.5 else [*ids[:-1], eos])
    return made


def with_given_answers(trainer, seed=7):
    """Has a trainer take answers as they come from a generator in place of its model's."""
    generator = torch.Generator().manual_seed(seed)

    def generate(prompt_ids, *_):
        made = answers(len(prompt_ids), generator)
        return made if isinstance(trainer, RLOOTrainer) else (made, None)

    trainer._generate_single_turn = generate
    return trainer


def padded(sequences, side):
    """Token ids and their mask, int64 [sequences, longest]."""
    tensors = [torch.tensor(each) for each in sequences]
    ids = torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_side=side)
    ones = [torch.ones_like(each) for each in tensors]
    return ids, torch.nn.utils.rnn.pad_sequence(ones, batch_first=True, padding_side=side)


def batch(sizes=PROMPTS):
    """What a trainer's step takes: groups of answers to prompts of so many tokens, the last of which is the first one.

    An answer is masked as TRL masks truncated ones.
    """
    generator = torch.Generator().manual_seed(0)
    prompts = [torch.randint(2, 62, (size,), generator=generator).tolist() for size in sizes]
    prompts[-1] = prompts[0]
    rows = len(prompts) * GROUP
    prompt_ids, prompt_mask = padded([each for each in prompts for _ in range(GROUP)], "left")
    completion_ids, completion_mask = padded(answers(rows, generator), "right")
    completion_mask[5] = 0
    return {
        "prompt_ids": prompt_ids,
        "prompt_mask": prompt_mask,
        "completion_ids": completion_ids,
        "completion_mask": completion_mask,
        "advantages": torch.randn(rows, generator=generator),
        "num_items_in_batch": completion_mask.sum(),
    }


def scores(trainer, given, model=None, **options):
    """Log-probabilities and entropies of a batch's answers by the method through which all of TRL's pass."""
    ids = torch.cat([given["prompt_ids"], given["completion_ids"]], 1)
    mask = torch.cat([given["prompt_mask"], given["completion_mask"]], 1)
    size = given["completion_ids"].shape[1]
    return trainer._get_per_token_logps_and_entropies(model or trainer.model, ids, mask, size, **options)[:2]


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


def step(trainer, given):
    """Loss, gradients and metrics of one batch."""
    trainer.model.train()
    trainer.model.zero_grad()
    trainer._metrics["train"].clear()
    trainer.current_gradient_accumulation_steps = 1
    loss = trainer.compute_loss(trainer.model, given)
    loss.backward()
    gradients = {name: each.grad for name, each in trainer.model.named_parameters() if each.requires_grad}
    return loss.detach(), gradients, {name: values[-1] for name, values in trainer._metrics["train"].items()}


def assert_same_gradients(found, expected):
    """Each is within 1e-4 of its own norm, or 1e-5 of the largest."""
    assert found.keys() == expected.keys()
    norms = {name: each.norm().item() for name, each in expected.items()}
    assert max(norms.values()) > 0
    for name, each in found.items():
        difference = (each - expected[name]).norm().item()
        assert difference <= max(1e-4 * norms[name], 1e-5 * max(norms.values())), name


def assert_same_metrics(found, expected):
    assert found.keys() == expected.keys()
    for name, value in found.items():
        torch.testing.assert_close(value, expected[name], rtol=2e-5, atol=2e-6, equal_nan=True, msg=name)


def assert_same_step(ours, theirs):
    """Compares what step() returned for two trainers."""
    torch.testing.assert_close(ours[0], theirs[0], rtol=1e-6, atol=2e-7)
    assert_same_gradients(ours[1], theirs[1])
    assert_same_metrics(ours[2], theirs[2])


def history(trainer):
    """What a run logged, without times."""
    times = ("runtime", "per_second", "flos", "step_time")
    return [
        {name: value for name, value in entry.items() if not name.endswith(times)}
        for entry in trainer.state.log_history
    ]
