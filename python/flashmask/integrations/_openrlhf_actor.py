# SPDX-License-Identifier: Apache-2.0
"""OpenRLHF's Actor and replay buffer, with which each prompt is computed once; an import puts them in place.

OpenRLHF's workers take both by name when they import theirs: flashmask.integrations.openrlhf_prompts imports this
module before.
"""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import flashmask.transformers
from flashmask.data._examples import Tokens
from flashmask.data._prompts import packed_prompts, unpacked
from flashmask.integrations._host import Host
from flashmask.integrations._scoring_head import log_probs_of_call
from flashmask.transformers._shared_prefix import check_attention, check_layers, without_adapters

_HOST = Host("openrlhf", ("0.11",))
_HOST.check()
_Actor: Any = _HOST.part("openrlhf.models", "Actor")
_Buffer: Any = _HOST.part("openrlhf.trainer.ppo_utils", "NaiveReplayBuffer")
_make_experience_batch: Any = _HOST.part("openrlhf.trainer.ppo_utils", "make_experience_batch")


class SharedPromptActor(_Actor):  # type: ignore[misc]
    """OpenRLHF's Actor, in which the answers to a prompt stand behind one copy of it, as far as they meet in a call.

    The rows of a call become one sequence; its log-probabilities and entropies are laid out as OpenRLHF's. Calls
    without action_mask, which ask for logits, pass as in OpenRLHF.

    Raises ValueError for packing_samples, ring attention, the loss that balances experts, models that cannot share a
    prefix or change logits after their head, and heads with adapters.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        if self.packing_samples:
            raise ValueError(
                "packing_samples is True: OpenRLHF then replaces attention whose name lacks flash_attention, and rows "
                "are packed here without it; leave out --ds.packing_samples and --train.dynamic_batch_enable"
            )
        check_layers(self._bare(), "prompt")

    def _bare(self) -> Any:
        """Returns the model without DeepSpeed and adapters; raises ValueError for one that cannot share a prompt."""
        bare = without_adapters(getattr(self.model, "module", self.model), "prompt")
        check_attention(bare, "prompt")
        return bare

    def forward(
        self,
        sequences: Tensor,
        action_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        return_output: bool = False,
        ring_attn_group: Any = None,
        return_entropy: bool = False,
        **others: Any,
    ) -> Any:
        """Returns log-probabilities of the answers in sequences [B, L], in the shape of action_mask; 0 elsewhere.

        With return_output also what holds their entropies [B, L - 1], in which token t is at t - 1.
        """
        if action_mask is None:
            given = {"ring_attn_group": ring_attn_group, "return_entropy": return_entropy, **others}
            return super().forward(sequences, None, attention_mask, return_output, **given)
        if ring_attn_group is not None:
            raise ValueError(
                "ring attention spreads rows over ranks, not packed prompts; set --ds.ring_attn_size 1, or train "
                "without shared prompts"
            )
        held = torch.ones_like(sequences) if attention_mask is None else attention_mask
        begins = _begins(action_mask, sequences.shape[1])
        packed, rows = packed_prompts(sequences, held, begins)
        found = log_probs_of_call(self._bare(), self.model, {**packed, "use_cache": False}, self.temperature)
        log_probs, entropies = (unpacked(each, rows[:, 1:]) for each in found)
        log_probs = log_probs[:, -action_mask.shape[1] :] * action_mask.float()
        return (log_probs, _Output(entropies)) if return_output else log_probs


class _Output(NamedTuple):
    """What OpenRLHF reads of a model's output."""

    entropy: Tensor

    @property
    def aux_loss(self) -> Tensor:
        raise ValueError(
            "--actor.aux_loss_coef is set: the loss that balances experts would count the tokens of a prompt once, and "
            "OpenRLHF counts them for every answer; set it to 0, or train without shared prompts"
        )


def _begins(action_mask: Tensor, length: int) -> Tokens:
    """Returns the column of rows of `length` tokens where each answer begins; `length` where there is none."""
    mask = action_mask.bool().cpu().numpy()
    first = np.where(mask.any(1), mask.argmax(1), mask.shape[1])
    begins: Tokens = length - mask.shape[1] + first
    return begins


class WholeCallReplayBuffer(_Buffer):  # type: ignore[misc]
    """OpenRLHF's NaiveReplayBuffer, whose items are micro-batches: a shuffle moves them, and groups stay together."""

    def __init__(self, sample_batch_size: int, *arguments: Any, **options: Any) -> None:
        super().__init__(sample_batch_size, *arguments, **options)
        self._rows, self.sample_batch_size = sample_batch_size, 1

    def __len__(self) -> int:
        return len(self.items) // self._rows

    def __getitem__(self, number: int) -> Any:
        return self.items[number * self._rows : (number + 1) * self._rows]

    def collate_fn(self, batch: Any) -> Any:
        """Returns the experience of a batch of one micro-batch."""
        return _make_experience_batch(batch[0], self.packing_samples)


def _put_in_place() -> None:
    for module in ("openrlhf.models.actor", "openrlhf.models"):
        setattr(importlib.import_module(module), "Actor", SharedPromptActor)  # noqa: B010
    for module in ("openrlhf.trainer.ppo_utils.replay_buffer", "openrlhf.trainer.ppo_utils"):
        setattr(importlib.import_module(module), "NaiveReplayBuffer", WholeCallReplayBuffer)  # noqa: B010


flashmask.transformers.register()
_put_in_place()
