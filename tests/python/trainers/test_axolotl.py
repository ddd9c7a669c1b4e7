# SPDX-License-Identifier: Apache-2.0
"""Axolotl with the plugin: its configuration takes the name, packs, and trains to the losses of eager."""

import json

import pytest

torch = pytest.importorskip("torch", reason="Axolotl runs on torch")
pytest.importorskip("axolotl", reason="these tests run Axolotl's own training: scripts/test-trainers axolotl")

import tiny_llama  # noqa: E402
import yaml  # noqa: E402
from axolotl.cli.args import TrainerCliArgs  # noqa: E402
from axolotl.cli.config import load_cfg  # noqa: E402
from axolotl.common.datasets import load_datasets  # noqa: E402
from axolotl.train import train  # noqa: E402
from axolotl.utils.schemas import config as schema  # noqa: E402

pytestmark = pytest.mark.slow
PLUGIN = "flashmask.integrations.axolotl.FlashMaskPlugin"


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setenv("AXOLOTL_DO_NOT_TRACK", "1")
    monkeypatch.setenv("WANDB_DISABLED", "true")


def configured(tmp_path, implementation, **more):
    """The configuration as Axolotl reads it from a file."""
    with (tmp_path / "data.jsonl").open("w") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in tiny_llama.texts(64))
    options = {
        "base_model": tiny_llama.save(tmp_path / "model"),
        "plugins": [PLUGIN],
        "attn_implementation": implementation,
        "sample_packing": True,
        "pad_to_sequence_len": True,
        "sequence_len": 64,
        "datasets": [{"path": str(tmp_path / "data.jsonl"), "ds_type": "json", "type": "completion"}],
        "dataset_prepared_path": str(tmp_path / "prepared"),
        "dataset_num_proc": 1,
        "val_set_size": 0.0,
        "special_tokens": {"pad_token": "<pad>"},
        "micro_batch_size": 1,
        "gradient_accumulation_steps": 1,
        "max_steps": 4,
        "learning_rate": 1e-2,
        "lr_scheduler": "constant",
        "optimizer": "adamw_torch",
        "max_grad_norm": 0.0,
        "seed": 1,
        "logging_steps": 1,
        "save_strategy": "no",
        "bf16": False,
        "use_cpu": True,
        "output_dir": str(tmp_path / "out"),
    }
    file = tmp_path / "axolotl.yaml"
    file.write_text(yaml.safe_dump(options | more))
    return load_cfg(str(file))


def trained(tmp_path, implementation):
    configuration = configured(tmp_path, implementation)
    data = load_datasets(cfg=configuration, cli_args=TrainerCliArgs())
    model, _, trainer = train(cfg=configuration, dataset_meta=data)
    assert model.config._attn_implementation == implementation
    return trainer


def losses(trainer):
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def test_the_plugin_makes_the_name_one_that_packs(tmp_path, monkeypatch):
    for names in ("CANONICAL_ATTN_IMPLS", "ATTN_IMPLS_SUPPORTING_PACKING"):
        monkeypatch.setattr(schema, names, getattr(schema, names) - {"flashmask"})
    with pytest.raises(ValueError, match="'flashmask' is not a recognized backend"):
        configured(tmp_path, "flashmask", plugins=[])
    configuration = configured(tmp_path, "flashmask")
    assert configuration.attn_implementation == "flashmask"
    assert configuration.attn_supports_packing and configuration.attn_decontaminates_packing
    assert not configuration.attn_uses_flash_lib  # which patches for FlashAttention's package would follow


def test_training_packed_gives_the_losses_of_eager_and_leaks_nothing(tmp_path):
    ours = trained(tmp_path, "flashmask")
    found = losses(ours)
    assert len(found) == 4 and found[0] != found[-1]
    batch = next(iter(ours.get_train_dataloader()))
    tiny_llama.assert_no_document_sees_another(
        ours.model, {name: batch[name] for name in ("input_ids", "position_ids")}
    )
    assert found == pytest.approx(losses(trained(tmp_path, "eager")), abs=2e-5)


def test_a_host_that_lacks_what_the_plugin_needs_is_named(monkeypatch):
    from flashmask.integrations.axolotl import FlashMaskPlugin

    monkeypatch.delattr(schema, "CANONICAL_ATTN_IMPLS")
    with pytest.raises(ImportError, match=r"axolotl [\d.]+ has no axolotl.utils.schemas.config.CANONICAL_ATTN_IMPLS"):
        FlashMaskPlugin().register({})
