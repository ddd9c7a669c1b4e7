# SPDX-License-Identifier: Apache-2.0
"""bench/train_long.py: its contestants against each other on tiny models, its accounts of work, its files."""

import argparse
import itertools
import json
import re
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="the models are Transformers'")
pytest.importorskip("peft", reason="all tasks but SFT learn PEFT's LoRA")
pytest.importorskip("matplotlib", reason="the benchmark draws its numbers")
BENCH = Path(__file__).parents[2] / "bench"
pytestmark = pytest.mark.skipif(not BENCH.exists(), reason="the benchmarks are in a checkout only")
sys.path.insert(0, str(BENCH))

import train_long  # noqa: E402
from torch.nn.functional import logsigmoid, scaled_dot_product_attention  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402
from training import contestants, memory, pictures, report, shapes  # noqa: E402
from training.batches import batch_of  # noqa: E402
from training.clock import Clock  # noqa: E402
from training.drawn import SAMPLES, alpaca_samples  # noqa: E402
from training.models import make_model  # noqa: E402
from training.results import Measured, Results, RowResult  # noqa: E402
from training.rows import all_rows, tiny_rows  # noqa: E402
from training.tasks import Learner  # noqa: E402
from training.texts import text_examples  # noqa: E402

import flashmask  # noqa: E402
from flashmask.data.synthetic import TASKS, Sample  # noqa: E402

CPU = torch.device("cpu")
SAMPLE = {
    "sft": Sample(40, ((20, 6), (7, 4))),
    "dpo": Sample(40, ((10, 3, 4), (12, 2, 5))),
    "rm": Sample(60, ((10, 3, 2, 1, 4, 2, 3), (12, 2, 5, 1, 1, 3, 2))),
}
SAMPLE["lora"] = SAMPLE["sft"]


def documents_one_by_one(q, k, v, ends_q, ends_k, longest_q, longest_k, *, window_size, enable_gqa=True):
    """What FlashAttention computes over documents side by side [tokens, heads, head dim]."""
    assert torch.equal(ends_q, ends_k) and window_size == (-1, 0)
    assert longest_q == longest_k == int(ends_q.diff().max())
    found = []
    for begin, end in itertools.pairwise(ends_q.tolist()):
        heads = (each[begin:end].transpose(0, 1) for each in (q, k, v))
        o = scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True)
        found.append(o.transpose(0, 1))
    return torch.cat(found)


@pytest.fixture
def varlen_on_a_cpu(monkeypatch):
    monkeypatch.setattr(contestants, "_varlen_attention", lambda device: documents_one_by_one)


@pytest.fixture
def run(tmp_path):
    """main() with results in tmp_path: its status, and the rows it wrote."""

    def run(*arguments):
        path = tmp_path / "a.json"
        status = train_long.main(["--tiny", "--device", "cpu", "--out", str(path), *arguments])
        return status, json.loads(path.read_text())["rows"]

    return run


