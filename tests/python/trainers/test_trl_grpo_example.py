# SPDX-License-Identifier: Apache-2.0
"""examples/grpo_shared_prompts.py, run as a reader would."""

import re
import runpy
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="TRL runs on torch")
pytest.importorskip("trl", reason="it trains by TRL: scripts/test-trainers trl")

pytestmark = pytest.mark.usefixtures("one_thread")

EXAMPLE = Path(__file__).parents[3] / "examples/grpo_shared_prompts.py"


def test_both_runs_have_the_same_rewards(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [EXAMPLE.name, "--steps", "6", "--prompt", "96", "--answer", "8"])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    said = capsys.readouterr().out
    rewards = re.findall(r"reward ([\d.]+) by TRL, ([\d.]+) with shared prompts", said)
    assert len(rewards) == 3 and all(first == second for first, second in rewards)
    assert float(re.search(r"([\d.]+) times fewer", said)[1]) > 3
