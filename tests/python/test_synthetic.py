# SPDX-License-Identifier: Apache-2.0
"""flashmask.data.synthetic against the statistics of the papers' recipe, computed apart from this code."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="flashmask.data returns torch tensors")

from flashmask.data import pack, synthetic  # noqa: E402

K = 1024


def one_by_one(task, tokens, count, seed):
    """The recipe word for word: a sequence at a time, its answers too."""
    draw = np.random.default_rng(seed)
    answers, shortest = {"sft": (1, 128), "lora": (1, 128), "dpo": (2, 128), "rm": (6, 512)}[task]
    most = (3 if tokens <= 4096 else 4 if tokens <= 8192 else 10) if task == "rm" else 10
    found = []
    while len(found) < count:
        cuts = np.sort(draw.uniform(0, tokens, draw.integers(1, most + 1)))
        lengths = np.diff(cuts, prepend=0)
        if (lengths >= shortest).all() and tokens - cuts[-1] <= shortest:
            low, high = 0.1 / (1 + 0.1 * answers), 0.2 / (1 + 0.2 * answers)
            found.append([(n, draw.uniform(low, high, answers) * n) for n in lengths])
    return found


def one_by_one_density(sample, tokens):
    seen = 0
    for length, answers in sample:
        question = length - answers.sum()
        seen += question**2 / 2 + (answers**2 / 2 + question * answers).sum()
    return seen / (tokens**2 / 2)


@pytest.mark.parametrize("task", synthetic.TASKS)
@pytest.mark.parametrize("tokens", [2 * K, 4 * K, 8 * K, 64 * K])
def test_samples_keep_the_rules(task, tokens):
    answers, shortest = synthetic.TASKS[task]
    most = (3 if tokens <= 4 * K else 4) if task == "rm" and tokens <= 8 * K else 10
    drawn = synthetic.samples(task, tokens, count=200, seed=3)
    assert len(drawn) == 200
    for sample in drawn:
        assert 1 <= len(sample.documents) <= most and 0 < sample.padding <= shortest
        for question, *own in sample.documents:
            length = question + sum(own)
            assert length >= shortest and len(own) == answers
            low, high = 0.1 * length / (1 + 0.1 * answers), 0.2 * length / (1 + 0.2 * answers)
            assert all(low - 0.5 <= answer <= high + 0.5 for answer in own)


@pytest.mark.parametrize(("tokens", "documents", "density"), [(8 * K, 5.9, 0.33), (64 * K, 6.7, 0.30)])
def test_means_are_those_of_the_recipe(tokens, documents, density):
    """Computed once from 240 samples: away by three standard deviations of such a mean at most."""
    drawn = synthetic.samples("sft", tokens, count=2400)
    assert np.mean([len(sample.documents) for sample in drawn]) == pytest.approx(documents, abs=3 * 2.5 / 240**0.5)
    assert np.mean([sample.density for sample in drawn]) == pytest.approx(density, abs=3 * 0.18 / 240**0.5)


def test_density_has_the_quartiles_of_the_recipe():
    drawn = synthetic.samples("lora", 64 * K, count=2400, seed=1)
    quartiles = np.quantile([sample.density for sample in drawn], [0.25, 0.5, 0.75])
    assert quartiles == pytest.approx([0.19, 0.25, 0.34], abs=0.03)


@pytest.mark.slow
def test_a_million_tokens_have_seven_documents():
    drawn = synthetic.samples("lora", 1024 * K, seed=5)
    assert np.mean([len(sample.documents) for sample in drawn]) == pytest.approx(7.0, abs=0.5)
    assert np.mean([sample.density for sample in drawn]) == pytest.approx(0.28, abs=0.035)


@pytest.mark.parametrize(("task", "tokens"), [("sft", 4 * K), ("dpo", 4 * K), ("rm", 4 * K), ("rm", 8 * K)])
def test_many_samples_are_spread_as_those_drawn_one_by_one(task, tokens):
    drawn = synthetic.samples(task, tokens, count=800)
    wanted = one_by_one(task, tokens, 800, seed=9)
    count = np.mean([len(each) for each in wanted])
    density = np.mean([one_by_one_density(each, tokens) for each in wanted])
    assert np.mean([len(sample.documents) for sample in drawn]) == pytest.approx(count, abs=0.25)
    assert np.mean([sample.density for sample in drawn]) == pytest.approx(density, abs=0.03)


@pytest.mark.parametrize("task", synthetic.TASKS)
def test_a_sample_says_what_its_mask_and_its_packed_batch_show(task):
    sample = synthetic.samples(task, 2 * K, count=1, seed=4)[0]
    visible = sample.mask().to_dense()[0, 0]
    assert sample.visible_pairs == visible.sum()
    assert sample.density == visible.sum() / np.tril(np.ones_like(visible)).sum()
    assert sample.sparsity == 1 - visible.mean()
    batch = pack(sample.examples(vocabulary=50, seed=1), length=2 * K, packing="order")
    np.testing.assert_array_equal(batch.mask.to_dense()[0, 0], visible)
    ids = batch["input_ids"][0]
    assert ids.shape == (2 * K,) and ids[-sample.padding :].eq(0).all()
    assert ids[: -sample.padding].min() >= 1 and ids.max() <= 49
    assert ids[0] == sample.examples(50, seed=1)[0]["prompt_ids"][0]


def test_repeating_the_question_counts_every_answer_with_it():
    sample = synthetic.Sample(40, ((10, 3, 2), (12, 4, 5)))
    assert sample.padding == 4
    assert sample.repeated_tokens == (10 + 3) + (10 + 2) + (12 + 4) + (12 + 5)


def test_a_seed_repeats_and_another_one_differs():
    first, again, other = (synthetic.samples("dpo", 4 * K, count=5, seed=seed) for seed in (1, 1, 2))
    assert first == again != other
    longer = synthetic.samples("sft", 4 * K, count=9, seed=1)
    assert len({sample.documents for sample in longer}) == 9


def test_bins_are_equally_wide_and_hold_every_sample():
    drawn = synthetic.samples("sft", 64 * K)
    binned = synthetic.bins(drawn)
    sparsities = sorted(sample.sparsity for sample in drawn)
    assert len(binned) == 10 and [sample.sparsity for held in binned for sample in held] == sparsities
    edges = np.linspace(sparsities[0], sparsities[-1], 11)
    for low, high, held in zip(edges[:-1], edges[1:], binned, strict=True):
        assert all(low - 1e-12 <= sample.sparsity <= high + 1e-12 for sample in held)


def test_one_of_each_bin_stands_for_all():
    drawn = synthetic.samples("sft", 8 * K)
    chosen = synthetic.one_of_each(drawn)
    assert sum(count for _, count in chosen) == 240 and len(chosen) <= 10
    for sample, count in chosen:
        (held,) = [held for held in synthetic.bins(drawn) if sample in held]
        assert len(held) == count and held[count // 2] == sample
    mean = sum(sample.density * count for sample, count in chosen) / 240
    assert mean == pytest.approx(np.mean([sample.density for sample in drawn]), abs=0.02)


def test_bins_of_nothing_and_of_equals():
    assert synthetic.bins([], 3) == [[], [], []]
    same = synthetic.samples("sft", 8 * K, count=1) * 3
    assert synthetic.bins(same, 3) == [same, [], []]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("ppo", 4096), "task is 'ppo'; expected one of 'sft', 'lora', 'dpo', 'rm'"),
        (("rm", 512), "tokens is 512; expected at least 513"),
        (("sft", 128), "tokens is 128; expected at least 129"),
    ],
)
def test_refusals_name_the_argument(arguments, message):
    with pytest.raises(ValueError, match=message):
        synthetic.samples(*arguments)


def test_counts_and_seeds_are_not_negative():
    with pytest.raises(ValueError, match="count is -1; expected at least 0"):
        synthetic.samples("sft", 4096, count=-1)
    with pytest.raises(ValueError, match="seed is -1; expected at least 0"):
        synthetic.samples("sft", 4096, seed=-1)
    with pytest.raises(ValueError, match="vocabulary is 1; expected at least 2"):
        synthetic.samples("sft", 4096, count=1)[0].examples(1)
