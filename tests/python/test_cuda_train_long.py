# SPDX-License-Identifier: Apache-2.0
"""bench/train_long.py on a GPU: every contestant in bfloat16 on tiny models, and a hundred steps that repeat."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from cuda_device import needs_gpu

pytest.importorskip("transformers", reason="the models are Transformers'")
pytest.importorskip("peft", reason="all tasks but SFT learn PEFT's LoRA")

PROGRAM = Path(__file__).parents[2] / "bench" / "train_long.py"
pytestmark = [needs_gpu, pytest.mark.skipif(not PROGRAM.exists(), reason="the benchmarks are in a checkout only")]


def run(tmp_path, *arguments):
    """The rows that the program wrote; its status says whether losses and gradients agree."""
    out = tmp_path / "a.json"
    command = [sys.executable, PROGRAM, "--tiny", "--device", "cuda", "--out", out, *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(out.read_text())["rows"]


def test_every_contestant_agrees_in_every_task(tmp_path):
    but_flex = [f"{task}-tiny-x2/1K/*[!x]" for task in ("sft", "lora", "dpo", "rm")]  # which compiles for long
    rows = run(tmp_path, "--samples", "1", "--row", *but_flex, "rm-tiny-x2/1K/flex")
    flash = [name for name in rows if "varlen" in name]  # FlashAttention 2, 3 and 4, which may not be installed
    assert len(flash) == 4 * 3 and len(rows) == 4 * (3 + 4) + 1
    for name, row in rows.items():
        if name in flash and row["absent"]:
            continue
        assert not row["absent"]
        assert row["peak_card"] > 0 and row["measured"][0]["parts"]["attention backward"] > 0
        assert row["measured"][0]["mask_bytes"] > 0


@pytest.mark.parametrize("task", ["sft", "rm"])
def test_a_hundred_steps_repeat_to_the_bit(tmp_path, task):
    names = [f"convergence/{task}-tiny-x2/1K/{name}" for name in ("flashmask", "every-tile")]
    first = run(tmp_path, "--steps", "100", "--row", *names)
    again = run(tmp_path, "--steps", "100", "--again", "--row", names[0])
    ours, every = (first[name] for name in names)
    assert len(set(ours["losses"])) > 90
    assert ours["losses"] == every["losses"] == again[names[0]]["losses"]
    assert ours["checksum"] == every["checksum"] == again[names[0]]["checksum"]
