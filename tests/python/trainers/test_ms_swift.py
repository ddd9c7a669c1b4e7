# SPDX-License-Identifier: Apache-2.0
"""ms-swift with the external plugin: `--attn_impl flashmask --packing true` is accepted, trains, and leaks nothing."""

from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="ms-swift runs on torch")
pytest.importorskip("swift", reason="these tests run ms-swift's own training: scripts/test-trainers ms-swift")

import tiny_llama  # noqa: E402
from swift.arguments import SftArguments  # noqa: E402
from swift.pipelines import SwiftSft  # noqa: E402
from swift_runs import plugin_of, words  # noqa: E402

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def plugin():
    return plugin_of("flashmask.integrations.ms_swift")


def arguments(tmp_path, *more):
    conversations = [[("user", "w1 w2"), ("assistant", text)] for text in tiny_llama.texts(64)]
    given = {
        "template": "dummy",
        "packing": "true",
        "max_length": "64",
        "max_steps": "3",
        "per_device_train_batch_size": "1",
    }
    return words(tmp_path, conversations, **given) + list(more)


def test_a_plugin_hides_no_package(plugin):
    """ms-swift puts its folder first on sys.path."""
    assert all(each.name.startswith("flashmask_") for each in Path(plugin).parent.glob("*.py"))


def test_the_name_packs_with_the_plugin_only(tmp_path, plugin, monkeypatch):
    original = getattr(SftArguments._check_padding_free, "__wrapped__", SftArguments._check_padding_free)
    with monkeypatch.context() as patch:
        patch.setattr(SftArguments, "_check_padding_free", original)
        with pytest.raises(ValueError, match="requires a flash attention implementation"):
            SwiftSft(arguments(tmp_path))
    made = SwiftSft(arguments(tmp_path, "--external_plugins", plugin))
    assert made.args.attn_impl == "flashmask" and made.args.packing and made.args.padding_free
    with pytest.raises(ValueError, match="requires a flash attention implementation"):
        SwiftSft(arguments(tmp_path, "--external_plugins", plugin, "--attn_impl", "sdpa"))


def test_training_packed_has_the_losses_of_documents_alone_and_leaks_nothing(tmp_path, plugin, monkeypatch):
    seen = []
    from swift.trainers import Seq2SeqTrainer

    step = Seq2SeqTrainer.training_step

    def keep(self, model, inputs, *args, **options):
        if not seen:
            batch = {name: inputs[name].clone() for name in ("input_ids", "position_ids")}
            with torch.no_grad():
                packed = tiny_llama.losses(model(**batch).logits, **named(batch))
                seen.append((packed, [alone(model, document) for document in documents(batch)]))
            training = model.training
            tiny_llama.assert_no_document_sees_another(model, batch)
            model.train(training)
        return step(self, model, inputs, *args, **options)

    monkeypatch.setattr(Seq2SeqTrainer, "training_step", keep)
    made = SwiftSft(arguments(tmp_path, "--external_plugins", plugin))
    history = made.main()["log_history"]
    assert made.model.config._attn_implementation == "flashmask"
    assert len([entry["loss"] for entry in history if "loss" in entry]) == 3
    packed, expected = seen[0]
    torch.testing.assert_close(packed, torch.stack(expected), atol=1e-5, rtol=1e-5)


def named(batch):
    return {"tokens": batch["input_ids"], "positions": batch["position_ids"]}


def documents(batch):
    """The tokens [1, S] of each document of a packed sequence."""
    begins = (batch["position_ids"][0] == 0).nonzero()[:, 0].tolist()
    return batch["input_ids"].tensor_split(begins[1:], 1)


def alone(model, tokens):
    """The loss of a document that is the only one, computed by eager attention."""
    model.set_attn_implementation("eager")
    logits = model(input_ids=tokens).logits
    model.set_attn_implementation("flashmask")
    return tiny_llama.losses(logits, tokens, torch.arange(tokens.shape[1])[None])[0]
