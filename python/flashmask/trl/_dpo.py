# SPDX-License-Identifier: Apache-2.0
"""DPO that computes each question once."""

from __future__ import annotations

import contextlib
from typing import Any

from trl import DPOTrainer

import flashmask.transformers
from flashmask.transformers._trainer import WithoutCpHooks, context_parallel_mesh
from flashmask.trl._shared_questions import share_questions, spread_over_ranks
from flashmask.trl._version import check_version


class SharedQuestionDPOTrainer(WithoutCpHooks, DPOTrainer):
    """A trl.DPOTrainer with the same arguments and results, in whose batches chosen and rejected share their question.

    The model runs over one packed sequence per batch, which holds the common beginning of each pair only once.
    Log-probabilities, every loss type of DPOConfig, reference models, precomputed reference log-probabilities and
    metrics are TRL's own code; losses equal those on padded pairs up to rounding. Rafailov et al. 2023 (Direct
    Preference Optimization), equation 7.

    Where Accelerate's ParallelismConfig(cp_size=...) asks for context parallelism, the packed sequence is spread over
    those ranks, and each of them computes the loss of all pairs; flashmask.transformers.ShardedBatches is not needed.

    The model and any reference model need attn_implementation="flashmask". Raises ValueError for whatever would mix
    answers or count differently from TRL: another attention implementation, models of text and images, layers whose
    state cannot fork, PEFT's prompt learning, the loss that balances experts, precomputed references with context
    parallelism; raises ImportError for a TRL other than 1.16.
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

    def _prepare_context_parallel_inputs(self, model: Any, inputs: dict[str, Any]) -> Any:
        """Leaves the batch whole: Trainer would cut TRL's padded one; compute_loss() shares out the packed one."""
        return contextlib.nullcontext, inputs

    def compute_loss(self, model: Any, inputs: dict[str, Any], *arguments: Any, **options: Any) -> Any:
        return super().compute_loss(model, spread_over_ranks(self, model, inputs), *arguments, **options)

    def _precompute_ref_logps(self, *arguments: Any) -> Any:
        if context_parallel_mesh(self.accelerator) is not None:
            raise ValueError(
                "precompute_ref_log_probs=True with context parallelism: TRL would gather the log-probabilities of a "
                "batch from each of the ranks that share it; set precompute_ref_log_probs=False in DPOConfig"
            )
        share_questions(self)  # TRL precomputes while it makes the trainer
        return super()._precompute_ref_logps(*arguments)
