# SPDX-License-Identifier: Apache-2.0
"""The samples that a row is measured on."""

from __future__ import annotations

import csv
from itertools import count
from pathlib import Path

from flashmask.data import synthetic
from flashmask.data.synthetic import TASKS, Sample

ALPACA = Path(__file__).parents[2] / "data" / "alpaca_lengths.csv"
SEED = 7


def synthetic_samples(task: str, tokens: int, bins: int) -> list[tuple[Sample, int]]:
    """The middle sample of each bin of sparsity, with how many of 240 it stands for."""
    return synthetic.one_of_each(synthetic.samples(task, tokens, seed=SEED), bins)


def sparsest_samples(task: str, tokens: int, bins: int) -> list[tuple[Sample, int]]:
    """The middle sample of the sparsest of ten bins."""
    return synthetic.one_of_each(synthetic.samples(task, tokens, seed=SEED))[-1:]


def alpaca_samples(task: str, tokens: int, bins: int) -> list[tuple[Sample, int]]:
    """Real lengths in file order: a prompt with its answer, and for DPO and RM also the answers of the prompts after
    it."""
    with ALPACA.open() as file:
        lengths = [(int(row["gpt2_prompt"]), int(row["gpt2_out"])) for row in csv.DictReader(file)]
    answers, documents, used = TASKS[task].answers, [], 0
    for first in count():
        held = (lengths[first][0], *(answer for _, answer in lengths[first : first + answers]))
        if used + sum(held) > tokens:
            return [(Sample(tokens, tuple(documents)), 1)]
        documents.append(held)
        used += sum(held)
    raise AssertionError("the file has lengths for any row")


SAMPLES = {"synthetic": synthetic_samples, "sparsest": sparsest_samples, "alpaca": alpaca_samples}
