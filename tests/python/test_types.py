# SPDX-License-Identifier: Apache-2.0
"""What a type checker finds in a user's program."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import flashmask

pytest.importorskip("mypy", reason="checks types")

# Stand in for libraries that mypy reads for half a minute.
LIBRARIES = {
    "torch": """
from typing import Any
class Tensor: ...
def __getattr__(name: str) -> Any: ...
""",
    "numpy": """
from typing import Any, Generic, TypeVar
Shape = TypeVar("Shape")
Of = TypeVar("Of")
class dtype(Generic[Of]): ...
class ndarray(Generic[Shape, Of]): ...
def __getattr__(name: str) -> Any: ...
""",
}
SETTINGS = """
[mypy]
follow_imports = silent
strict = true
[mypy-torch.*,matplotlib.*]
follow_imports = skip
"""
PROGRAM = """
import flashmask
from flashmask import attention, decode_attention, flashmask_attention, masks, merge, scores, varlen_attention
from numpy import dtype, ndarray
from torch import Tensor

def program(q: Tensor, array: ndarray[int, dtype[int]], rows: Tensor, ends: Tensor, asked: bool) -> None:
    reveal_type(attention(q, q, q, masks.causal(8, 8)))  # Tensor
    reveal_type(attention(q, q, q, layout="bhsd", return_lse=True))  # tuple[Tensor, Tensor]
    reveal_type(attention(q, q, q, return_max_scores=True))  # tuple[Tensor, Tensor]
    reveal_type(attention(q, q, q, return_lse=True, return_max_scores=True))  # tuple[Tensor, Tensor, Tensor]
    reveal_type(attention(array, array, array))  # ndarray[Any, dtype[Any]]
    reveal_type(attention(q, q, q, return_lse=asked))  # Any
    reveal_type(flashmask_attention(q, q, q, rows, causal=True))  # Tensor
    reveal_type(flashmask_attention(q, q, q, rows, return_softmax_lse=True))  # tuple[Tensor, Tensor]
    both = flashmask_attention(q, q, q, return_softmax_lse=True, return_seed_offset=True)
    reveal_type(both)  # tuple[Tensor, Tensor, Tensor]
    reveal_type(varlen_attention(q, q, q, ends, ends, causal=True))  # Tensor
    reveal_type(varlen_attention(q, q, q, ends, ends, return_lse=True))  # tuple[Tensor, Tensor]
    reveal_type(varlen_attention(q, q, q, ends, ends, return_attn_probs=True))  # tuple[Tensor, Tensor, None]
    reveal_type(decode_attention(q, q, q))  # Tensor
    reveal_type(decode_attention(q, q, q, return_lse=True))  # tuple[Tensor, Tensor]
    reveal_type(merge(q, q, q, q))  # tuple[Tensor, Tensor]
    reveal_type(masks.causal_document([3, 4]))  # Mask
    attention(q, q, q, layout="sbhd")  # error
    attention(q, q, q, causal=True)  # error
    attention(q, q, q, softcpa=5.0)  # error
    attention(q, q, q, score=5.0)  # error
    attention(q, q, q, score=scores.softcap(5.0) | scores.alibi(q), dropout=0.1, deterministic=True)
    decode_attention(q, q, q, score=scores.bias(q), splits=2)
    decode_attention(q, q, q, invariant=True)  # error
    decode_attention(q, q, q, layout="sbhd")  # error
    flashmask_attention(q, q, q, window=3)  # error
    flashmask_attention(q, q, q, rows, deterministic=True, score=scores.softcap(5.0), sinks=q)
    flashmask_attention(q, q, q, rows, determinstic=True)  # error
    varlen_attention(q, q, q, ends)  # error
    varlen_attention(q, q, q, ends, ends, 8, 8, 0.1, causal=True, invariant=True)
    varlen_attention(q, q, q, ends, ends, scale=0.5)  # error
    flashmask.plan(None, q, q, score=scores.softcap(5.0), bias=True)
    flashmask.plan(None, q, q, alibi_slopes=q)  # error
    flashmask.plan(None, q, q, layout="sbhd")  # error
    flashmask.plan(None, q, q, visit="some")  # error
    masks.causal("8", 8)  # error
"""


def test_a_checker_knows_results_and_finds_wrong_arguments(tmp_path, monkeypatch):
    for name, text in LIBRARIES.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.pyi").write_text(text)
    (tmp_path / "mypy.ini").write_text(SETTINGS)
    (tmp_path / "program.py").write_text(PROGRAM)
    monkeypatch.setenv("MYPYPATH", f"{tmp_path}:{Path(flashmask.__file__).parents[1]}")
    command = [sys.executable, "-m", "mypy", "--cache-dir", "/dev/null", "--config-file", "mypy.ini", "program.py"]
    told = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False).stdout
    found = dict.fromkeys(re.findall(r"^program\.py:(\d+): error", told, re.M), "error")
    found |= {
        line: re.sub(r"\w+\.(\w+\.)*", "", kind)
        for line, kind in re.findall(r'^program\.py:(\d+): note: Revealed type is "(.*)"', told, re.M)
    }
    lines = enumerate(PROGRAM.splitlines(), 1)
    assert found == {str(number): line.split("  # ")[1] for number, line in lines if "  # " in line}, told