# ---- a step ----


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.usefixtures("varlen_on_a_cpu")
def test_every_contestant_has_the_same_loss_and_gradient(run, task):
    """In float32, whether answers share their question or come with it again."""
    status, rows = run("--samples", "1", "--row", f"{task}-tiny-x2/*")
    assert status == 0
    found = {row["row"]["contestant"]: row["measured"][0] for row in rows.values() if not row["absent"]}
    assert set(found) == {"flashmask", "every-tile", "varlen", "dense", "eager"}
    assert rows[f"{task}-tiny-x2/1K/flex"]["absent"] == "FlexAttention has no backward on a CPU"
    ours = found["flashmask"]
    for other in found.values():
        assert other["loss"] == pytest.approx(ours["loss"], rel=2e-6)
        assert other["gradient_norm"] == pytest.approx(ours["gradient_norm"], rel=1e-4)
        assert other["seconds"] == pytest.approx(sum(s for p, s in other["parts"].items() if p != "copies"))
    assert found["every-tile"]["loss"] == ours["loss"]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("varlen3", "'flash_attn_interface'; it is built from the folder hopper of FlashAttention's sources"),
        ("varlen4", "pip install flash-attn-4"),
    ],
)
def test_a_newer_flash_attention_is_given_documents(name, sentence, monkeypatch):
    """By a stub; where it is not installed the row says how to install it."""
    contestant = contestants.CONTESTANTS[name]
    assert contestant.label == f"FlashAttention-{name[-1]}, varlen"
    q, k = torch.randn(1, 12, 4, 8), torch.randn(1, 12, 2, 8)
    given = SimpleNamespace(tokens=12, documents=[3, 5], sharding=None)
    with pytest.raises(contestants.Absent, match=f"not installed: .*{re.escape(sentence)}"):
        contestant.prepare(given, q, k)

    def flash_attn_varlen_func(q, k, v, *, causal, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k):
        assert causal and max_seqlen_q == max_seqlen_k == 5
        assert cu_seqlens_q.tolist() == cu_seqlens_k.tolist() == [0, 3, 8, 12]
        ends = (cu_seqlens_q, cu_seqlens_k)
        return documents_one_by_one(q, k, v, *ends, 5, 5, window_size=(-1, 0)), None

    package = SimpleNamespace(flash_attn_varlen_func=flash_attn_varlen_func)
    monkeypatch.setattr(contestants, "_flash_attention", lambda module, install, device: package)
    o = contestant.prepare(given, q, k)(q, k, k)
    torch.testing.assert_close(o, flashmask.attention(q, k, k, flashmask.masks.causal_document([3, 5, 4])))


def session_of(name):
    (row,) = train_long.chosen(tiny_rows(), [name])
    return train_long.Session(row, argparse.Namespace(device=CPU, fuse="no", card=None, ranks=None))


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_the_loss_is_that_of_the_plain_model(task):
    """Transformers' model as it is, under the mask's booleans, and losses over all logits."""
    with session_of(f"{task}-tiny-x2/1K/flashmask") as session:
        sample, _ = session.samples()[0]
        batch = session.batch(sample)
        session.ready(batch)
        found = session.learner.loss(batch).item()
    assert found == pytest.approx(plain_loss(session, sample, batch), rel=2e-6)


@torch.no_grad()
def plain_loss(session, sample, batch):
    adapted, model = session.learner.model, session.learner.base
    model.config._attn_implementation = "eager"
    visible = torch.as_tensor(sample.mask().to_dense())[0, 0] | torch.eye(sample.tokens, dtype=torch.bool)
    added = torch.zeros(visible.shape).masked_fill(~visible, -1e30)[None, None]

    def hidden():
        given = {"input_ids": batch.input_ids, "position_ids": batch.position_ids, "attention_mask": added}
        return model.model(**given).last_hidden_state[0]

    if session.row.task == "rm":
        return float(ranking(model, hidden(), sample))
    log_probs = predicting(model, hidden(), sample, batch)
    if session.row.task != "dpo":
        return float(-log_probs.sum() / sum(sum(answers) for _, *answers in sample.documents))
    with adapted.disable_adapter():
        gains = log_probs - predicting(model, hidden(), sample, batch)
    chosen, rejected = gains.view(-1, 2).unbind(-1)
    return float(-logsigmoid(0.1 * (chosen - rejected)).mean())


def places(sample):
    """(question's last row, first row, end) of each answer."""
    start = 0
    for question, *answers in sample.documents:
        first = start + question
        for answer in answers:
            yield start + question - 1, first, first + answer
            first += answer
        start = first


def predicting(model, hidden, sample, batch):
    """The log-probability of each answer."""
    log_probs = model.lm_head(hidden).log_softmax(-1)
    ids = batch.input_ids[0]
    return torch.stack(
        [
            sum(log_probs[row if token == first else token - 1, ids[token]] for token in range(first, end))
            for row, first, end in places(sample)
        ]
    )


