"""docs/preference.md, run as a reader would."""

import re
from functools import partial
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="TRL runs on torch")
trl = pytest.importorskip("trl", reason="the page trains with it")

from trl_models import language_model, preferences, tokenizer  # noqa: E402

PAGE = Path(__file__).parents[2] / "docs/preference.md"


def test_the_page_runs_from_top_to_bottom(tmp_path, capsys, monkeypatch):
    for config in ("DPOConfig", "RewardConfig"):
        on_cpu = partial(getattr(trl, config), use_cpu=True, bf16=False, report_to="none", disable_tqdm=True)
        monkeypatch.setattr(trl, config, on_cpu)
    language_model("eager").save_pretrained(tmp_path / "model")
    given = {"name": str(tmp_path / "model"), "folder": str(tmp_path / "out"), "torch": torch}
    names = {**given, "data": preferences(), "tokenizer": tokenizer()}
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 5
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    promised = re.findall(r"print\(.*\)  # (.*)", blocks[-1])
    assert len(promised) == 2 and "\n".join(promised) + f"\n{names['batch'].mask}\n" in capsys.readouterr().out
    assert names["trainer"].state.global_step == 2
    assert all(each.grad is not None for each in names["model"].parameters())
