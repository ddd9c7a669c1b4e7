# SPDX-License-Identifier: Apache-2.0
"""Log-probabilities of packed answers."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def answer_log_probs(logits: Tensor, packed: Mapping[str, Tensor]) -> Tensor:
    """Returns the summed log-probabilities of each answer's tokens, float32 [A], for DPO and similar losses.

    `logits` [B, length, vocabulary] come from a model that was given `packed`, a batch of pack(), on the same device.
    An answer's first token is predicted by the last row of the question, wherever the answer lies. Differentiable, and
    without a host synchronisation. Rafailov et al. 2023 (Direct Preference Optimization), equation 7.
    """
    missing = [name for name in ("answers", "answer_ids", "predictors") if name not in packed]
    if missing:
        raise ValueError(f"packed has no {missing[0]}; expected a batch that pack() made of examples with answers")
    if logits.ndim != 3 or logits.shape[:2] != packed["input_ids"].shape:
        raise ValueError(
            f"logits has shape {list(logits.shape)}; expected {[*packed['input_ids'].shape, 'vocabulary']}"
        )
    batch = torch.arange(logits.shape[0], device=logits.device)[:, None]
    rows = packed["predictors"]
    scores = logits[batch, rows, packed["input_ids"]].float()
    log_probs = scores - logits.float().logsumexp(-1).gather(-1, rows)
    sums = log_probs.new_zeros(packed["answers"].shape[0] + 1)  # slot 0 takes the tokens that are in no answer
    return sums.index_add(0, packed["answer_ids"].flatten() + 1, log_probs.flatten())[1:]
