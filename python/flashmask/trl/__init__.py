# SPDX-License-Identifier: Apache-2.0
"""FlashMask in TRL: trainers that hold each prompt or question once, and attention over trees of rollouts.

    from flashmask.trl import share_prompts, SharedPromptGRPOTrainer, SharedPromptRLOOTrainer
    from flashmask.trl import SharedQuestionDPOTrainer, SharedQuestionRewardTrainer, register_tree_attention

The trainers take the arguments of TRL's own. They rely on parts of TRL that are not public, so versions that were not
tested are refused.
docs/preference.md shows them at work.
"""

from flashmask.trl._dpo import SharedQuestionDPOTrainer
from flashmask.trl._policy import SharedPromptGRPOTrainer, SharedPromptRLOOTrainer
from flashmask.trl._reward import SharedQuestionRewardTrainer
from flashmask.trl._shared_prompts import share_prompts
from flashmask.trl._tree import register_tree_attention, tree_attention

__all__ = [
    "SharedPromptGRPOTrainer",
    "SharedPromptRLOOTrainer",
    "SharedQuestionDPOTrainer",
    "SharedQuestionRewardTrainer",
    "register_tree_attention",
    "share_prompts",
    "tree_attention",
]
