# SPDX-License-Identifier: Apache-2.0
"""Policy updates over two processes with Gloo: those of TRL, for groups that are whole on a rank and that are cut."""

import os
import sys

import pytest

pytest.importorskip("torch", reason="TRL runs on torch")
pytest.importorskip("trl", reason="its trainers are what is tested: scripts/test-trainers trl")

import trl_grpo_ranks
from policy_updates import save
from ranks import torchrun

pytestmark = pytest.mark.slow


def test_runs_over_two_processes_are_those_of_trl(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    done = torchrun(trl_grpo_ranks.__file__, save(tmp_path), ranks=2)
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        for case in (*trl_grpo_ranks.CASES, "FSDP2"):
            assert f"rank {rank}, {case}: " in done.stdout
