# SPDX-License-Identifier: Apache-2.0
"""Reward models with each question once."""

from __future__ import annotations

from typing import Any

from trl import RewardTrainer

import flashmask.transformers
from flashmask.trl._shared_questions import share_questions
from flashmask.trl._version import check_version


class SharedQuestionRewardTrainer(RewardTrainer):
    """trl.RewardTrainer, its arguments and its results, on batches in which chosen and rejected share their question.

    As SharedQuestionDPOTrainer: the question is what two sequences have in common from the first token on, and scores,
    loss and metrics are TRL's own code. The same models are refused.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        check_version()
        flashmask.transformers.register()
        super().__init__(*arguments, **options)
        share_questions(self)
