# SPDX-License-Identifier: Apache-2.0
"""Masks of a sequence, by name; random ones are drawn with a seed."""

from collections.abc import Callable

import numpy as np

import flashmask
from flashmask import masks


def draw_until(tokens: int, draw: Callable[[], list[int]]) -> list[list[int]]:
    """Draws parts of random lengths until the next does not fit into `tokens`."""
    found: list[list[int]] = []
    left = tokens
    while True:
        part = draw()
        if sum(part) > left:
            return found
        found.append(part)
        left -= sum(part)


def long_tail(tokens: int, seed: int) -> flashmask.Mask:
    """Lognormal lengths, median 1,500 and sigma 1.5, cut at a quarter of the pack: visible 3-8 % at 128K."""
    random = np.random.default_rng(seed)
    documents = draw_until(tokens, lambda: [int(np.clip(random.lognormal(7.3, 1.5), 16, tokens // 4))])
    lengths = [each[0] for each in documents]
    return masks.causal_document([*lengths, tokens - sum(lengths)], tokens)


def short_documents(tokens: int, seed: int) -> flashmask.Mask:
    random = np.random.default_rng(seed)
    lengths = [each[0] for each in draw_until(tokens, lambda: [int(random.integers(20, 190))])]
    return masks.causal_document(lengths, tokens)


def shared_questions(tokens: int, seed: int) -> flashmask.Mask:
    """Questions of 512 to 8,192 tokens with eight answers of 256 to 4,096."""
    random = np.random.default_rng(seed)

    def draw() -> list[int]:
        return [int(random.integers(512, 8193)), *map(int, random.integers(256, 4097, 8))]

    return masks.shared_question([(part[0], part[1:]) for part in draw_until(tokens, draw)], tokens)


def eviction(tokens: int, seed: int) -> flashmask.Mask:
    """Causal, and each key leaves the cache at a random later row."""
    random = np.random.default_rng(seed)
    columns = np.arange(tokens)
    ends = columns + 1 + (random.random(tokens) ** 4 * (tokens - columns - 1)).astype(np.int64)
    return masks.random_eviction(tokens, ends[None])


MASKS = {
    "full": lambda tokens, seed: masks.full(tokens, tokens),
    "causal": lambda tokens, seed: masks.causal(tokens, tokens),
    "long-tail documents": long_tail,
    "shared questions": shared_questions,
    "window of 4,096": lambda tokens, seed: masks.sliding_window(tokens, tokens, 4096),
    "documents of 105": short_documents,
    "random eviction": eviction,
}
RANDOM = ("long-tail documents", "shared questions")
"""Masks of which several packs are drawn."""
