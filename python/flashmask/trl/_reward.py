# SPDX-License-Identifier: Apache-2.0
"""Training of reward models that computes each question once."""

from __future__ import annotations

from typing import Any

from trl import RewardTrainer

import flashmask.transformers
from flashmask.trl._shared_questions import share_questions
from flashmask.trl._version import check_version


class SharedQuestionRewardTrainer(RewardTrainer):
    """A trl.RewardTrainer, same arguments and results, in whose batches chosen and rejected share their question.

    The question is what two sequences have in common from the first token on; scores, loss and metrics are TRL's own
    code. The models that SharedQuestionDPOTrainer refuses are refused here too.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        check_version()
        flashmask.transformers.register()
        super().__init__(*arguments, **options)
        share_questions(self)
