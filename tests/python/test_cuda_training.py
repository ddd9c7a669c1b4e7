# SPDX-License-Identifier: Apache-2.0
"""examples/train_packed.py on a GPU, as a user runs it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from cuda_device import needs_gpu

pytest.importorskip("transformers", reason="the example trains its Llama")

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_packed.py"
TASKS = ["sft", "lora", "dpo", "reward"]


@needs_gpu
@pytest.mark.skipif(not EXAMPLE.exists(), reason="the examples are in a checkout only")
def test_losses_are_the_same_bits_and_follow_sdpa(tmp_path):
    files = ["--png", tmp_path / "a.png", "--json", tmp_path / "a.json"]
    command = [sys.executable, EXAMPLE, "--device", "cuda", "--steps", "20", *files]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    tasks = json.loads((tmp_path / "a.json").read_text())["tasks"]
    assert list(tasks) == TASKS
    for found in tasks.values():
        losses = found["losses"]
        assert len(losses["flashmask"]) == 20
        assert losses["flashmask"] == losses["every tile"] == losses["again"]
