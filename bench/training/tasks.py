# SPDX-License-Identifier: Apache-2.0
"""The four tasks: a model's outputs for a batch, and its loss."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from flashmask.data.synthetic import TASKS
from flashmask.training import linear_cross_entropy, linear_log_probs
from training.batches import Batch
from training.clock import Clock

BETA = 0.1
"""DPO's beta."""


class Learner:
    """A model that learns in all weights (SFT), or in PEFT's LoRA (all other tasks)."""

    def __init__(self, model: Any, task: str, clock: Clock) -> None:
        self.model, self.task, self.clock = model, task, clock
        self.base: nn.Module = model if task == "sft" else model.get_base_model()

    def loss(self, batch: Batch) -> Tensor:
        if self.task == "rm":
            return self._ranking(batch)
        if self.task == "dpo":
            return self._preference(batch)
        return self._next_word(batch)

    def hidden(self, batch: Batch, rows: Tensor) -> Tensor:
        """[rows, hidden] of the last layer."""
        out = self.base.model(input_ids=batch.input_ids, position_ids=batch.position_ids, use_cache=False)
        found: Tensor = out.last_hidden_state[0].index_select(0, rows)
        return found

    def _next_word(self, batch: Batch) -> Tensor:
        """Cross-entropy of the answers' words, the mean over the words of all ranks."""
        rows, of_ranks = self.hidden(batch, batch.predictors), batch.sharding
        reduction = "mean" if of_ranks is None else "sum"
        found = self.clock.both_ways(
            "loss", lambda rows: linear_cross_entropy(rows, self._head, batch.words, reduction=reduction), rows
        )
        return found if of_ranks is None else of_ranks.mean(found, batch.words.numel())

    def _preference(self, batch: Batch) -> Tensor:
        """How much likelier the first answer became than the second (Rafailov et al. 2023, equation 7)."""
        with torch.no_grad(), self.model.disable_adapter():
            before = self._log_probs(batch)
        chosen, rejected = (self._log_probs(batch) - before).view(-1, 2).unbind(-1)
        return -logsigmoid(BETA * (chosen - rejected)).mean()

    def _log_probs(self, batch: Batch) -> Tensor:
        """The log-probability of each answer."""
        rows = self.hidden(batch, batch.predictors)
        found = self.clock.both_ways("loss", lambda rows: linear_log_probs(rows, self._head, batch.words), rows)
        return found.new_zeros(len(batch.ends)).index_add(0, batch.answer_of, found)

    def _ranking(self, batch: Batch) -> Tensor:
        """Ranks every answer above those behind it (Bradley and Terry 1952), by a score at its last token."""
        count = TASKS[self.task].answers
        scores = self.base.score(self.hidden(batch, batch.ends)).float().view(-1, count)
        better, worse = torch.triu_indices(count, count, 1, device=scores.device)
        return -logsigmoid(scores[:, better] - scores[:, worse]).mean()

    @property
    def _head(self) -> Tensor:
        weight: Tensor = self.base.lm_head.weight
        return weight
