# SPDX-License-Identifier: Apache-2.0
"""SFT, LoRA, DPO and a reward model on 512 packed tokens: steps under long_context(), and the same without."""

import copy

import pytest

torch = pytest.importorskip("torch", reason="flashmask.training is for torch")
pytest.importorskip("transformers", reason="long_context() takes its models")

from training_models import WORDS, lora, tiny  # noqa: E402

import flashmask.data  # noqa: E402
from flashmask.training import answer_log_probs, long_context  # noqa: E402

pytestmark = pytest.mark.slow  # whole models, which say nothing about one instruction set
TOKENS, STEPS = 512, 3
INPUTS = ("input_ids", "position_ids", "startend_row_indices")


def draw(generator, low, high):
    size = int(torch.randint(low, high, (), generator=generator))
    return torch.randint(WORDS, (size,), generator=generator).tolist()


def batches(*answers):
    """One packed sequence a step, of questions with these answers."""
    generator = torch.Generator().manual_seed(4)
    made = []
    for _ in range(STEPS):
        examples = [
            {"prompt_ids": draw(generator, 40, 60)} | {name: draw(generator, 10, 20) for name in answers}
            for _ in range(5)
        ]
        made.append(flashmask.data.pack(examples, length=TOKENS))
    return made


def inputs(batch):
    return {name: batch[name] for name in INPUTS}


def next_token(model, batch, before, chunked):
    return model(**inputs(batch), labels=batch["labels"]).loss


def preference(model, batch, before, chunked):
    """DPO (Rafailov et al. 2023)."""

    def log_probs(of):
        if not chunked:
            return flashmask.data.answer_log_probs(of(**inputs(batch)).logits, batch)
        return answer_log_probs(of.base_model(**inputs(batch)).last_hidden_state, of.lm_head.weight, batch, chunk=30)

    with torch.no_grad():
        reference = log_probs(before)
    chosen, rejected = (log_probs(model) - reference).view(-1, 2).unbind(-1)
    return -torch.nn.functional.logsigmoid(0.1 * (chosen - rejected)).mean()


def reward(model, batch, before, chunked):
    sequences, _, ends = batch["answers"].unbind(-1)
    chosen, rejected = model(**inputs(batch)).logits[sequences, ends - 1, 0].view(-1, 2).unbind(-1)
    return -torch.nn.functional.logsigmoid(chosen - rejected).mean()


TASKS = {
    "sft": (tiny, ["completion_ids"], next_token),
    "lora": (lambda: lora(tiny()), ["completion_ids"], next_token),
    "dpo": (tiny, ["chosen_ids", "rejected_ids"], preference),
    "reward": (
        lambda: tiny(head="ForTokenClassification", num_labels=1, classifier_dropout=0.0),
        ["chosen_ids", "rejected_ids"],
        reward,
    ),
}


def trained(model, before, data, loss_of, chunked):
    optimizer = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=0.05)
    losses = []
    for batch in data:
        optimizer.zero_grad()
        loss = loss_of(model, batch, before, chunked)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("options", [{"chunk": 100, "keep": 2, "offload": True}, {"chunk": 512}], ids=str)
@pytest.mark.parametrize("task", TASKS)
def test_learns_what_it_learns_without(task, options):
    if task == "lora":
        pytest.importorskip("peft", reason="its LoRA is what is tested")
    make, answers, loss_of = TASKS[task]
    plain, model, data = make(), make(), batches(*answers)
    before = copy.deepcopy(model)
    expected = trained(plain, before, data, loss_of, chunked=False)
    with long_context(model, **options), long_context(before, chunk=200):
        found = trained(model, before, data, loss_of, chunked=True)
    assert found == pytest.approx(expected, abs=1e-6)
    assert len(set(found)) == STEPS
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)