def ranking(model, hidden, sample):
    scores = model.score(hidden)[:, 0]
    ends = [end - 1 for _, _, end in places(sample)]
    losses = []
    for document in range(len(sample.documents)):
        own = scores[ends[6 * document : 6 * document + 6]]
        losses += [-logsigmoid(own[i] - own[j]) for i in range(6) for j in range(i + 1, 6)]
    return sum(losses) / len(losses)


def test_a_reference_model_is_the_model_without_its_adapters():
    """So that DPO begins at log 2, and that its gradient moves it."""
    with session_of("dpo-tiny-x2/1K/flashmask") as session:
        batch = session.batch(session.samples()[0][0])
        session.ready(batch)
        first, second = (session.step(batch)[1] for _ in range(2))
    assert first == pytest.approx(np.log(2), abs=1e-6)
    assert second < first


@pytest.mark.slow
@pytest.mark.parametrize(("keep", "offload", "hold"), [(1, 1, False), (2, 0, False), (1, 0, True), (1, 1, True)])
def test_where_inputs_are_kept_changes_no_result(run, monkeypatch, capsys, keep, offload, hold):
    name = "lora-tiny-x2/1K/flashmask"
    expected = run("--row", name)[1][name]["measured"]
    monkeypatch.setattr(train_long, "least", lambda *_, **__: memory.Need(1 << 30, 0, keep, offload, hold))
    found = run("--again", "--row", name)[1][name]["measured"]
    assert [each["loss"] for each in found] == [each["loss"] for each in expected]
    assert [each["gradient_norm"] for each in found] == pytest.approx([each["gradient_norm"] for each in expected])
    assert all((each["parts"].get("copies", 0) > 0) == (offload > 0) for each in found)
    assert ("GiB of the host locked in" in capsys.readouterr().err) == (offload > 0)


@pytest.mark.slow
def test_an_interrupted_row_leaves_the_others_and_gives_memory_back(run, monkeypatch, tmp_path, capsys):
    first = run("--row", "lora-tiny-x2/1K/flashmask")[1]
    held = []

    def interrupted(session, *_):
        held.append(session)
        raise KeyboardInterrupt

    monkeypatch.setattr(train_long, "measure_sample", interrupted)
    monkeypatch.setattr(train_long, "least", lambda *_, **__: memory.Need(1 << 30, 0, 1, 1))
    status, rows = run("--row", "lora-tiny-x2/1K/flashmask", "lora-tiny-x2/1K/dense")
    assert status == 130 and rows == first
    assert held[0].context.host_memory.bytes == 0
    assert "Interrupted; rows that were done are in" in capsys.readouterr().err


# ---- what a step is given ----


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("repeat", [False, True])
def test_a_batch_asks_for_every_word_of_every_answer_once(task, repeat):
    sample = SAMPLE[task]
    examples = sample.examples(50)
    batch = batch_of(task, sample, examples, repeat=repeat, device=CPU)
    assert batch.tokens == (sample.repeated_tokens if repeat else sample.tokens)
    answers = [
        (example["prompt_ids"], answer)
        for example in examples
        for answer in example.get("answer_ids", [example.get("completion_ids")])
    ]
    assert len(batch.ends) == len(answers)
    ids = batch.input_ids[0]
    for number, (question, answer) in enumerate(answers):
        own = batch.answer_of == number
        assert batch.words[own].tolist() == answer.tolist()
        rows = batch.predictors[own]
        assert ids[rows].tolist() == [question[-1], *answer[:-1]]
        assert batch.position_ids[0, rows].tolist() == list(range(len(question) - 1, len(question) + len(answer) - 1))
        assert ids[batch.ends[number]] == answer[-1]
        assert batch.position_ids[0, batch.ends[number]] == len(question) + len(answer) - 1


def test_documents_are_whole_sequences_for_kernels_without_masks():
    sample = SAMPLE["dpo"]
    examples = sample.examples(50)
    assert batch_of("dpo", sample, examples, repeat=False, device=CPU).documents == (17, 19)
    assert batch_of("dpo", sample, examples, repeat=True, device=CPU).documents == (13, 14, 14, 17)


