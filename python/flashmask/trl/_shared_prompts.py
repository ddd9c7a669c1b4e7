# SPDX-License-Identifier: Apache-2.0
"""Policy updates that compute each prompt once, beneath trainers that score padded prompts and answers.

TRL's trainers take every log-probability, of the policy, the old policy and the reference model, from one method. In
its place the rows of a call become one packed sequence, in which answers to a prompt stand behind one copy of it; the
results are laid out as the padded ones, so that losses and metrics are TRL's own code on the tensors that it expects.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from trl.trainer.utils import add_fused_lm_head

from flashmask._arguments import boolean
from flashmask.data._prompts import packed_prompts, unpacked
from flashmask.transformers._shared_prefix import check_attention, check_dropout, refuse_images, unit_of_bits
from flashmask.trl._models import models_of, unwrapped
from flashmask.trl._policies import (
    FORWARD,
    GENERATES,
    SCORES,
    check_parallelism,
    check_settings,
    is_online,
    refuse_aux_loss,
)
from flashmask.trl._version import check_version

_SHARED = "_flashmask_shared_prompts"  # attribute of trainers


def share_prompts(trainer: Any, *, invariant: bool = False, keep_order: bool = False) -> Any:
    """Makes a GRPOTrainer, RLOOTrainer or OnlineDPOTrainer of TRL compute each prompt once; returns the trainer.

    The rows of each call of the model become one sequence, in which the answers to a prompt stand behind one copy of
    it. Log-probabilities, losses and gradients are those of padded rows up to rounding, and everything else is TRL's
    own code. Prompts are one where their tokens are equal. Subclasses are served that keep TRL's methods for scoring
    and for preparing batches. A second call changes the options of the first.

    TRL shuffles single answers before it cuts a generation batch into micro-batches, which scatters the answers to a
    prompt. Here whole micro-batches are shuffled, with the same random numbers: a micro-batch is then the same call of
    the model as the one that computed its old log-probabilities, so that their ratio is exactly 1 before an update.
    keep_order=True leaves TRL's shuffle as it is. Online DPO shuffles nothing; its metrics kl, entropy,
    non_score_reward and rlhf_reward leave out the padding that TRL's count.

    invariant=True: gives attention of an answer the bits that it has behind its prompt alone, for which prompts are
    shared in multiples of 128 tokens and answers are padded to them (192 and 384 for some heads on a Hopper GPU).

    Models need attn_implementation="flashmask". Raises ValueError for whatever would mix answers or count differently
    from TRL: what SharedQuestionDPOTrainer refuses, images, context parallelism, continuous batching of Transformers,
    and dropout beside invariant=True; TypeError for other trainers; ImportError for a TRL other than 1.16.
    """
    check_version()
    online = is_online(trainer)
    if not online:
        check_settings(trainer)
    check_parallelism(trainer)
    models = models_of(trainer, "prompt")
    if boolean("invariant", invariant):
        for model in models:
            check_dropout(model)
    boolean("keep_order", keep_order)
    if _SHARED not in vars(trainer):
        setattr(trainer, _SHARED, _SharedPrompts(trainer, online))
        for model in models if online else ():
            add_fused_lm_head(model)
    shared = getattr(trainer, _SHARED)
    shared.invariant, shared.keep_order = invariant, keep_order
    return trainer


class _SharedPrompts:
    """What stands in place of methods of a trainer."""

    invariant = False
    keep_order = False

    def __init__(self, trainer: Any, online: bool) -> None:
        self._trainer = trainer
        if online:
            setattr(trainer, FORWARD, self.forward)
            return
        self._generate = getattr(trainer, GENERATES)
        setattr(trainer, GENERATES, self.generated)
        setattr(trainer, SCORES, self.scores)

    def scores(
        self,
        model: Any,
        input_ids: Tensor,
        attention_mask: Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        compute_entropy: bool = False,
        compute_aux_loss: bool = False,
        **images: Any,
    ) -> tuple[Tensor, Tensor | None, None]:
        """Returns log-probabilities and entropies [rows, logits_to_keep] of the answers in padded rows; 0 in padding.

        input_ids and attention_mask [rows, L]. The model is called once for every `batch_size` rows, as TRL does.
        """
        refuse_images(images)
        if compute_aux_loss:
            refuse_aux_loss(self._trainer)
        bare = unwrapped(self._trainer, model, "prompt")
        check_attention(bare, "prompt")
        unit = unit_of_bits(bare, input_ids.device) if self.invariant else 1
        size = batch_size or len(input_ids)
        calls = zip(torch.split(input_ids, size), torch.split(attention_mask, size), strict=True)
        found = [self._score(model, ids, held, logits_to_keep, unit, compute_entropy) for ids, held in calls]
        log_probs = torch.cat([each for each, _ in found])
        return log_probs, torch.cat([each for _, each in found]) if compute_entropy else None, None

    def _score(
        self, model: Any, input_ids: Tensor, attention_mask: Tensor, answer: int, unit: int, entropies: bool
    ) -> tuple[Tensor, Any]:
        """Scores the rows of one call."""
        begins = np.full(len(input_ids), input_ids.shape[1] - answer)
        packed, rows = packed_prompts(input_ids, attention_mask, begins, unit=unit)
        bits = {"invariant": True} if self.invariant else {}
        with self._trainer.accelerator.autocast():
            found = model(**packed, **bits, fused_lm_head=True)
        rows = rows[:, -answer:]
        return unpacked(found.log_probs, rows), unpacked(found.entropy, rows) if entropies else None

    def forward(
        self,
        model: Any,
        prompt_ids: Tensor,
        prompt_mask: Tensor,
        completion_ids: Tensor,
        completion_mask: Tensor,
        vision_inputs: dict[str, Any] | None = None,
    ) -> Tensor:
        """Returns log-probabilities of Online DPO's answers, in the shape of completion_ids [rows, C]; 0 in padding.

        Where a row is longer than the trainer's max_length, prompts lose their first tokens, as in TRL.
        """
        answer = completion_ids.shape[1]
        cut = max(prompt_ids.shape[1] + answer - self._trainer.max_length, 0)
        ids = torch.cat([prompt_ids[:, cut:], completion_ids], 1)
        held = torch.cat([prompt_mask[:, cut:], completion_mask], 1)
        return self.scores(model, ids, held, answer, **(vision_inputs or {}))[0]

    def generated(self, inputs: Any) -> dict[str, Any]:
        """Returns a generation batch in an order in which TRL's shuffle moves whole micro-batches."""
        batch: dict[str, Any] = self._generate(inputs)
        trainer = self._trainer
        if self.keep_order or not trainer.model.training:
            return batch
        rows = len(batch["completion_ids"])
        return _reordered(batch, _order_before_shuffle(rows, rows // trainer.args.steps_per_generation))


def _order_before_shuffle(rows: int, size: int) -> Tensor:
    """Returns the order of rows that the shuffle to come turns into one of whole calls of `size` rows.

    Draws the permutation that TRL will draw, and leaves the generator as it was. Calls are in the order of the first of
    their rows in it.
    """
    state = torch.get_rng_state()
    drawn = torch.randperm(rows)
    torch.set_rng_state(state)
    calls = torch.tensor(list(dict.fromkeys((drawn // size).tolist())))
    wanted = (calls[:, None] * size + torch.arange(size)).flatten()
    return torch.empty_like(drawn).scatter(0, drawn, wanted)


def _reordered(batch: dict[str, Any], order: Tensor) -> dict[str, Any]:
    """Returns a generation batch with its rows in another order; what is one number for all of them stays."""

    def moved(each: Any) -> Any:
        if isinstance(each, Tensor):
            return each[order] if each.ndim else each
        return each if each is None else [each[row] for row in order.tolist()]

    return {name: moved(each) for name, each in batch.items()}
