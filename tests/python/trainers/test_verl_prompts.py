# SPDX-License-Identifier: Apache-2.0
"""verl's FSDP engine with each prompt computed once, against verl's own on padded rows."""

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="verl runs on torch")
pytest.importorskip("verl", reason="its engine is what is tested: scripts/test-trainers verl")

import tiny_llama  # noqa: E402
import verl_engine_ranks  # noqa: E402
from ranks import torchrun  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402
from verl.utils.tensordict_utils import get_tensordict  # noqa: E402
from verl.workers.engine import EngineRegistry  # noqa: E402
from verl_engine_ranks import GROUP, LENGTHS  # noqa: E402

from flashmask.integrations.verl_prompts import (  # noqa: E402
    SharedPromptFSDPEngine,
    _check_micro_batch,
    _prompt_lengths,
)

pytestmark = pytest.mark.slow
CALLS = ("of a call", "of groups", "of a budget", "of halves", "padded", "without prompts", "invariant")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_llama.save(tmp_path_factory.mktemp("llama"))


def found_by(ranks, folder):
    done = torchrun(verl_engine_ranks.__file__, folder, ranks=ranks, alone=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return torch.load(f"{folder}/found-{ranks}.pt")


@pytest.fixture(scope="module")
def found(folder):
    return found_by(1, folder)


@pytest.mark.parametrize("call", CALLS)
def test_log_probabilities_and_entropies_are_those_of_verl(call, found):
    for name, expected in found["theirs"].items():
        assert expected.shape == (len(LENGTHS) * GROUP, verl_engine_ranks.ANSWERS) and expected.abs().max() > 1
        torch.testing.assert_close(found[call][0][name], expected, rtol=1e-5, atol=1e-5)


def test_each_answer_has_its_temperature(found):
    for name, expected in found["temperatures of theirs"].items():
        torch.testing.assert_close(found["temperatures"][name], expected, rtol=1e-5, atol=1e-5)
        assert (expected - found["theirs"][name]).abs().max() > 0.1


def test_a_model_that_returns_log_probabilities_gets_the_labels(found):
    for name, expected in found["theirs"].items():
        torch.testing.assert_close(found["fused"][name], expected, rtol=1e-5, atol=1e-5)


def test_a_prompt_passes_through_the_model_once_in_each_call(found):
    answers = (found["theirs"]["log_probs"] != 0).sum(1).view(-1, GROUP)
    groups = [prompt - 1 + int(sizes.sum()) + GROUP for prompt, sizes in zip(LENGTHS, answers, strict=True)]
    tokens = {call: found[call][1] for call in CALLS}
    assert tokens["of a call"] == [sum(groups)] and tokens["of groups"] == groups
    assert len(tokens["of a budget"]) == 2 and sum(tokens["of a budget"]) == sum(groups)
    assert len(tokens["of halves"]) > len(groups)
    assert sum(tokens["of halves"]) <= sum(groups) + sum(prompt - 1 for prompt in LENGTHS)
    assert tokens["padded"] == [-(-sum(groups) // 64) * 64]
    assert tokens["without prompts"] == [int(answers.sum()) + GROUP * sum(LENGTHS)]  # as verl packs them
    assert not tokens["invariant"][0] % 128


def test_an_update_has_the_gradients_of_verl_on_one_rank_and_two(found, folder):
    theirs = found["gradients of theirs"]
    largest = max(each.norm() for each in theirs)
    assert largest > 0
    for ours in (found["gradients"], found_by(2, folder)["gradients"]):
        for one, other in zip(ours, theirs, strict=True):
            assert (one - other).norm() <= 1e-5 * largest


def test_prompts_come_nested_or_padded():
    tokens = [torch.arange(size) for size in (3, 1, 5)]
    nested = torch.nested.as_nested_tensor(tokens, layout=torch.jagged)
    held = torch.tensor([[0, 0, 1, 1, 1, 1], [0, 0, 0, 0, 1, 1], [1, 1, 1, 1, 1, 0]])
    padded = {"prompts": torch.zeros(3, 5), "attention_mask": held}
    assert _prompt_lengths({"prompts": nested}).tolist() == _prompt_lengths(padded).tolist() == [3, 1, 5]


def test_verl_takes_the_engine_where_it_would_take_its_own(monkeypatch):
    monkeypatch.setenv("VERL_ENGINE_DEVICE", "cuda")
    monkeypatch.setenv("VERL_ENGINE_VENDOR", "nvidia")
    for backend in ("fsdp", "fsdp2"):
        assert EngineRegistry.get_engine_cls("language_model", backend) is SharedPromptFSDPEngine


def test_what_it_cannot_serve_is_refused(folder):
    def check(ranks=1, **options):
        model = AutoModelForCausalLM.from_pretrained(folder, **options)
        SharedPromptFSDPEngine._check(SimpleNamespace(ulysses_sequence_parallel_size=ranks, invariant=False), model)

    check(attn_implementation="flashmask")
    with pytest.raises(ValueError, match="ulysses_sequence_parallel_size is 2"):
        check(2, attn_implementation="flashmask")
    with pytest.raises(ValueError, match="attn_implementation='sdpa', under which answers to one prompt would see"):
        check(attn_implementation="sdpa")

    def batch(positions=2, **settings):
        return get_tensordict({"position_ids": torch.zeros((2,) * positions, dtype=torch.int64)}, settings)

    _check_micro_batch(batch())
    with pytest.raises(ValueError, match="prompts with images are not shared yet"):
        _check_micro_batch(batch(3))
    with pytest.raises(ValueError, match="use_remove_padding is False"):
        _check_micro_batch(batch(use_remove_padding=False))
    with pytest.raises(ValueError, match="distillation_use_topk is True"):
        _check_micro_batch(batch(distillation_use_topk=True))