def test_texts_can_be_learned_and_have_the_samples_lengths():
    (example,) = text_examples(Sample(900, ((500, 100, 200),)), 128256, seed=0)
    assert [len(example["prompt_ids"]), *map(len, example["answer_ids"])] == [500, 100, 200]
    assert example["prompt_ids"].min() >= 1 and example["prompt_ids"].max() <= 500
    follows = [np.mean((one[1:] - one[:-1]) % 500 == 1) for one in (example["prompt_ids"], *example["answer_ids"])]
    assert follows == pytest.approx([0.9, 0.9, 0.6], abs=0.1)


# ---- accounts ----


@pytest.mark.parametrize("task", TASKS)
def test_work_is_what_torch_counts_in_a_plain_step(task):
    """Of two layers without chunks, which compute nothing twice; eager attention takes all pairs, and four back."""
    shape, count = shapes.SHAPES["tiny"], TASKS[task].answers
    sample = Sample(64, ((64 - 5 * count, *[5] * count),))
    learner = Learner(make_model(shape, 2, task, "eager", CPU, torch.float32), task, Clock(CPU))
    learner.base.enable_input_require_grads()
    batch = batch_of(task, sample, sample.examples(shape.vocabulary), repeat=False, device=CPU)
    with FlopCounterMode(display=False) as counter:
        learner.loss(batch).backward()
    forwards = 2 if task == "dpo" else 1
    linear = shapes.model_flops(shape, 2, task, sample) - 2 * shape.attention_flops(sample.visible_pairs) * (
        forwards + 2.5
    )
    logits_again = 2 * 5 * count * shape.hidden * shape.vocabulary if task == "dpo" else 0
    eager = 2 * shape.attention_flops(64 * 64) * (forwards + 2)
    assert counter.get_total_flops() == pytest.approx(linear + logits_again + eager, rel=2e-3)


def test_hardware_runs_each_layer_forward_twice():
    shape, sample = shapes.SHAPES["8b"], Sample(1000, ((900, 100),))
    weights = shape.parameters(4) - 2 * 4096 * 128256
    needed = shapes.model_flops(shape, 4, "lora", sample) - 4 * 3.5 * shape.attention_flops(sample.visible_pairs)
    computed = shapes.hardware_flops(shape, 4, "lora", sample, 1000, 0.0)
    assert computed - needed == pytest.approx(2 * 1000 * (weights + shape.adapters(4)))


def test_shapes_have_the_parameters_of_llama():
    """Norms are left out."""
    assert shapes.SHAPES["8b"].parameters(32) == pytest.approx(8.03e9, rel=1e-3)
    assert shapes.SHAPES["1b"].parameters(16) == pytest.approx(1.236e9, rel=1e-3)
    model = make_model(shapes.SHAPES["1b"], 16, "sft", "sdpa", torch.device("meta"), torch.bfloat16)
    assert sum(each.numel() for each in model.parameters()) == pytest.approx(1.236e9, rel=1e-3)


def least(row_name, card, host, hold=False):
    (row,) = train_long.chosen(all_rows(), [row_name])
    model = make_model(row.size, row.layers, row.task, "sdpa", torch.device("meta"), torch.bfloat16)
    return memory.least(model, row.tokens, 0, card * memory.GIB, host * memory.GIB, hold=hold)


@pytest.mark.slow
def test_inputs_go_to_the_host_only_as_far_as_they_must():
    roomy, tight = (least("record/lora-8b/128K/flashmask", card, 120) for card in (139, 45))
    assert (roomy.keep, roomy.offload, roomy.host) == (1, 0, 0)
    assert tight.keep == 1 and 0 < tight.offload < 32 and tight.card < roomy.card
    assert tight.host == tight.offload * 128 * 1024 * 4096 * 2
    assert least("record/lora-8b/128K/flashmask", 50, 2).keep == 2
    held = least("record/lora-8b/128K/flashmask", 139, 120, hold=True)
    assert held.hold and held.card > roomy.card + 30 * memory.GIB
    behind = least("record/lora-8b/128K/flashmask", 80, 120, hold=True)
    assert behind.hold and 0 < behind.offload < 32
    assert not least("record/lora-8b/128K/flashmask", 45, 120, hold=True).hold


