# SPDX-License-Identifier: Apache-2.0
"""bench/policy_update.py: its contestants agree, which it asserts on a CPU. Timing is not tested."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="TRL runs on torch")
pytest.importorskip("trl", reason="its trainer is a contestant: scripts/test-trainers trl")

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))

import policy_update

pytestmark = pytest.mark.usefixtures("one_thread")


def test_contestants_agree(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(policy_update, "REPEATS", 1)
    given = ["--model", "tiny", "--prompts", "40", "--answers", "12", "--group", "4", "--uniform"]
    monkeypatch.setattr(sys, "argv", ["policy_update.py", *given])
    policy_update.main()
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if line.count("|") == 7]
    names = [row[0].removeprefix("| ") for row in rows[2:]]
    assert names == ["shared", "invariant", "unpadded, flashmask", "padded, sdpa"]
