# SPDX-License-Identifier: Apache-2.0
"""FlashMask in TRL: preference trainers that hold each question once, and attention over trees of rollouts.

    from flashmask.trl import SharedQuestionDPOTrainer, SharedQuestionRewardTrainer, register_tree_attention

The trainers take the arguments of TRL's own. They rely on parts of TRL that are not public, so versions that were not
tested are refused.
docs/preference.md shows them at work.
"""

from flashmask.trl._dpo import SharedQuestionDPOTrainer
from flashmask.trl._reward import SharedQuestionRewardTrainer
from flashmask.trl._tree import register_tree_attention, tree_attention

__all__ = ["SharedQuestionDPOTrainer", "SharedQuestionRewardTrainer", "register_tree_attention", "tree_attention"]
