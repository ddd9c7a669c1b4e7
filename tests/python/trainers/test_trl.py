# SPDX-License-Identifier: Apache-2.0
"""TRL's SFTTrainer with attn_implementation="flashmask": the losses of its eager run, and no document sees another."""

import json
import os
import re
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="TRL runs on torch")
pytest.importorskip("trl", reason="these tests run TRL's own trainer: scripts/test-trainers trl")

import tiny_llama  # noqa: E402
from datasets import Dataset  # noqa: E402
from trl import SFTConfig, SFTTrainer  # noqa: E402

import flashmask.transformers.auto  # noqa: E402, F401

pytestmark = pytest.mark.slow
STEPS = 4


def trainer(tmp_path, implementation, *, packing):
    arguments = SFTConfig(
        output_dir=str(tmp_path / "out"),
        model_init_kwargs={"attn_implementation": implementation, "dtype": "float32"},
        packing=packing,
        max_length=64,
        max_steps=STEPS,
        per_device_train_batch_size=2,
        learning_rate=1e-2,
        lr_scheduler_type="constant",
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        bf16=False,
        gradient_checkpointing=False,
        use_cpu=True,
        disable_tqdm=True,
    )
    data = Dataset.from_dict({"text": tiny_llama.texts(48)})
    return SFTTrainer(tiny_llama.save(tmp_path / "model"), args=arguments, train_dataset=data)


def trained(tmp_path, implementation, *, packing):
    run = trainer(tmp_path, implementation, packing=packing)
    run.train()
    assert run.model.config._attn_implementation == implementation
    return [entry["loss"] for entry in run.state.log_history if "loss" in entry]


@pytest.mark.parametrize("packing", [True, False])
def test_losses_are_those_of_eager(tmp_path, packing):
    ours = trained(tmp_path, "flashmask", packing=packing)
    assert len(ours) == STEPS and ours[0] != ours[-1]
    assert ours == pytest.approx(trained(tmp_path, "eager", packing=packing), abs=2e-5)


def test_no_document_sees_another(tmp_path):
    run = trainer(tmp_path, "flashmask", packing=True)
    tiny_llama.assert_no_document_sees_another(run.model, next(iter(run.get_train_dataloader())))


def test_the_command_trains_in_the_process_that_it_starts(tmp_path):
    (tmp_path / "data").mkdir()
    lines = [json.dumps({"text": text}) + "\n" for text in tiny_llama.texts(16)]
    (tmp_path / "data" / "train.jsonl").write_text("".join(lines))
    command = [sys.executable, "-m", "flashmask.run", "trl", "sft", "--attn_implementation", "flashmask", "--packing"]
    command += ["--model_name_or_path", tiny_llama.save(tmp_path / "model"), "--dataset_name", str(tmp_path / "data")]
    command += ["--max_length", "64", "--max_steps", "1", "--logging_steps", "1", "--report_to", "none", "--use_cpu"]
    command += ["--bf16", "false", "--save_strategy", "no", "--output_dir", str(tmp_path / "out")]
    ran = subprocess.run(
        command, check=False, capture_output=True, text=True, env={**os.environ, "HF_HUB_OFFLINE": "1"}
    )
    assert ran.returncode == 0, ran.stderr
    assert len(re.findall(r"'loss': '[\d.]+'", ran.stdout)) == 1
