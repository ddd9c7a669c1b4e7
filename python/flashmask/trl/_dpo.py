"""DPO with each question once."""

from __future__ import annotations

from typing import Any

from trl import DPOTrainer

import flashmask.transformers
from flashmask.trl._shared_questions import share_questions
from flashmask.trl._version import check_version


class SharedQuestionDPOTrainer(DPOTrainer):
    """trl.DPOTrainer, its arguments and its results, on batches in which chosen and rejected share their question.

    The model runs over one packed sequence a batch, which holds what the two answers of a pair have in common once.
    Log-probabilities, every loss type of DPOConfig, reference models, precomputed reference log-probabilities and
    metrics are TRL's own code; losses equal those on padded pairs up to rounding. Rafailov et al. 2023 (Direct
    Preference Optimization), equation 7.

    The model and a reference model need attn_implementation="flashmask". Raises ValueError for what would mix answers
    or count otherwise than TRL: another attention implementation, models of text and images, layers with a state,
    prompt learning of PEFT, the loss that balances experts; ImportError for a TRL other than 1.16.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        check_version()
        flashmask.transformers.register()
        super().__init__(*arguments, **options)
        if self.aux_loss_enabled:
            raise ValueError(
                f"router_aux_loss_coef is {self.router_aux_loss_coef}: the loss that balances experts would count the "
                "tokens of a question once, and TRL counts them twice; set router_aux_loss_coef=0.0 in DPOConfig"
            )
        share_questions(self)

    def _precompute_ref_logps(self, *arguments: Any) -> Any:
        share_questions(self)  # TRL precomputes while it makes the trainer
        return super()._precompute_ref_logps(*arguments)
