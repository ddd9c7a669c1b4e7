# SPDX-License-Identifier: Apache-2.0
"""Synthetic packed sequences of any length for SFT, LoRA, DPO and reward models, drawn as in papers on long training.

from flashmask.data import pack, synthetic

drawn = synthetic.samples("rm", 65536, seed=0)  # 240 of them
batch = pack(drawn[0].examples(vocabulary=128256), length=65536, packing="order")

FlashMask's authors measured end-to-end training over such samples, from 4K to 544K tokens: Wang et al. 2024
(FlashMask), appendix A.2.1. Where it does not say how lengths are drawn, section 4.2 of its first version is followed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from flashmask._arguments import choice, integer
from flashmask._mask import Mask
from flashmask.masks import shared_question

__all__ = ["TASKS", "Sample", "Task", "bins", "one_of_each", "samples"]


class Task(NamedTuple):
    """The shape of a task's samples."""

    #: Answers per question.
    answers: int
    #: The fewest tokens in a document, and the most in the padding.
    shortest: int


TASKS = {"sft": Task(1, 128), "lora": Task(1, 128), "dpo": Task(2, 128), "rm": Task(6, 512)}
_MOST_CUTS = 10
_AT_ONCE = 8192


@dataclass(frozen=True)
class Sample:
    """The documents of one sequence of `tokens` tokens; each holds the lengths of its question and its answers."""

    tokens: int
    documents: tuple[tuple[int, ...], ...]

    @property
    def padding(self) -> int:
        """Tokens past the last document, which no row sees."""
        return self.tokens - sum(map(sum, self.documents))

    @property
    def visible_pairs(self) -> int:
        """Number of visible (query, key) pairs: documents are causal, answers see the question and themselves."""
        return sum(
            _triangle(question) + sum(_triangle(answer) + question * answer for answer in answers)
            for question, *answers in self.documents
        )

    @property
    def density(self) -> float:
        """Share of the causal triangle of all tokens that is visible."""
        return self.visible_pairs / _triangle(self.tokens)

    @property
    def sparsity(self) -> float:
        """Share of all pairs that is not visible: rho in the papers."""
        return 1 - self.visible_pairs / self.tokens**2

    @property
    def repeated_tokens(self) -> int:
        """Tokens of the same data with the question repeated before each of its answers, without padding."""
        return sum(len(answers) * question + sum(answers) for question, *answers in self.documents)

    def mask(self) -> Mask:
        """Returns the mask, (tokens, tokens)."""
        return shared_question([(question, answers) for question, *answers in self.documents], self.tokens)

    def examples(self, vocabulary: int, seed: int = 0) -> list[dict[str, Any]]:
        """Draws random tokens of these lengths, for flashmask.data.pack() with length=tokens and packing="order".

        A question with one answer is {"prompt_ids", "completion_ids"}, with several {"prompt_ids", "answer_ids"}.
        Tokens are int64 arrays of numbers in [1, vocabulary): 0 is used for padding only.
        """
        integer("vocabulary", vocabulary, minimum=2)
        draw = np.random.default_rng(seed)
        return [_example([draw.integers(1, vocabulary, part) for part in parts]) for parts in self.documents]


def _triangle(side: int) -> int:
    return side * (side + 1) // 2


def _example(parts: list[Any]) -> dict[str, Any]:
    question, *answers = parts
    if len(answers) == 1:
        return {"prompt_ids": question, "completion_ids": answers[0]}
    return {"prompt_ids": question, "answer_ids": answers}


def samples(task: str, tokens: int, *, count: int = 240, seed: int = 0) -> list[Sample]:
    """Draws `count` samples of `tokens` tokens each; the same arguments give the same samples.

    task "sft" and "lora": questions with one answer; "dpo": with two; "rm", reward models: with six.
    A sequence is cut at up to ten random tokens (rm: three for up to 4,096 tokens, four for up to 8,192), with a
    document before each cut and padding after the last. It is accepted if every document has at least 128 tokens (rm:
    512) and the padding at most as many. Each of k answers in a document of L tokens gets 0.1 L / (1 + 0.1 k) to
    0.2 L / (1 + 0.2 k) of them, and the question the rest.

    Raises ValueError and TypeError that name the argument.
    """
    kind = TASKS[list(TASKS)[choice("task", task, list(TASKS))]]
    integer("tokens", tokens, minimum=kind.shortest + 1)
    integer("count", count, minimum=0)
    draw = np.random.default_rng(integer("seed", seed, minimum=0))
    accepted = _accepted(draw, tokens, _most_cuts(task, tokens), kind.shortest)
    return [
        Sample(tokens, tuple(_document(draw, length, kind.answers) for length in next(accepted))) for _ in range(count)
    ]


def _most_cuts(task: str, tokens: int) -> int:
    if task == "rm" and tokens <= 8192:
        return 3 if tokens <= 4096 else 4
    return _MOST_CUTS


def _accepted(draw: np.random.Generator, tokens: int, most: int, shortest: int) -> Iterator[list[int]]:
    """Yields lengths of documents. At a million tokens one draw in thousands is accepted, so draws many at once."""
    while True:
        counts = draw.integers(1, most + 1, _AT_ONCE)
        cuts = draw.integers(1, tokens, (_AT_ONCE, most))
        cuts[np.arange(most) >= counts[:, None]] = tokens  # unused cuts sort past the others
        cuts.sort(axis=1)
        lengths = np.diff(cuts, axis=1, prepend=0)
        used = np.arange(most) < counts[:, None]
        padding = tokens - cuts[np.arange(_AT_ONCE), counts - 1]
        taken = ((lengths >= shortest) | ~used).all(axis=1) & (padding <= shortest)
        for row in np.flatnonzero(taken):
            yield lengths[row, : counts[row]].tolist()


def _document(draw: np.random.Generator, length: int, k: int) -> tuple[int, ...]:
    """Draws the lengths of a question and its k answers."""
    answers = draw.uniform(0.1 * length / (1 + 0.1 * k), 0.2 * length / (1 + 0.2 * k), k).round().astype(int).tolist()
    return (length - sum(answers), *answers)


def bins(drawn: Sequence[Sample], count: int = 10) -> list[list[Sample]]:
    """Sorts samples into `count` bins of sparsity, equally wide from the least to the largest. Some may be empty."""
    integer("count", count, minimum=1)
    in_order = sorted(drawn, key=lambda sample: sample.sparsity)
    least, largest = (in_order[0].sparsity, in_order[-1].sparsity) if in_order else (0.0, 0.0)
    found: list[list[Sample]] = [[] for _ in range(count)]
    for sample in in_order:
        share = (sample.sparsity - least) / (largest - least) if largest > least else 0.0
        found[min(int(count * share), count - 1)].append(sample)
    return found


def one_of_each(drawn: Sequence[Sample], count: int = 10) -> list[tuple[Sample, int]]:
    """Returns the middle sample of each bin that is not empty, with how many samples it stands for."""
    return [(held[len(held) // 2], len(held)) for held in bins(drawn, count) if held]
