# SPDX-License-Identifier: Apache-2.0
"""docs/trainers.md: short recipes, whose commands and settings work where their trainer is installed."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="trainers run on torch")

PAGE = Path(__file__).parents[3] / "docs" / "trainers.md"
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not PAGE.exists(), reason="the pages are in a checkout only")]
ON_A_CPU = ["--max_length", "64", "--max_steps", "1", "--logging_steps", "1", "--save_strategy", "no"]
ON_A_CPU += ["--report_to", "none", "--use_cpu", "true"]


def recipes(title, language):
    section = PAGE.read_text().split(f"\n## {title}\n")[1].split("\n## ")[0]
    return re.findall(rf"```{language}\n(.*?)```", section, re.DOTALL)


def needs(package):
    return pytest.mark.skipif(
        not importlib.util.find_spec(package), reason=f"{package} is not installed: scripts/test-trainers installs it"
    )


@pytest.fixture
def tiny(tmp_path):
    """Folders of a model and of data, as the recipes name them."""
    import tiny_llama

    (tmp_path / "data").mkdir()
    texts = [[("user", "w1"), ("assistant", text)] for text in tiny_llama.texts(32)]
    lines = [{"messages": [{"role": role, "content": content} for role, content in text]} for text in texts]
    named = {"MODEL": tiny_llama.save(tmp_path / "model"), "OUTPUT": str(tmp_path / "out")}
    for name, line in (("messages", lines), ("text", [{"text": text[1][1]} for text in texts])):
        (tmp_path / "data" / f"{name}.jsonl").write_text("".join(json.dumps(each) + "\n" for each in line))
        named[name] = str(tmp_path / "data" / f"{name}.jsonl")
    return named


def in_a_shell(recipe, more, **variables):
    """Runs a recipe's only command with more options."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "HF_HUB_OFFLINE": "1", **variables}
    command = f"{recipe.strip()} {' '.join(more)}"
    return subprocess.run(["bash", "-ec", command], check=False, capture_output=True, text=True, env=environment)


def test_recipes_are_short():
    blocks = re.findall(r"```\w+\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 12 and max(len(block.splitlines()) for block in blocks) <= 15


@needs("trl")
def test_trl_by_command(tiny):
    (recipe,) = recipes("TRL", "sh")
    folder = Path(tiny["text"]).parent / "one"
    folder.mkdir()
    shutil.copy(tiny["text"], folder / "train.jsonl")
    ran = in_a_shell(recipe, [*ON_A_CPU, "--bf16", "false"], **tiny, DATA=str(folder))
    assert ran.returncode == 0, ran.stderr
    assert len(re.findall(r"'loss': '[\d.]+'", ran.stdout)) == 1


@needs("axolotl")
def test_axolotl(tiny, tmp_path):
    import yaml
    from axolotl.cli.config import load_cfg

    (recipe,) = recipes("Axolotl", "yaml")
    rest = {"base_model": tiny["MODEL"], "datasets": [{"path": tiny["text"], "type": "completion"}], "sequence_len": 64}
    sizes = {"micro_batch_size": 1, "gradient_accumulation_steps": 1, "num_epochs": 1, "learning_rate": 1e-3}
    file = tmp_path / "axolotl.yaml"
    file.write_text(recipe + yaml.safe_dump({**rest, **sizes, "output_dir": tiny["OUTPUT"]}))
    configuration = load_cfg(str(file))
    assert configuration.attn_implementation == "flashmask" and configuration.attn_decontaminates_packing


@needs("swift")
def test_ms_swift(tiny):
    (recipe,) = recipes("ms-swift", "sh")
    more = ["--model_type", "llama", "--template", "dummy", "--tuner_type", "full", "--torch_dtype", "float32"]
    more += ["--split_dataset_ratio", "0", "--gradient_checkpointing", "false", "--dataset_num_proc", "1"]
    ran = in_a_shell(recipe, [*more, *ON_A_CPU], **tiny, DATA=tiny["messages"])
    assert ran.returncode == 0, ran.stderr
    assert "'global_step/max_steps': '1/1'" in ran.stdout + ran.stderr


@needs("swift")
def test_grpo_in_ms_swift(tiny):
    (recipe,) = recipes("GRPO in ms-swift", "sh")
    more = ["--model_type", "llama", "--template", "default", "--tuner_type", "full", "--torch_dtype", "float32"]
    more += ["--split_dataset_ratio", "0", "--gradient_checkpointing", "false", "--dataset_num_proc", "1"]
    more += ["--max_completion_length", "8", "--bf16", "false"]
    ran = in_a_shell(recipe, [*more, *ON_A_CPU], **tiny, DATA=tiny["messages"], REWARDS="format")
    assert ran.returncode == 0, ran.stderr
    assert "'global_step/max_steps': '1/1'" in ran.stdout + ran.stderr


@needs("torchtitan")
def test_torchtitan():
    from flashmask.integrations.torchtitan import FlashMaskAttention

    (recipe,) = recipes("torchtitan", "python")
    names = {}
    exec(recipe, names)
    inner = [layer.attention.inner_attention for layer in names["spec"].model.layers]
    assert inner and all(isinstance(each, FlashMaskAttention.Config) for each in inner)
