# SPDX-License-Identifier: Apache-2.0
"""examples/train_packed.py: a few steps of every task, and what it says where losses part."""

import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="Transformers runs on torch")
pytest.importorskip("transformers", reason="the example trains its Llama")
pytest.importorskip("matplotlib", reason="the example draws its losses")

import flashmask  # noqa: E402

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_packed.py"
pytestmark = pytest.mark.skipif(not EXAMPLE.exists(), reason="the examples are in a checkout only")


@pytest.fixture
def example():
    """The module; what its main() sets in torch is put back."""
    spec = importlib.util.spec_from_file_location("train_packed", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    sys.modules["train_packed"] = module
    threads = torch.get_num_threads()
    spec.loader.exec_module(module)
    yield module
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)
    del sys.modules["train_packed"]


@pytest.fixture
def run(example, tmp_path):
    """main() with files in tmp_path: its status, and the JSON it wrote."""

    def run(*arguments):
        files = ["--png", str(tmp_path / "a.png"), "--json", str(tmp_path / "a.json")]
        status = example.main([*arguments, *files])
        return status, json.loads((tmp_path / "a.json").read_text())

    return run


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.full)])
def test_every_task_keeps_its_losses(run, tmp_path, capsys, dtype):
    status, written = run("--steps", "8", "--dtype", dtype)
    assert status == 0
    assert list(written["tasks"]) == ["sft", "lora", "dpo", "reward"]
    for found in written["tasks"].values():
        losses = found["losses"]
        assert losses["flashmask"] == losses["every tile"] == losses["again"]
        assert len(set(losses["flashmask"])) == 8
        assert losses["SDPA dense"] == pytest.approx(losses["flashmask"], abs=1e-5 if dtype == "float32" else 1e-2)
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    assert printed.count("8 losses, and the weights after them, are the same bits") == 4
    assert f"{written['tasks']['dpo']['losses']['flashmask'][2]:.7f}" in printed


@pytest.mark.slow
def test_the_losses_fall(run):
    _, written = run("--steps", "25", "--task", "sft")
    losses = written["tasks"]["sft"]["losses"]["flashmask"]
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])


def test_a_seed_repeats_and_another_one_differs(run):
    losses = [run("--steps", "2", "--task", "reward", "--seed", seed)[1]["tasks"]["reward"]["losses"] for seed in "112"]
    assert losses[0] == losses[1] != losses[2]


def one_bit_changed(value):
    """A float32 number with another bit: the highest of its mantissa, so that no rounding hides it."""
    changed = value.detach().clone()
    changed.view(torch.int32).bitwise_xor_(1 << 22)
    return changed


@pytest.mark.parametrize("name", ["every tile", "again"])
def test_a_differing_bit_of_an_output_is_an_error(run, example, capsys, name):
    class OneBitOff(example.Way):
        def outputs(self, model, batch):
            outputs = super().outputs(model, batch)
            sequence, token = (batch["labels"] >= 0).nonzero()[0].tolist()
            score = sequence, token - 1, int(batch["labels"][sequence, token])  # of the word that is to come
            difference = torch.zeros_like(outputs)
            difference[score] = one_bit_changed(outputs[score]) - outputs[score].detach()
            return outputs + difference

    example.WAYS[name] = OneBitOff(*example.WAYS[name])
    status, written = run("--steps", "2", "--task", "sft")
    assert status == 1
    assert written["tasks"]["sft"]["broken"]
    said = capsys.readouterr().err
    assert re.search(rf"sft: BROKEN at step 1: {name} has the loss [\d.]+, flashmask [\d.]+", said)
    assert f"sft: BROKEN after training: weights of {name} and of flashmask are not the same bits" in said


@pytest.mark.parametrize("name", ["every tile", "again"])
def test_a_differing_bit_of_a_weight_is_an_error(run, example, monkeypatch, capsys, name):
    honest = example.train

    def train(*given):
        runs = honest(*given)
        weight = next(runs[name].model.parameters()).data.view(-1)
        weight[0] = one_bit_changed(weight[0])
        return runs

    monkeypatch.setattr(example, "train", train)
    assert run("--steps", "1", "--task", "sft")[0] == 1
    said = capsys.readouterr().err
    assert f"sft: BROKEN after training: weights of {name} and of flashmask are not the same bits" in said
    assert "BROKEN at step" not in said


@pytest.mark.parametrize("task", ["sft", "dpo"])
def test_a_leak_between_documents_is_an_error(run, example, monkeypatch, capsys, task):
    honest = example.collate

    def leaking(chosen, length):
        batch = honest(chosen, length)
        ends = batch["startend_row_indices"]
        ends[:, :, 0] = torch.where(ends[:, :, 0] > 0, length, 0)  # everybody sees the first token of a sequence
        return batch

    monkeypatch.setattr(example, "collate", leaking)
    assert run("--steps", "3", "--task", task)[0] == 1
    assert "SDPA dense is" in capsys.readouterr().err


def test_a_missing_kernel_is_said_before_training(run, monkeypatch):
    def none(*_):
        raise NotImplementedError("no kernel serves float32 here")

    monkeypatch.setattr(flashmask, "attention", none)
    with pytest.raises(SystemExit, match="cannot train in float32 on cpu: no kernel serves float32 here"):
        run("--steps", "2")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_missing_device_is_said_before_training(run):
    with pytest.raises(SystemExit, match="cannot train in bfloat16 on cuda: "):
        run("--device", "cuda")


def test_losses_are_kept_without_matplotlib(run, monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    status, written = run("--steps", "1", "--task", "reward")
    assert status == 0 and len(written["tasks"]["reward"]["losses"]["flashmask"]) == 1
    assert not (tmp_path / "a.png").exists() and "no picture: matplotlib" in capsys.readouterr().out


def test_no_steps_are_refused(example, capsys):
    with pytest.raises(SystemExit):
        example.main(["--steps", "0"])
    assert "--steps is 0; expected at least 1" in capsys.readouterr().err
