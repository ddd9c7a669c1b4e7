# SPDX-License-Identifier: Apache-2.0
"""examples/pack_hybrid.py, run as a reader would."""

import re
import runpy
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="runs its integration")

pytestmark = pytest.mark.usefixtures("one_thread")

EXAMPLE = Path(__file__).parents[2] / "examples/pack_hybrid.py"


def largest_difference(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["pack_hybrid.py", *arguments])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    said = capsys.readouterr().out
    losses = [float(loss) for loss in re.findall(r"packed ([\d.]+)", said)]
    assert losses[-1] < losses[0]
    return float(re.search(r"largest difference: (\S+)", said)[1])


def test_packed_and_one_by_one_learn_the_same(monkeypatch, capsys):
    assert largest_difference(monkeypatch, capsys) < 1e-4


def test_eager_attention_does_not(monkeypatch, capsys):
    assert largest_difference(monkeypatch, capsys, "--attention", "eager") > 1e-3
