# SPDX-License-Identifier: Apache-2.0
"""ms-swift: an external plugin with which GRPO computes each prompt once.

    swift rlhf --rlhf_type grpo --attn_impl flashmask \
      --external_plugins $(python -m flashmask.integrations.ms_swift_prompts) ...

Every log-probability of ms-swift's GRPOTrainer, of the policy, the old policy, the reference model and a teacher, comes
from one method, which SharedPromptGRPOTrainer replaces; losses and metrics are ms-swift's own code.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flashmask._arguments import boolean
from flashmask.data._examples import Tokens
from flashmask.data._prompts import packed_prompts, unpacked
from flashmask.integrations import ms_swift
from flashmask.integrations._host import Host
from flashmask.integrations._scoring_head import log_probs_of_call
from flashmask.transformers._shared_prefix import (
    check_attention,
    check_dropout,
    check_layers,
    unit_of_bits,
    warn_of_cut_groups,
    without_adapters,
)

_HOST = Host("ms-swift", ("4.6",))
_HOST.check()
_Trainer: Any = _HOST.part("swift.rlhf_trainers", "GRPOTrainer")
_FACTORY: Any = _HOST.part("swift.trainers", "TrainerFactory")
_PACKED = {"input_ids", "attention_mask", "position_ids", "text_position_ids"}
_IGNORED = {"labels", "use_cache", "logits_to_keep"}


class SharedPromptGRPOTrainer(_Trainer):  # type: ignore[misc]
    """ms-swift's GRPOTrainer, same arguments and results, that computes each prompt once for all of its answers.

    The rows of each call of a model become one sequence, in which the answers to a prompt stand behind one copy of it,
    with `--padding_free` and without. Prompts are one where their tokens are equal. ms-swift does not shuffle answers:
    a micro-batch is the same call of the model as the one that computed its old log-probabilities.

    invariant = True on this class gives attention of an answer the bits that it has behind its prompt alone, as
    flashmask.trl.share_prompts(invariant=True) does.

    Raises ValueError for models of images, sequence parallelism, Liger's loss, models that cannot share a prefix or
    change logits after their head, heads with adapters, and dropout beside invariant.
    """

    invariant = False

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        _check_settings(self)
        models = (self.model, getattr(self, "ref_model", None), getattr(self, "teacher_model", None))
        for model in models:
            if model is not None:
                self._checked(model)

    def _checked(self, model: Any) -> Any:
        """Returns a model without wrappers and adapters, whose layers can share a prompt."""
        bare = without_adapters(self.accelerator.unwrap_model(model), "prompt")
        check_layers(bare, "prompt")
        check_attention(bare, "prompt")
        if boolean("invariant", self.invariant):
            check_dropout(bare)
        return bare

    def _get_per_token_logps_and_entropies_single(
        self, model: Any, model_inputs: dict[str, Any], grpo_batch: Any, compute_entropy: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Returns log-probabilities and entropies of the answers, in the shape of completion_mask; 0 elsewhere."""
        others = model_inputs.keys() - _PACKED - _IGNORED
        if others:
            raise ValueError(
                f"{min(others)} came beside input_ids: it says something of rows that are not packed; train without "
                "shared prompts"
            )
        columns = grpo_batch.completion_mask.shape[1]
        ids, held = _rows(model_inputs, columns, self.template.padding_free)
        begins = _begins(grpo_batch.completion_mask, ids.shape[1])
        bare = self._checked(model)
        unit = unit_of_bits(bare, ids.device) if self.invariant else 1
        packed, rows = packed_prompts(ids, held, begins, unit=unit)
        if self.invariant:
            packed["invariant"] = True  # type: ignore[assignment]
        found = log_probs_of_call(bare, model, {**packed, "use_cache": False}, self.temperature)
        log_probs, entropies = (unpacked(each, rows[:, -columns:]) for each in found)
        return log_probs, entropies if compute_entropy else None


def _check_settings(trainer: Any) -> None:
    """Raises ValueError for settings under which prompts cannot be shared; warns where it gains little."""
    if trainer.is_multimodal:
        raise ValueError("the model reads images: prompts with images are not shared yet; train without shared prompts")
    if trainer.template.sequence_parallel_size > 1:
        raise ValueError(
            f"sequence_parallel_size is {trainer.template.sequence_parallel_size}: ms-swift cuts padded rows for its "
            "ranks, not packed prompts; set it to 1, or train without shared prompts"
        )
    if trainer.use_liger_loss:
        raise ValueError(
            "use_liger_kernel is True: Liger's loss reads padded rows; set it to False, where prompts are shared the "
            "logits never exist as a whole either"
        )
    warn_of_cut_groups(trainer, stacklevel=3)


def _rows(inputs: dict[str, Any], columns: int, packed: bool) -> tuple[Tensor, Tensor]:
    """Returns token ids and what is no padding, [B, L]; L is at least `columns`, the last of which hold the answers."""
    ids = inputs["input_ids"]
    if not packed:
        mask = inputs.get("attention_mask")
        return ids, torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool()
    positions = inputs.get("text_position_ids")
    positions = inputs["position_ids"] if positions is None else positions
    starts = (positions.flatten() == 0).nonzero()[:, 0].tolist()
    sequences = ids[0].tensor_split(starts[1:])
    length = max(columns, *(len(each) for each in sequences))
    rows, held = ids.new_zeros(len(sequences), length), ids.new_zeros(len(sequences), length, dtype=torch.bool)
    for row, each in enumerate(sequences):
        rows[row, length - len(each) :] = each
        held[row, length - len(each) :] = True
    return rows, held


def _begins(completion_mask: Tensor, length: int) -> Tokens:
    """Returns the column of rows of `length` tokens where each answer begins; `length` where there is none."""
    mask = completion_mask.bool().cpu().numpy()
    first = np.where(mask.any(1), mask.argmax(1), mask.shape[1])
    begins: Tokens = length - mask.shape[1] + first
    return begins


def register() -> None:
    """Has ms-swift train with SharedPromptGRPOTrainer where it would take its GRPOTrainer; can be called again."""
    ms_swift.register()
    _FACTORY.TRAINER_MAPPING["grpo"] = "flashmask.integrations.ms_swift_prompts.SharedPromptGRPOTrainer"


if __name__ == "__main__":
    print(Path(__file__).with_name("_plugins") / "flashmask_ms_swift_prompts.py")
else:
    register()
