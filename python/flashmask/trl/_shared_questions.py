# SPDX-License-Identifier: Apache-2.0
"""Computes the question of a pair of answers once, beneath trainers that work on padded pairs.

The collator adds the packed batch to TRL's padded one. Given both, a model's backbone runs the packed one and returns
its hidden states in the layout of the padded one, so that everything above it, from the head to the loss and the
metrics, is TRL's own code on the tensors that it expects.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flashmask.data import pack
from flashmask.data._rollouts import common_prefix
from flashmask.transformers import shard
from flashmask.transformers._stateful import with_nodes
from flashmask.transformers._trainer import context_parallel_mesh
from flashmask.trl._models import models_of

#: Name of the packed batch among a model's arguments.
NAME = "shared_questions"
_MARK = "__flashmask_shared_questions__"
_OF_TRL = ("margin",)  # reward trainers pass it to the model, which does not take it


@dataclass
class SharedQuestions:
    """A collator that adds to TRL's batch of padded pairs, under NAME, the same tokens with each question once."""

    padded: Callable[[Sequence[Mapping[str, Any]]], dict[str, Any]]

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        batch = self.padded(examples)
        multiple = getattr(self.padded, "pad_to_multiple_of", None) or 1
        return {**batch, NAME: packed_pairs(batch["input_ids"], batch["attention_mask"], multiple)}


def packed_pairs(input_ids: Tensor, attention_mask: Tensor, multiple: int = 1) -> dict[str, Tensor]:
    """Packs the pairs in input_ids [2 P, L] into one sequence [1, T]; rows p and P + p answer the same question.

    The question is what the two have in common from the first token on; an answer keeps at least one token. A pair that
    has nothing in common becomes two documents. `rows` int64 [2 P, L] says where each token went, 0 for padding.
    """
    sequences = [ids[held.bool()].numpy() for ids, held in zip(input_ids, attention_mask, strict=True)]
    pairs = len(sequences) // 2
    rows = np.zeros(input_ids.shape, np.int64)
    examples: list[dict[str, Any]] = []
    start = 0
    for pair, (chosen, rejected) in enumerate(zip(sequences[:pairs], sequences[pairs:], strict=True)):
        question = min(common_prefix(chosen, rejected), chosen.size - 1, rejected.size - 1)
        rows[pair, : chosen.size] = start + np.arange(chosen.size)
        rows[pairs + pair, :question] = start + np.arange(question)
        start += chosen.size
        rows[pairs + pair, question : rejected.size] = start + np.arange(rejected.size - question)
        start += rejected.size - question
        examples += _examples(chosen, rejected, question)
    packed = pack(examples, length=-(-start // multiple) * multiple, packing="order")
    names = ("input_ids", "position_ids", "startend_row_indices")
    return {**{name: packed[name] for name in names}, "rows": torch.from_numpy(rows)}


def _examples(chosen: Any, rejected: Any, question: int) -> list[dict[str, Any]]:
    if question == 0:
        return [{"input_ids": chosen}, {"input_ids": rejected}]
    answers = {"chosen_ids": chosen[question:], "rejected_ids": rejected[question:]}
    return [{"prompt_ids": chosen[:question], **answers}]


def share_questions(trainer: Any) -> None:
    """Makes a TRL trainer compute each question once, in its batches and models; a second call changes nothing.

    Raises ValueError for a model in which answers would see each other.
    """
    if not isinstance(trainer.data_collator, SharedQuestions):
        trainer.data_collator = SharedQuestions(trainer.data_collator)
    for model in models_of(trainer, "question"):
        _share_in(model)


def spread_over_ranks(trainer: Any, model: Any, batch: dict[str, Any]) -> dict[str, Any]:
    """Reduces the packed sequence to this rank's part, if the trainer has a context-parallel group; returns the batch.

    All ranks of the group then gather the hidden states, and compute the same loss.
    """
    mesh = context_parallel_mesh(trainer.accelerator)
    if mesh is None or NAME not in batch:
        return batch
    packed = dict(batch[NAME])
    rows = packed.pop("rows")
    return {**batch, NAME: {**shard(trainer.accelerator.unwrap_model(model), packed, mesh), "rows": rows}}


def _share_in(model: Any) -> None:
    """Replaces the backbone's forward of a causal language model or sequence classifier, given without wrappers."""
    backbone = model.base_model
    if hasattr(backbone.forward, _MARK):
        return
    padded_forward = backbone.forward

    @functools.wraps(padded_forward)
    def forward(*arguments: Any, **options: Any) -> Any:
        packed = options.pop(NAME, None)
        if packed is None:
            return padded_forward(*arguments, **options)
        replaced = ("input_ids", "attention_mask", "position_ids", *_OF_TRL)
        others = {name: value for name, value in options.items() if name not in replaced}
        packed = dict(packed)
        rows = packed.pop("rows")
        output = padded_forward(**with_nodes(backbone, {**others, **packed}))
        hidden, sharding = output.last_hidden_state, packed.get("sharding")
        output.last_hidden_state = (hidden if sharding is None else sharding.unshard(hidden))[0, rows]
        return output

    setattr(forward, _MARK, True)
    backbone.forward = forward
