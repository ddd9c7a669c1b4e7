"""The Python example of the README runs as it is printed."""

import re
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def test_the_example_runs(capsys) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    variables: dict = {}
    exec(compile(example, str(README), "exec"), variables)
    assert variables["o"].shape == variables["q"].shape
    assert all(variables[name].grad.abs().max() > 0 for name in "qkv")
    assert variables["k"].grad[:, 1000:].abs().max() == 0  # nobody sees the padding
    assert "1024" in capsys.readouterr().out
