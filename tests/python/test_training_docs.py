"""The lines of docs/training.md about long sequences, run as a reader would."""

import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="flashmask.training is for torch")
pytest.importorskip("transformers", reason="long_context() takes its models")

from training_models import batch, tiny  # noqa: E402

pytestmark = pytest.mark.slow  # whole models, which say nothing about one instruction set
PAGE = Path(__file__).parents[2] / "docs" / "training.md"


@pytest.mark.skipif(not PAGE.exists(), reason="the documents are in a checkout only")
def test_the_page_trains(tmp_path, capsys):
    tiny().save_pretrained(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names = {"name": tmp_path, "device": "cpu", "tokens": 202, "loader": [batch(seed=each) for each in range(2)]}
    exec(compile(code, "docs/training.md", "exec"), names)
    assert re.match(r"A step takes 0\.0 GiB on the card and 0\.0 GiB on the host\n", capsys.readouterr().out)
    assert names["held"].host_memory.bytes == 0 and names["model"].dtype == torch.bfloat16
    learned = tiny().bfloat16()
    assert not torch.equal(names["model"].lm_head.weight, learned.lm_head.weight)
