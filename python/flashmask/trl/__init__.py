# SPDX-License-Identifier: Apache-2.0
"""FlashMask in TRL: preference trainers that hold each question once, and attention over trees of rollouts.

    from flashmask.trl import SharedQuestionDPOTrainer, SharedQuestionRewardTrainer, register_tree_attention

They take what TRL's own take, and stand on parts of TRL that are not public: a version that was not tested is refused.
docs/preference.md shows them at work.
"""

from flashmask.trl._dpo import SharedQuestionDPOTrainer
from flashmask.trl._reward import SharedQuestionRewardTrainer
from flashmask.trl._tree import register_tree_attention, tree_attention

__all__ = ["SharedQuestionDPOTrainer", "SharedQuestionRewardTrainer", "register_tree_attention", "tree_attention"]
