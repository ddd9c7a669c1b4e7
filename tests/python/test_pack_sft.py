# SPDX-License-Identifier: Apache-2.0
"""examples/pack_sft.py, run as a reader would."""

import re
import runpy
from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="runs its integration")

torch = pytest.importorskip("torch", reason="Transformers runs on torch")

ROOT = Path(__file__).parents[2]


pytestmark = pytest.mark.usefixtures("one_thread")


def test_the_example_learns(capsys):
    runpy.run_path(str(ROOT / "examples/pack_sft.py"), run_name="__main__")
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", capsys.readouterr().out)]
    assert len(losses) == 4 and losses[-1] < losses[0]
