"""docs/pytorch.md: it starts with ten lines that run, and the rest runs after them."""

import re
from pathlib import Path

import pytest
import torch

PAGE = Path(__file__).parents[2] / "docs" / "pytorch.md"


@pytest.mark.skipif(not PAGE.exists(), reason="the pages are in a checkout only")
def test_the_examples_run(capsys):
    torch.manual_seed(0)
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks[0].strip().splitlines()) <= 10
    assert len(blocks) == PAGE.read_text().count("```python")
    scope: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), scope)
    assert "documents" in scope
    assert "visible" in capsys.readouterr().out
    torch._dynamo.reset()
