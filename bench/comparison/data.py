# SPDX-License-Identifier: Apache-2.0
"""Lengths of real documents, from data/."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

DATA = Path(__file__).parent.parent.parent / "data"


class Documents(NamedTuple):
    """Document lengths that fill a sequence, with each document's prefix length and whether it is dropped."""

    lengths: list[int]
    prefixes: list[int]
    dropped: list[bool]


def rows_of(file: str) -> list[dict[str, str]]:
    with (DATA / file).open() as opened:
        return list(csv.DictReader(opened))


def sample(tokens: int) -> Documents:
    """The middle one of the published samples with `tokens` tokens."""
    for row in rows_of("document_samples.csv"):
        if int(row["tokens"]) == tokens and row["sample"] == "3":
            lengths, prefixes, dropped = (list(map(int, row[x].split())) for x in ("lengths", "prefixes", "dropped"))
            return Documents(lengths, prefixes, list(map(bool, dropped)))
    raise ValueError(f"document_samples.csv has no sample of {tokens} tokens; expected 8192, 32768 or 131072")


def filling(lengths: Iterable[int], tokens: int) -> list[int]:
    """Lengths in order until they fill `tokens`; the last one is cut to fit."""
    filled: list[int] = []
    left = tokens
    for length in lengths:
        filled.append(min(length, left))
        left -= filled[-1]
        if left == 0:
            return filled
    raise ValueError(f"the lengths add up to {tokens - left} tokens; expected at least {tokens}")


def alpaca(tokens: int, prompt: str = "gpt2_prompt", output: str = "gpt2_out") -> Documents:
    """Instructions and answers in file order."""
    rows = rows_of("alpaca_lengths.csv")
    lengths = filling((int(row[prompt]) + int(row[output]) for row in rows), tokens)
    prefixes = [min(int(row[prompt]), length) for row, length in zip(rows, lengths, strict=False)]
    return Documents(lengths, prefixes, [False] * len(lengths))