@pytest.mark.slow
def test_what_is_not_there_is_said_in_a_sentence():
    with pytest.raises(memory.TooLarge, match=r"it takes .* GiB on the card and .*; 20.0 GiB and 30.0 GiB are free"):
        least("record/lora-8b/1M/flashmask", 20, 30)


def test_a_row_that_does_not_fit_is_not_begun(run, monkeypatch, capsys):
    monkeypatch.setattr(train_long, "free_on_host", lambda: 1 << 20)
    status, rows = run("--row", "lora-tiny-x2/1K/flashmask")
    (row,) = rows.values()
    assert status == 1 and row["measured"] == [] and "GiB are free" in row["absent"]
    assert "lora-tiny-x2/1K/flashmask: not measured: it takes" in capsys.readouterr().err


# ---- time ----


def test_the_clock_knows_both_directions():
    clock, x = Clock(CPU), torch.ones(3, requires_grad=True)

    class Slow(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            time.sleep(0.02)
            return 2 * x

        @staticmethod
        def backward(ctx, grad):
            time.sleep(0.05)
            return 2 * grad

    clock.both_ways("part", Slow.apply, x).sum().backward()
    assert x.grad.tolist() == [2, 2, 2]
    taken = clock.seconds()
    assert taken["part forward"] == pytest.approx(0.02, abs=0.015) and taken["part backward"] == pytest.approx(
        0.05, abs=0.015
    )
    assert clock.counts() == {"part forward": 1, "part backward": 1}
    clock.restart()
    assert clock.seconds() == {}


# ---- rows and their file ----


def test_rows_have_names_of_their_own(capsys):
    assert train_long.main(["--list"]) == 0
    names = capsys.readouterr().out.split()
    assert len(names) == len(set(names)) == len(all_rows())
    wanted = ["lora-8b-x4/64K/dense", "rm-8b-x4/64K/varlen", "sft-1b-x16/256K/flashmask", "dpo-8b-x4/8K/eager"]
    wanted += [f"record/lora-8b/{length}/flashmask" for length in ("128K", "544K", "1M")]
    wanted += [f"record/lora-8b-sparsest/{length}/flashmask" for length in ("544K", "1M")]
    wanted += ["record/sft-1b/1M/flashmask", *(f"convergence/{task}-8b-x4/8K/every-tile" for task in TASKS)]
    assert set(wanted) <= set(names)
    assert {row.tokens for row in all_rows() if row.name.startswith("record/lora-8b/544K")} == {557056}


def test_nothing_asked_for_is_refused(capsys):
    with pytest.raises(SystemExit):
        train_long.main([])
    assert "nothing is asked for; expected --row, --list, --tables or --pictures" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--tables", "--out", "/nowhere/a.json"], "/nowhere/a.json is not there; expected what rows were measured"),
        (["--row", "*", "--device", "cuda"], "--device is cuda, but torch finds no GPU here; expected cpu"),
        (["--row", "*", "--device", "tpu"], "invalid choice: 'tpu'"),
        (["--row", "*", "--fuse", "liger"], "--fuse is liger, but Liger-kernel is not installed: pip install"),
    ],
)
def test_what_is_missing_is_said_before_a_row_begins(monkeypatch, capsys, arguments, says):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(train_long.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit):
        train_long.main(["--tiny", *arguments])
    assert says in capsys.readouterr().err


def test_files_of_others_are_refused(tmp_path):
    path = tmp_path / "a.json"
    for held in ("{", "[]", '{"rows": {"x": {"measured": [], "y": 1}}}'):
        path.write_text(held)
        with pytest.raises(SystemExit, match="holds no results of this program"):
            train_long.main(["--tables", "--out", str(path)])


