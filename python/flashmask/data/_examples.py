# SPDX-License-Identifier: Apache-2.0
"""One example as tokens, with their labels, positions, visibility and answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

IGNORED = -100  # the label that PyTorch's cross_entropy leaves out
_KINDS = (
    ("input_ids",),
    ("input_ids", "labels"),
    ("prompt_ids", "completion_ids"),
    ("prompt_ids", "chosen_ids", "rejected_ids"),
    ("prompt_ids", "answer_ids"),
)
Tokens = npt.NDArray[np.int64]


class Document(NamedTuple):
    """An example of n tokens: int64 arrays [n], with rows and answers counted from the example's own first."""

    tokens: Tokens
    labels: Tokens
    positions: Tokens
    ends: Tokens  # the first row after those that may see the token
    predictors: Tokens  # the row whose logits predict the token, -1 for none
    answers: Tokens  # the answer that holds the token, -1 for none
    bounds: list[tuple[int, int]]  # first row and end of each answer


def document(example: Mapping[str, Any], number: int) -> Document:
    """Reads an example; raises ValueError or TypeError that names examples[number] and the key."""
    if not isinstance(example, Mapping):
        raise TypeError(f"examples[{number}] is a {type(example).__name__}; expected a mapping from names to token ids")
    keys = {key for kind in _KINDS for key in kind} & set(example)
    if keys not in map(set, _KINDS):
        kinds = " or ".join("/".join(kind) for kind in _KINDS)
        raise ValueError(f"examples[{number}] has {sorted(map(str, example))}; expected {kinds}")
    where = f"examples[{number}]"
    if "input_ids" in keys:
        tokens = token_ids(example["input_ids"], f"{where}['input_ids']", at_least=1)
        return _plain(tokens, tokens if "labels" not in keys else _labels(example["labels"], where, tokens.size))
    question = token_ids(example["prompt_ids"], f"{where}['prompt_ids']", at_least=0)
    if "completion_ids" in keys:
        completion = token_ids(example["completion_ids"], f"{where}['completion_ids']", at_least=1)
        tokens = np.concatenate([question, completion])
        return _plain(tokens, np.concatenate([np.full_like(question, IGNORED), completion]))
    return _shared_question(question, _answers(example, keys, where), where)


def _answers(example: Mapping[str, Any], keys: set[str], where: str) -> list[Tokens]:
    names = [key for key in ("chosen_ids", "rejected_ids") if key in keys]
    if names:
        return [token_ids(example[name], f"{where}[{name!r}]", at_least=1) for name in names]
    given = example["answer_ids"]
    if not isinstance(given, Sequence) or not given:
        raise ValueError(f"{where}['answer_ids'] is {given!r}; expected at least one list of token ids")
    return [token_ids(each, f"{where}['answer_ids'][{k}]", at_least=1) for k, each in enumerate(given)]


def token_ids(given: Any, name: str, at_least: int) -> Tokens:
    """Returns int64 [tokens] from a list, array or tensor; ValueError and TypeError mention `name`."""
    tokens = np.asarray(given)
    if tokens.size == 0 and tokens.ndim == 1:
        tokens = tokens.astype(np.int64)
    if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
        raise TypeError(f"{name} is {tokens.dtype} {list(tokens.shape)}; expected whole numbers [tokens]")
    if tokens.size < at_least:
        raise ValueError(f"{name} has no tokens; expected at least {at_least}")
    return tokens.astype(np.int64)


def _labels(given: Any, where: str, size: int) -> Tokens:
    labels = token_ids(given, f"{where}['labels']", at_least=0)
    if labels.size != size:
        raise ValueError(f"{where} has {size} input_ids and {labels.size} labels; expected as many")
    return labels


def _plain(tokens: Tokens, labels: Tokens) -> Document:
    """Makes one causal document. Nothing predicts its first token: the row before it belongs to another document."""
    labels = labels.copy()
    labels[0] = IGNORED
    positions = np.arange(tokens.size)
    return Document(
        tokens,
        labels,
        positions,
        np.full_like(positions, tokens.size),
        positions - 1,
        np.full_like(positions, -1),
        bounds=[],
    )


def _shared_question(question: Tokens, answers: list[Tokens], where: str) -> Document:
    """Makes a question and answers that each see it and themselves, with positions that continue after it."""
    if question.size == 0:
        raise ValueError(f"{where}['prompt_ids'] has no tokens; expected at least one, which the answers share")
    sizes = [answer.size for answer in answers]
    firsts = question.size + np.concatenate([[0], np.cumsum(sizes)])
    size = int(firsts[-1])
    held = Document(
        tokens=np.concatenate([question, *answers]),
        labels=np.concatenate([np.full_like(question, IGNORED), *answers]),
        positions=np.arange(size),
        ends=np.full(size, size),
        predictors=np.arange(size) - 1,
        answers=np.full(size, -1),
        bounds=[(int(first), int(end)) for first, end in pairwise(firsts)],
    )
    for answer, (first, end) in enumerate(held.bounds):
        held.positions[first:end] += question.size - first
        held.ends[first:end] = end
        held.predictors[first] = question.size - 1
        held.answers[first:end] = answer
        if answer > 0:
            held.labels[first] = IGNORED  # a loss that shifts labels by one row would predict it from the answer before
    return held
