# SPDX-License-Identifier: Apache-2.0
"""GRPO and RLOO that compute each prompt once."""

from __future__ import annotations

from typing import Any

from trl import GRPOTrainer, RLOOTrainer

import flashmask.transformers
from flashmask.trl._shared_prompts import share_prompts
from flashmask.trl._version import check_version


class SharedPromptGRPOTrainer(GRPOTrainer):
    """A trl.GRPOTrainer, same arguments and results, that computes each prompt once for all of its answers.

    It is share_prompts() of a trl.GRPOTrainer, which says what `invariant` and `keep_order` do and what is refused.
    Shao et al. 2024 (DeepSeekMath), equation 3.
    """

    def __init__(self, *arguments: Any, invariant: bool = False, keep_order: bool = False, **options: Any) -> None:
        check_version()
        flashmask.transformers.register()
        super().__init__(*arguments, **options)
        share_prompts(self, invariant=invariant, keep_order=keep_order)


class SharedPromptRLOOTrainer(RLOOTrainer):
    """A trl.RLOOTrainer, same arguments and results, that computes each prompt once for all of its answers.

    It is share_prompts() of a trl.RLOOTrainer, which says what `invariant` and `keep_order` do and what is refused.
    Ahmadian et al. 2024 (Back to Basics), equation 7.
    """

    def __init__(self, *arguments: Any, invariant: bool = False, keep_order: bool = False, **options: Any) -> None:
        check_version()
        flashmask.transformers.register()
        super().__init__(*arguments, **options)
        share_prompts(self, invariant=invariant, keep_order=keep_order)
