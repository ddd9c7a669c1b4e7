"""docs/pytorch.md: it starts with ten lines that run, and the rest runs after them."""

import linecache
import re
from pathlib import Path

import pytest
import torch

PAGE = Path(__file__).parents[2] / "docs" / "pytorch.md"


@pytest.mark.skipif(not PAGE.exists(), reason="the pages are in a checkout only")
def test_the_examples_run(capsys):
    torch.manual_seed(0)
    page = PAGE.read_text()
    blocks = list(re.finditer(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL))
    assert len(blocks[0][1].strip().splitlines()) <= 10
    assert len(blocks) == page.count("```python")
    scope: dict[str, object] = {}
    for block in blocks:
        name = f"{PAGE}, line {page.count(chr(10), 0, block.start())}"
        linecache.cache[name] = (len(block[1]), None, block[1].splitlines(True), name)  # torch.compile reads the source
        exec(compile(block[1], name, "exec"), scope)
    assert "documents" in scope
    assert "visible" in capsys.readouterr().out
    torch._dynamo.reset()
