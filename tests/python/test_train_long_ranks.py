# SPDX-License-Identifier: Apache-2.0
"""bench/train_long.py over two ranks, on a CPU: what one process has, and what is said where ranks are missing."""

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="the models are Transformers'")
pytest.importorskip("peft", reason="the row learns PEFT's LoRA")
pytest.importorskip("matplotlib", reason="the benchmark draws its numbers")
BENCH = Path(__file__).parents[2] / "bench"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not BENCH.exists(), reason="the benchmarks are in a checkout only"),
    pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed"),
]
sys.path.insert(0, str(BENCH))

from ranks import torchrun  # noqa: E402
from training.results import Results  # noqa: E402

ROW = "record/lora-tiny-ranks2/2K/flashmask"


def run(*arguments, ranks):
    return torchrun(BENCH / "train_long.py", "--tiny", "--device", "cpu", *arguments, ranks=ranks)


@pytest.mark.parametrize("options", [[], ["--samples", "3"]], ids=str)
def test_two_ranks_learn_what_one_does(tmp_path, options):
    out = str(tmp_path / "a.json")
    for ranks, row in ((1, "record/lora-tiny/2K/flashmask"), (2, ROW)):
        done = run("--row", row, "--out", out, *options, ranks=ranks)
        assert done.returncode == 0, done.stderr
    one, two = (Results.load(Path(out)).rows[row] for row in ("record/lora-tiny/2K/flashmask", ROW))
    assert len(one.measured) == len(two.measured) == (3 if options else 1)
    for alone, spread in zip(one.measured, two.measured, strict=True):
        assert spread.loss == pytest.approx(alone.loss, rel=1e-6)
        assert spread.gradient_norm == pytest.approx(alone.gradient_norm, rel=1e-3)
        assert 2 * spread.model_flops == alone.model_flops
        assert 2 * spread.hardware_flops == pytest.approx(alone.hardware_flops)


def test_memory_that_one_rank_has_not_ends_all(tmp_path):
    done = run("--row", ROW, "--card", "1", "--out", str(tmp_path / "a.json"), ranks=2)
    assert done.returncode != 0
    assert f"{ROW}: not measured: rank 0: it takes" in done.stderr


def test_says_how_ranks_are_started(tmp_path):
    done = run("--row", ROW, "--out", str(tmp_path / "a.json"), ranks=1)
    assert done.returncode == 1
    expected = f"{ROW}: takes 2 ranks, 1 started; expected torchrun --nproc-per-node 2 bench/train_long.py"
    assert expected in done.stderr
