# SPDX-License-Identifier: Apache-2.0
"""A sample as the tensors of one step."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from flashmask.data import pack
from flashmask.data.synthetic import TASKS, Sample
from flashmask.distributed import Sharding


@dataclass(frozen=True)
class Batch:
    """One packed sequence, and the predictions that are asked for."""

    sample: Sample
    documents: tuple[int, ...]
    """Lengths of the causal documents of the sequence, padding left out."""
    input_ids: Tensor
    """int64 [1, tokens]"""
    position_ids: Tensor
    """int64 [1, tokens]"""
    predictors: Tensor
    """int64 [asked]: rows whose prediction is asked for."""
    words: Tensor
    """int64 [asked]: what they are to predict."""
    answer_of: Tensor
    """int64 [asked]: the answer, counted through the sequence, that each word is in."""
    ends: Tensor
    """int64 [answers]: the last row of each answer."""
    startend_row_indices: Tensor
    """int32 [1, 1, tokens, 1], read causally."""
    sharding: Sharding | None = None
    """The sharding of a row over several ranks. input_ids, position_ids, predictors and words are then those that this
    rank holds; the other fields are still those of the whole sequence."""

    @property
    def tokens(self) -> int:
        return self.input_ids.shape[1]

    @property
    def of_all_ranks(self) -> int:
        """Tokens on all ranks."""
        return self.tokens if self.sharding is None else self.sharding.tokens


def batch_of(task: str, sample: Sample, examples: list[dict[str, Any]], *, repeat: bool, device: torch.device) -> Batch:
    """Makes a batch of examples with the lengths of a sample. With `repeat`, a copy of the question precedes each of
    its answers, as kernels without masks need it; otherwise the answers share it."""
    if repeat:
        examples = list(chain.from_iterable(map(apart, examples)))
        length = sample.repeated_tokens
    else:
        length = sample.tokens
    packed = pack(examples, length=length, packing="order")
    if "answer_ids" in packed:
        asked = packed["answer_ids"][0] >= 0
        predictors = packed["predictors"][0, asked]
        answer_of = packed["answer_ids"][0, asked]
    else:
        asked = packed["labels"][0] >= 0
        predictors = asked.nonzero()[:, 0] - 1
        answer_of = packed["position_ids"][0].eq(0).cumsum(0)[asked] - 1
    last = answer_of.diff(append=answer_of.new_tensor([-1])) != 0
    tensors = {
        "input_ids": packed["input_ids"],
        "position_ids": packed["position_ids"],
        "predictors": predictors,
        "words": packed["input_ids"][0, asked],
        "answer_of": answer_of,
        "ends": asked.nonzero()[last, 0],
        "startend_row_indices": packed["startend_row_indices"],
    }
    assert len(tensors["ends"]) == TASKS[task].answers * len(sample.documents)
    documents = tuple(sum(map(len, parts(each))) for each in examples)
    return Batch(sample, documents, **{name: tensor.to(device) for name, tensor in tensors.items()})


def parts(example: dict[str, Any]) -> list[Any]:
    """The question and the answers of an example."""
    answers = example["answer_ids"] if "answer_ids" in example else [example["completion_ids"]]
    return [example["prompt_ids"], *answers]


def apart(example: dict[str, Any]) -> list[dict[str, Any]]:
    """Splits an example into one for each answer."""
    question, *answers = parts(example)
    return [{"prompt_ids": question, "completion_ids": answer} for answer in answers]
