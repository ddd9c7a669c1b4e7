# SPDX-License-Identifier: Apache-2.0
"""Trainers whose sequences are spread over two processes with Gloo: the losses of one process."""

import importlib.util
import json
from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="its Trainer is what is tested")
pytest.importorskip("accelerate", reason="Trainer runs on it")
import trainers_of_ranks
from ranks import torchrun

pytestmark = pytest.mark.slow
RANKS = 2
TASKS = ["causal", "hybrid", *(["preference", "hybrid preference"] if importlib.util.find_spec("trl") else [])]


@pytest.fixture(scope="module")
def of_ranks(tmp_path_factory):
    """What each of two processes found, by task."""
    folder = tmp_path_factory.mktemp("ranks")
    done = torchrun(trainers_of_ranks.__file__, folder, *TASKS, ranks=RANKS)
    assert done.returncode == 0, done.stderr
    return [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(RANKS)]


@pytest.mark.parametrize("task", ["causal", "hybrid", "preference", "hybrid preference"])
def test_losses_and_gradients_are_those_of_one_process(task, of_ranks, tmp_path):
    if task not in TASKS:
        pytest.skip("TRL is not installed, and its DPOTrainer is what is tested")
    alone = trainers_of_ranks.run(task, tmp_path)
    losses = [loss for loss, _ in alone["steps"]]
    assert len(set(losses)) == len(losses) == trainers_of_ranks.STEPS
    shares = [found[task]["tokens"] for found in of_ranks]
    assert [sum(each) for each in zip(*shares, strict=True)] == alone["tokens"]
    assert min(map(min, shares)) > 0
    for found in of_ranks:
        assert found[task]["evaluation"] == pytest.approx(alone["evaluation"], rel=1e-5)
        for mine, expected in zip(found[task]["steps"], alone["steps"], strict=True):
            # Experts and states amplify rounding from step to step.
            assert mine == pytest.approx(expected, rel=1e-4 if "hybrid" in task else 2e-5)
