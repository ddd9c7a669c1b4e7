# SPDX-License-Identifier: Apache-2.0
"""transformers.Trainer over packed batches: what a loop by hand computes."""

from functools import partial

import pytest

torch = pytest.importorskip("torch", reason="Transformers runs on torch")
transformers = pytest.importorskip("transformers", reason="runs its Trainer")
pytest.importorskip("accelerate", reason="Trainer runs on it")

import flashmask.transformers  # noqa: E402
from flashmask.data import answer_log_probs, pack  # noqa: E402

flashmask.transformers.register()

STEPS, BATCH = 4, 6
collate = partial(pack, length=32)


def draw(generator, low, high):
    return torch.randint(1, 40, (int(torch.randint(low, high, (), generator=generator)),), generator=generator).tolist()


def examples(*names):
    generator = torch.Generator().manual_seed(1)
    return [{name: draw(generator, 2, 9) for name in names} for _ in range(STEPS * BATCH)]


def model():
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.LlamaConfig(**sizes, vocab_size=40, attn_implementation="flashmask")
    return transformers.LlamaForCausalLM(config)


def trained(tmp_path, kind, data):
    """Loss of each step and the parameters after the last."""
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        per_device_train_batch_size=BATCH,
        max_steps=STEPS,
        logging_steps=1,
        learning_rate=1e-2,
        lr_scheduler_type="constant",
        max_grad_norm=0,
        remove_unused_columns=False,
        train_sampling_strategy="sequential",
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = kind(model=model(), args=arguments, train_dataset=data, data_collator=collate)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return losses, [each.detach() for each in trainer.model.parameters()]


def by_hand(loss_of, data):
    made = model()
    optimizer = torch.optim.AdamW(made.parameters(), lr=1e-2, weight_decay=0)
    losses = []
    for step in range(STEPS):
        loss = loss_of(made, collate(data[step * BATCH : (step + 1) * BATCH]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [each.detach() for each in made.parameters()]


def assert_same_run(found, expected):
    assert len(found[0]) == STEPS and found[0][-1] != found[0][0]
    assert found[0] == pytest.approx(expected[0], abs=1e-4)  # Trainer rounds what it logs
    for ours, theirs in zip(found[1], expected[1], strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


def test_trains_on_packed_documents(tmp_path):
    data = examples("prompt_ids", "completion_ids")
    found = trained(tmp_path, transformers.Trainer, data)
    assert_same_run(found, by_hand(lambda made, batch: made(**batch).loss, data))


def preference_loss(made, batch):
    """Of DPO, against a reference that finds everything equally likely."""
    inputs = {name: batch[name] for name in ("input_ids", "position_ids", "startend_row_indices")}
    chosen, rejected = answer_log_probs(made(**inputs).logits, batch).view(-1, 2).unbind(-1)
    return -torch.nn.functional.logsigmoid(0.1 * (chosen - rejected)).mean()


class PreferenceTrainer(transformers.Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        return preference_loss(model, inputs)


def test_trains_on_answers_that_share_questions(tmp_path):
    data = examples("prompt_ids", "chosen_ids", "rejected_ids")
    assert_same_run(trained(tmp_path, PreferenceTrainer, data), by_hand(preference_loss, data))