def test_a_name_that_no_row_has_is_refused(run):
    with pytest.raises(SystemExit, match="no row is named lora-9b"):
        run("--row", "lora-9b")


@pytest.mark.slow
def test_results_gather_over_calls(run, capsys):
    run("--row", "record/*")
    printed = capsys.readouterr().err
    assert printed.count("layer 1 of 2, forward") == printed.count("layer 2 of 2, backward") == 2
    first = run("--row", "convergence/lora-tiny-x2/*")[1]
    assert len(first) == 4
    again = run("--row", "convergence/lora-tiny-x2/1K/flashmask", "record/*")[1]
    assert again == first
    assert "record/lora-tiny/2K/flashmask: " in (said := capsys.readouterr().err) and said.count("has it; --again") == 2
    losses = {row["row"]["contestant"]: row["losses"] for row in first.values() if row["losses"]}
    assert losses["flashmask"] == losses["every-tile"] and len(set(losses["flashmask"])) == 4
    assert losses["dense"] == pytest.approx(losses["flashmask"], abs=1e-5)
    sums = {row["row"]["contestant"]: row["checksum"] for row in first.values() if row["losses"]}
    assert sums["flashmask"] == sums["every-tile"] != sums["dense"]
    assert not torch.are_deterministic_algorithms_enabled()


def result(name, seconds, **changed):
    """A row that was measured, of two samples that stand for three and for one."""
    (row,) = train_long.chosen(all_rows(), [name])
    parts = {"linear": 0.5, "attention forward": 0.2, "attention backward": 0.2, "loss": 0.1, "copies": 0.3}
    sample = {
        "documents": [[10, 2]],
        "sparsity": 0.8,
        "loss": 11.7,
        "gradient_norm": 1.0,
        "model_flops": 4e14,
        "hardware_flops": 5e14,
        "attention_flops": 2e14,
        "alone": 0.32,
        "mask_seconds": 0.001,
        "mask_bytes": 3 << 20,
    }
    measured = [Measured(**sample, weight=w, seconds=s * seconds, parts=parts) for w, s in ((3, 1.0), (1, 2.0))]
    run = {"date": "2026-11-23", "device": "a GPU", "torch": "2", "transformers": "5", "flashmask": "0", "command": "c"}
    return RowResult(name, train_long.asdict(row), run, measured=measured, **changed)


def test_a_mean_is_over_all_samples_by_their_weight():
    row = result("lora-8b-x4/64K/flashmask", 1.0)
    assert row.seconds == 1.25 and row.tokens_per_second == 65536 / 1.25
    assert row.attention_rate == 2e14 / 0.4 and row.rate("model_flops") == 4e14 / 1.25
    assert "1.250 s a step, 52,429 tokens/s" in row.line()


def test_tables_and_pictures_are_of_what_the_file_has(tmp_path, capsys):
    results = Results.load(tmp_path / "a.json")
    results.add(result("lora-8b-x4/64K/flashmask", 1.0, peak_card=24 << 30, peak_host=3 << 30))
    results.add(result("lora-8b-x4/64K/dense", 4.0))
    results.add(
        RowResult(
            "lora-8b-x4/8K/flex",
            result("lora-8b-x4/8K/flex", 1).row,
            results.rows["lora-8b-x4/64K/dense"].run,
            absent="why",
        )
    )
    results.add(result("record/lora-8b/128K/flashmask", 20.0))
    assert train_long.main(["--out", str(results.path), "--tables", "--pictures", str(tmp_path / "drawn")]) == 0
    printed = capsys.readouterr().out
    assert "| 64K | FlashMask | 1.25 | 52,429 |  | 0.50, 0.20, 0.20, 0.10, 0.30 | 500 | 1.25 | 320, 400 |" in printed
    assert "| 500 | 1.25 | 320, 400 | 32.4 % | 24.0 | 3.0 | 3.0 MiB, 1.0 ms |" in printed
    assert "| 64K | SDPA, dense mask | 5 | 13,107 | 4.00 times |" in printed
    assert "| 8K | FlexAttention | why |" in printed and "### record/lora-8b" in printed
    drawn = sorted(path.name for path in (tmp_path / "drawn").iterdir())
    assert drawn == ["train-long-memory.png", "train-long-sparsity.png", "train-long-throughput.png"]


