"""docs/transformers.md and its example, run as a reader would."""

import re
import runpy
from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="runs its integration")

torch = pytest.importorskip("torch", reason="Transformers runs on torch")

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def one_thread():
    """The models are too small to share."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_the_page_runs_from_top_to_bottom():
    text = (ROOT / "docs/transformers.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert text.index("```python") < 60 and len([line for line in blocks[0].splitlines() if line]) <= 10
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "docs/transformers.md", "exec"), names)
    assert names["chosen"].shape == names["rejected"].shape == (1,)


def test_the_example_learns(capsys):
    runpy.run_path(str(ROOT / "examples/pack_sft.py"), run_name="__main__")
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", capsys.readouterr().out)]
    assert len(losses) == 4 and losses[-1] < losses[0]
