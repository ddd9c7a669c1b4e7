"""FlashMask in TRL: preference trainers that compute each question once.

    from flashmask.trl import SharedQuestionDPOTrainer, SharedQuestionRewardTrainer

They take what TRL's own take, and stand on parts of TRL that are not public: a version that was not tested is refused.
"""

from flashmask.trl._dpo import SharedQuestionDPOTrainer
from flashmask.trl._reward import SharedQuestionRewardTrainer

__all__ = ["SharedQuestionDPOTrainer", "SharedQuestionRewardTrainer"]