def test_pictures_say_how_many_times_dense_attention_it_is():
    """Where both were measured; and tasks come in the order of the paper, whichever was measured first."""
    at_64k = {"flashmask": result("rm-8b-x4/64K/flashmask", 1.0), "dense": result("rm-8b-x4/64K/dense", 4.5)}
    table = {8192: {"flashmask": result("rm-8b-x4/8K/flashmask", 1.0)}, 65536: at_64k}
    found = list(pictures.beside_dense(table, pictures.tokens_per_second))
    assert found == [((65536, 65536 / 1.25), "4.5 ×")]
    sft = ("sft-1b-x16", {8192: {"dense": result("sft-1b-x16/8K/dense", 1.0)}})
    assert sorted([("rm-8b-x4", table), sft], key=pictures.task_of)[0] is sft


@pytest.mark.parametrize(("tables", "shown"), [(1, [1]), (3, [1, 1, 1, 0]), (4, [1, 1, 1, 1])])
def test_every_table_has_a_panel(tables, shown):
    names = ["sft-1b-x16", "lora-8b-x4", "dpo-8b-x4", "rm-8b-x4"][:tables]
    given = {name: {8192: {"dense": result(f"{name}/8K/dense", 1.0)}} for name in names}
    figure, axes = pictures.panels(given, "tokens/s")
    assert [each.axison for each in figure.axes] == shown and len(axes) == tables
    assert axes[0].get_title(loc="left") == "SFT, 1B, 16 layers" and axes[0].get_ylabel() == "tokens/s"


def test_few_layers_are_scaled_to_all_of_them(tmp_path):
    """All but the loss of 0.1 s: 1.15 s for 4 layers."""
    results = Results.load(tmp_path / "a.json")
    results.add(result("lora-8b-x4/64K/flashmask", 1.0))
    results.add(result("lora-8b-x4/64K/dense", 4.0))
    results.add(result("record/lora-8b/64K/flashmask", 8.0))
    printed = report.tables(results)
    assert "### lora-8b-x4, scaled to 32 layers" in printed
    assert f"| 64K | FlashMask | 9.3 | {65536 / 9.3:,.0f} |  | 10 |" in printed
    assert f"| 64K | SDPA, dense mask | 39.3 | {65536 / 39.3:,.0f} | {39.3 / 9.3:.2f} times |  |" in printed


def test_contestants_that_compute_something_else_are_found(tmp_path, capsys):
    results = Results.load(tmp_path / "a.json")
    results.add(result("lora-8b-x4/64K/flashmask", 1.0))
    other = result("lora-8b-x4/64K/varlen", 1.0)
    results.add(other)
    assert train_long.main(["--out", str(results.path), "--tables"]) == 0
    other.measured[1].gradient_norm = 1.1
    results.add(other)
    assert train_long.main(["--out", str(results.path), "--tables"]) == 1
    assert "BROKEN lora-8b-x4/64K/varlen: gradient_norm is 1.1, FlashMask's 1" in capsys.readouterr().err
    other.measured[1].gradient_norm = float("nan")
    results.add(other)
    assert train_long.main(["--out", str(results.path), "--tables"]) == 1
    assert "gradient_norm is nan" in capsys.readouterr().err


@pytest.mark.parametrize(("task", "loss", "status"), [("lora", 12.0, 1), ("dpo", 12.0, 0), ("dpo", 12.4, 1)])
def test_losses_of_sums_over_answers_may_be_further_apart(tmp_path, task, loss, status):
    results = Results.load(tmp_path / "a.json")
    results.add(result(f"{task}-8b-x4/64K/flashmask", 1.0))
    other = result(f"{task}-8b-x4/64K/varlen", 1.0)
    other.measured[0].loss = loss
    results.add(other)
    assert train_long.main(["--out", str(results.path), "--tables"]) == status


