# SPDX-License-Identifier: Apache-2.0
"""Packing for fine-tuning: whole examples side by side in sequences of one length, with the mask that isolates them.

Attention isolates examples as long as all numbers are finite; a NaN in one example reaches others that share a tile
with it.

from functools import partial
from torch.utils.data import DataLoader
from flashmask.data import pack

loader = DataLoader(examples, batch_size=64, collate_fn=partial(pack, length=4096))
"""

from flashmask.data._answers import answer_log_probs
from flashmask.data._bins import fill
from flashmask.data._pack import Packed, pack
from flashmask.data._rollouts import PackedRollouts, pack_rollouts, rollout_log_probs

__all__ = ["Packed", "PackedRollouts", "answer_log_probs", "fill", "pack", "pack_rollouts", "rollout_log_probs"]
