# SPDX-License-Identifier: Apache-2.0
"""Words that a model can learn to predict."""

from __future__ import annotations

from typing import Any

import numpy as np

from flashmask.data.synthetic import Sample

WORDS = 500
SLIP = 0.1
"""How often a text goes on with any word."""


def text_examples(sample: Sample, vocabulary: int, seed: int) -> list[dict[str, Any]]:
    """Examples with a sample's lengths, in a language that goes through its words in turn, with slips; each answer
    slips more often than the one before it, so that the first is the best."""
    draw = np.random.default_rng([seed, 5])
    count = min(WORDS, vocabulary - 1)

    def say(size: int, slip: float) -> Any:
        turns = np.where(draw.random(size) < slip, draw.integers(count, size=size), 1)
        return 1 + (draw.integers(count) + turns.cumsum()) % count

    examples = []
    for question, *lengths in sample.documents:
        answers = [say(length, SLIP + 0.6 * place / len(lengths)) for place, length in enumerate(lengths)]
        asked = {"prompt_ids": say(question, SLIP)}
        examples.append(asked | ({"completion_ids": answers[0]} if len(answers) == 1 else {"answer_ids": answers}))
    return examples
