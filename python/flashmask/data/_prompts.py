# SPDX-License-Identifier: Apache-2.0
"""Packing for updates of policies: padded rows become one sequence, in which answers stand behind one prompt."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from flashmask._arguments import integer
from flashmask.data._examples import Tokens
from flashmask.data._rollouts import pack_rollouts


def packed_prompts(
    input_ids: Tensor, held: Tensor, begins: Tokens, *, unit: int = 1, pad_to_multiple_of: int = 1
) -> tuple[dict[str, Tensor], Tensor]:
    """Packs rows [B, L], each a prompt and behind it an answer that begins at begins[row], into one sequence [1, T].

    held, bool [B, L], is False in padding. Returns what a model takes, with `shift_labels`, the token that each row of
    the packed sequence predicts; and int64 [B, L], the row of the packed sequence that predicts each token of an
    answer, -1 elsewhere. Rows whose answer is empty are left out. If all are, one token stays, so that every rank has a
    call and its graph.
    """
    device = input_ids.device
    kept = held.bool().cpu().numpy()
    sequences = [ids[mask] for ids, mask in zip(input_ids.cpu().numpy(), kept, strict=True)]
    answered = kept & (np.arange(kept.shape[1]) >= np.asarray(begins)[:, None])
    prompts = (kept & ~answered).sum(1)
    if not prompts.all():
        raise ValueError(f"prompt {int(np.argmin(prompts))} has no tokens; expected one, which predicts its answer")
    scored = np.flatnonzero(answered.any(1))
    rollouts, limits = [sequences[row] for row in scored], prompts[scored] - 1
    if not rollouts:
        rollouts, limits = [sequences[0][:1]], np.zeros(1, np.int64)
    multiple = integer("pad_to_multiple_of", pad_to_multiple_of, minimum=1)
    batch = pack_rollouts(rollouts, shared_until=limits, unit=unit, pad_to_multiple_of=multiple)
    rows = np.full(kept.shape, -1)
    for row, positions in zip(scored, batch["rows"].numpy(), strict=False):
        rows[row, answered[row]] = positions[prompts[row] - 1 :][: answered[row].sum()]
    named = {name: batch[name] for name in ("input_ids", "position_ids", "startend_row_indices")}
    packed = {**named, "shift_labels": batch["labels"]}
    return {name: each.to(device) for name, each in packed.items()}, torch.from_numpy(rows).to(device)


def unpacked(each: Tensor, rows: Tensor) -> Tensor:
    """Returns what was computed for each row of a packed sequence, [1, T], at the positions of `rows`; 0 where -1."""
    return each[0, rows.clamp(min=0)].masked_fill(rows < 0, 0)
