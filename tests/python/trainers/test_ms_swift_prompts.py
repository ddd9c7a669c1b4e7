# SPDX-License-Identifier: Apache-2.0
"""ms-swift's GRPO with the plugin that computes each prompt once, against ms-swift's own padded and packed rows."""

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="ms-swift runs on torch")
pytest.importorskip("swift", reason="these tests run ms-swift's own training: scripts/test-trainers ms-swift")

import tiny_llama  # noqa: E402
from swift.pipelines.train.rlhf import SwiftRLHF  # noqa: E402
from swift.rewards import ORM, orms  # noqa: E402
from swift.rlhf_trainers import GRPOTrainer  # noqa: E402
from swift.trainers import TrainerFactory  # noqa: E402
from swift_runs import plugin_of, words  # noqa: E402

from flashmask.integrations.ms_swift_prompts import SharedPromptGRPOTrainer, _check_settings  # noqa: E402

GROUP = 4
pytestmark = pytest.mark.slow


class Letters(ORM):
    """A reward that differs from answer to answer."""

    def __call__(self, completions, **_):
        return [sum(map(ord, text)) % 7 / 7 for text in completions]


orms["letters"] = Letters


def arguments(tmp_path, **more):
    given = {
        "template": "default",
        "rlhf_type": "grpo",
        "reward_funcs": "letters",
        "num_generations": str(GROUP),
        "max_completion_length": "12",
        "max_steps": "2",
        "optim": "sgd",
        "beta": "0.04",
        "temperature": "0.9",
        "log_entropy": "true",
        "use_vllm": "false",
        "per_device_train_batch_size": str(2 * GROUP),
        "check_model": "false",
        "bf16": "false",
    }
    return words(tmp_path, [[("user", text)] for text in tiny_llama.texts(64)], **(given | more))


@pytest.fixture(scope="module")
def plugin():
    return plugin_of("flashmask.integrations.ms_swift_prompts")


def history(made):
    return [entry for entry in made.main()["log_history"] if "loss" in entry]


def gradients(model, found, mask):
    """Returns the gradients of a sum that weighs every token of an answer differently."""
    draw = torch.Generator().manual_seed(0)
    total = sum((each * torch.randn(mask.shape, generator=draw))[mask].sum() for each in found)
    return torch.autograd.grad(total, list(model.parameters()), retain_graph=True)


def tokens_once(ids, held, mask):
    """Tokens of a call in which each prefix of prompts is there once; their last tokens stand before every answer."""
    prefixes, count = set(), 0
    for row, (kept, answered) in enumerate(zip(held, mask, strict=True)):
        begin = len(kept) - mask.shape[1] + int(answered.int().argmax())
        prompt = tuple(ids[row][:begin][kept[:begin]].tolist())
        prefixes |= {prompt[:size] for size in range(1, len(prompt))}
        count += int(kept[begin:].sum()) + 1
    return count + len(prefixes)


@pytest.mark.parametrize("padding_free", ["false", "true"])
def test_a_run_has_the_log_probabilities_gradients_and_history_of_ms_swift(padding_free, tmp_path, plugin, monkeypatch):
    calls, own = [], SharedPromptGRPOTrainer._get_per_token_logps_and_entropies_single

    def compared(self, model, inputs, batch, compute_entropy=False):
        seen = []
        hook = model.get_input_embeddings().register_forward_pre_hook(lambda _, given: seen.append(given[0].numel()))
        found = own(self, model, inputs, batch, compute_entropy)
        hook.remove()
        model.set_attn_implementation("flashmask" if self.template.padding_free else "eager")
        theirs = GRPOTrainer._get_per_token_logps_and_entropies_single
        expected = theirs(self, model, dict(inputs), batch, compute_entropy)
        model.set_attn_implementation("flashmask")
        mask = batch.completion_mask
        assert found[0].shape == mask.shape and (found[1] is not None) == compute_entropy
        for one, other in zip(found, expected, strict=True):
            if one is not None:
                torch.testing.assert_close(one[mask], other[mask], rtol=1e-5, atol=1e-5)
                assert not one[~mask].any()
        if found[0].requires_grad:
            ours, theirs = (gradients(model, each, mask) for each in (found, expected))
            largest = max(each.norm() for each in theirs)
            for one, other in zip(ours, theirs, strict=True):
                assert (one - other).norm() <= 1e-5 * largest
        if not self.template.padding_free:
            assert seen == [tokens_once(inputs["input_ids"], inputs["attention_mask"].bool(), mask)]
        calls.append((found[0].requires_grad, sum(seen), inputs["input_ids"].numel()))
        return found

    monkeypatch.setattr(SharedPromptGRPOTrainer, "_get_per_token_logps_and_entropies_single", compared)
    ours = history(SwiftRLHF(arguments(tmp_path, padding_free=padding_free, external_plugins=plugin)))
    assert [graph for graph, *_ in calls] == [False, False, True] * 2  # the old policy, the reference, the policy
    assert all(ours < 0.7 * theirs for _, ours, theirs in calls)
    monkeypatch.setitem(TrainerFactory.TRAINER_MAPPING, "grpo", "swift.rlhf_trainers.GRPOTrainer")
    theirs = history(SwiftRLHF(arguments(tmp_path, padding_free=padding_free)))
    assert len(ours) == len(theirs) == 2 and ours[1]["kl"] > 0 and ours[0]["grad_norm"] > 0
    for one, other in zip(ours, theirs, strict=True):
        for name in ("loss", "kl", "grad_norm", "reward", "entropy/mean", "completions/mean_length"):
            assert one[name] == pytest.approx(other[name], rel=1e-5, abs=1e-7), name


def settings(**changed):
    given = {
        "is_multimodal": False,
        "template": SimpleNamespace(sequence_parallel_size=1),
        "use_liger_loss": False,
        "args": SimpleNamespace(per_device_train_batch_size=8),
        "num_generations": GROUP,
    }
    return SimpleNamespace(**{**given, **changed})


def test_what_it_cannot_serve_is_refused(tmp_path, plugin):
    _check_settings(settings())
    with pytest.raises(ValueError, match="images are not shared yet"):
        _check_settings(settings(is_multimodal=True))
    with pytest.raises(ValueError, match="sequence_parallel_size is 2"):
        _check_settings(settings(template=SimpleNamespace(sequence_parallel_size=2)))
    with pytest.raises(ValueError, match="use_liger_kernel is True"):
        _check_settings(settings(use_liger_loss=True))
    with pytest.warns(UserWarning, match="a group of 4 answers is cut over micro-batches of 6"):
        _check_settings(settings(args=SimpleNamespace(per_device_train_batch_size=6)))
    with pytest.raises(ValueError, match="attn_implementation='sdpa', under which answers to one prompt would see"):
        SwiftRLHF(arguments(tmp_path, external_plugins=plugin, attn_impl="sdpa")).main()
    batch = SimpleNamespace(completion_mask=torch.ones(1, 1))
    with pytest.raises(ValueError, match="pixel_values came beside input_ids"):
        SharedPromptGRPOTrainer._get_per_token_logps_and_entropies_single(
            None, None, {"input_ids": None, "pixel_values": None}, batch
        )
