# SPDX-License-Identifier: Apache-2.0
"""python -m flashmask check: kernels against the formula, promises to the bit, and the report that is sent."""

import getpass
import json
import socket
from pathlib import Path

import pytest
from docs_scripts import DOCS, docs_script

torch = pytest.importorskip("torch")

import flashmask  # noqa: E402
from flashmask import _check, _report  # noqa: E402
from flashmask.__main__ import main  # noqa: E402


@pytest.fixture(autouse=True)
def few_of_everything(monkeypatch):
    """The scalar kernels of float32 on the CPU, under three masks."""
    table = [each for each in _check.kernels() if each["name"].startswith("scalar.") and each["dtype"] == "f32"]
    chosen = {name: _check.corpus()[name] for name in ("causal_document", "big_bird", "two masks")}
    for module in (_check, _report):
        monkeypatch.setattr(module, "kernels", lambda: table)
    monkeypatch.setattr(_check, "corpus", lambda: chosen)
    monkeypatch.setattr(_report, "_SIZES", {"cpu": (64, 2, ("float32",))})


def test_every_kernel_runs_by_name_and_passes():
    verdicts = {each.kernel: each for each in _check.check_kernels("cpu", lambda name: None)}
    assert sorted(verdicts) == sorted(each["name"] for each in _check.kernels())
    for each in verdicts.values():
        assert each.cases == (3 if each.kernel.endswith("bits") else 2), each  # big_bird fits no intervals
        assert each.passes and 0 < each.worst < 1 and each.where


def test_a_wrong_kernel_is_named(monkeypatch, capsys):
    right = flashmask.attention
    monkeypatch.setattr(flashmask, "attention", lambda *qkv, plan, **options: wrong(right(*qkv, plan=plan, **options)))

    def wrong(outputs):
        return (outputs[0] * 1.001, outputs[1]) if isinstance(outputs, tuple) else outputs

    assert main(["check", "--device", "cpu"]) == 1
    assert "MISSES  o of causal_document" in capsys.readouterr().out


def test_a_kernel_whose_direction_no_case_has_is_said(monkeypatch, capsys):
    """As on a GPU, where a plan finds out that it has no backward when that runs."""

    def without_backward(*qkv, plan, **options):
        raise NotImplementedError("backward: no backward kernel")

    monkeypatch.setattr(_check, "check_promises", lambda device: iter(()))
    monkeypatch.setattr(_report, "check_promises", lambda device: iter(()))
    monkeypatch.setattr(flashmask, "attention", without_backward)
    assert main(["check", "--device", "cpu"]) == 0
    assert capsys.readouterr().out.count("serves none of the cases") == 4


def test_promises_are_checked_bit_by_bit(monkeypatch):
    found = list(_check.check_promises("cpu"))
    assert len(found) == 4 and all(each.holds for each in found)
    right = flashmask.plan
    monkeypatch.setattr(flashmask, "plan", lambda *given, **options: right(*given, **options | {"invariant": False}))
    broken = [each.promise for each in _check.check_promises("cpu") if not each.holds]
    assert broken == ["a document has the bits that it has alone, if invariant"]


def test_the_report_says_what_was_found_and_nothing_personal(tmp_path, capsys):
    file = tmp_path / "report.json"
    assert main(["check", "--report", str(file)]) == 0
    said = capsys.readouterr().out
    assert "4 of 4 promises to the bit hold" in said and f"--body-file {file}" in said
    text = file.read_text()
    report = json.loads(text)
    assert report["report"] == 1 and report["flashmask"] == flashmask.__version__ and report["passes"] is True
    assert [each["cases"] for each in report["kernels"]] == [2, 2, 3, 3]
    assert {each["direction"] for each in report["speed"]} == {"forward", "backward"}
    assert all(each["milliseconds"] > 0 and each["pytorch_milliseconds"] > 0 for each in report["speed"])
    for personal in (socket.gethostname(), getpass.getuser(), str(Path.home()), "/"):
        assert personal not in text


def test_a_report_that_cannot_be_written_is_refused_before_anything_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(_report, "check", lambda device: pytest.fail("it ran"))
    file = tmp_path / "missing" / "report.json"
    assert main(["check", "--report", str(file)]) == 2
    assert str(file) in capsys.readouterr().err
    _report.check_writable(str(tmp_path / "new.json"))
    assert not list(tmp_path.iterdir())  # nothing is left where the run ends early


def test_a_broken_promise_fails_the_report():
    kept, broken = (_check.Promise("the same bits", "cpu", "f32", holds) for holds in (True, False))
    verdict = _check.Verdict("scalar", 3, 0.5, "o")
    assert _report.passes([verdict], [kept]) and not _report.passes([verdict], [kept, broken])
    assert "broken on cpu, f32: the same bits" in _report.as_text([verdict], [kept, broken])


def test_the_page_has_a_row_for_each_report():
    machines = docs_script("machines_table")
    text = (DOCS / "machines.md").read_text()
    assert machines.page(text) == text, "run: python docs/machines_table.py"
    assert machines.table().count("\n") == 2 + len(list((DOCS / "machines").glob("*.json")))
    for report in (DOCS / "machines").glob("*.json"):
        assert json.loads(report.read_text())["sender"]