@pytest.mark.parametrize(("losses", "checksum"), [([3.0, 2.0], 8), ([3.0, 2.0001], 7)])
def test_other_bits_of_every_tile_are_found(tmp_path, capsys, losses, checksum):
    results = Results.load(tmp_path / "a.json")
    for name, of_row in (("flashmask", ([3.0, 2.0], 7)), ("every-tile", ([3.0, 2.0], 7)), ("dense", ([3.1, 2.2], 9))):
        row = result(f"convergence/sft-8b-x4/8K/{name}", 1.0, losses=of_row[0], checksum=of_row[1])
        row.measured = []
        results.add(row)
    assert train_long.main(["--out", str(results.path), "--tables"]) == 0
    row = results.rows["convergence/sft-8b-x4/8K/every-tile"]
    row.losses, row.checksum = losses, checksum
    results.add(row)
    assert train_long.main(["--out", str(results.path), "--tables"]) == 1
    assert "BROKEN convergence/sft-8b-x4/8K/every-tile: " in capsys.readouterr().err


@pytest.mark.parametrize("task", TASKS)
def test_real_lengths_fill_a_sequence_with_whole_documents(task):
    ((sample, _),) = alpaca_samples(task, 4096, 1)
    assert sample.padding >= 0 and sample.padding < 1500 and len(sample.documents) > 4
    assert {len(document) for document in sample.documents} == {1 + TASKS[task].answers}
    assert list(sample.documents[0][2:]) == [answer for _, answer, *_ in sample.documents[1 : TASKS[task].answers]]


@pytest.mark.parametrize("task", TASKS)
def test_the_sparsest_sample_sees_the_least(task):
    """Beside the middle samples of all ten bins."""
    ((sample, _),) = SAMPLES["sparsest"](task, 65536, 1)
    assert sample.visible_pairs == min(each.visible_pairs for each, _ in SAMPLES["synthetic"](task, 65536, 10))


@pytest.mark.parametrize("contestant", ["varlen", "flashmask"])
def test_memory_is_planned_for_the_tokens_that_a_contestant_computes_with(monkeypatch, contestant):
    planned = []
    monkeypatch.setattr(train_long, "least", lambda *given, **_: planned.append(given[1:3]) or memory.Need(1, 0, 1, 0))
    (row,) = train_long.chosen(tiny_rows(), [f"rm-tiny-x2/1K/{contestant}"])
    with train_long.Session(row, argparse.Namespace(device=CPU, fuse="no", card=None, ranks=None)) as session:
        held = max(session.batch(sample).tokens for sample, _ in session.samples())
    assert (held > row.tokens) == (contestant == "varlen")
    assert planned == [(held, session.contestant.extra(row.size, held))]


def test_memory_of_the_card_can_be_planned_with_less(monkeypatch):
    planned = []
    monkeypatch.setattr(train_long, "least", lambda *given, **_: planned.append(given[3]) or memory.Need(1, 0, 1, 0))
    (row,) = train_long.chosen(tiny_rows(), ["lora-tiny-x2/1K/flashmask"])
    for card in (3.0, None):
        with train_long.Session(row, argparse.Namespace(device=CPU, fuse="no", card=card, ranks=None)):
            pass
    assert planned[0] == 3 * memory.GIB != planned[1]


def test_a_failure_replaces_no_numbers(tmp_path):
    results = Results.load(tmp_path / "a.json")
    results.add(result("lora-8b-x4/64K/flashmask", 1.0))
    results.add(RowResult("lora-8b-x4/64K/flashmask", {}, {}, absent="no memory"))
    assert Results.load(tmp_path / "a.json").rows["lora-8b-x4/64K/flashmask"].seconds == 1.25
