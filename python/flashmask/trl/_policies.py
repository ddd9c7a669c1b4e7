# SPDX-License-Identifier: Apache-2.0
"""TRL's trainers of policies: the methods that share_prompts() replaces and relies on, and what it refuses."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from trl import GRPOTrainer, RLOOTrainer

from flashmask.transformers._shared_prefix import warn_of_cut_groups

SCORES = "_get_per_token_logps_and_entropies"
GENERATES = "_generate_and_score_completions"
FORWARD = "_forward"  # scores the answers of Online DPO


def _served() -> Iterator[tuple[type, tuple[str, str], bool]]:
    """Yields the trainers that are served, what they must keep of TRL, and whether they are Online DPO's."""
    for policy in (GRPOTrainer, RLOOTrainer):
        yield policy, (SCORES, "_prepare_inputs"), False
    experimental = sys.modules.get("trl.experimental.online_dpo")  # whose import TRL warns of
    if experimental is not None:
        yield experimental.OnlineDPOTrainer, (FORWARD, "training_step"), True


def is_online(trainer: Any) -> bool:
    """Returns whether a trainer is one of Online DPO; raises TypeError for one that is not served."""
    kind = type(trainer)
    for known, kept, online in _served():
        if not isinstance(trainer, known):
            continue
        for name in kept:
            if getattr(kind, name) is not getattr(known, name):
                raise TypeError(
                    f"{kind.__name__} has a {name}() of its own in place of {known.__name__}'s, which share_prompts() "
                    "relies on; use it without share_prompts()"
                )
        return online
    raise TypeError(
        f"share_prompts() got a {kind.__name__}; expected a GRPOTrainer, RLOOTrainer or OnlineDPOTrainer of TRL"
    )


def check_settings(trainer: Any) -> None:
    """Raises ValueError for settings under which sharing would change what is trained; warns where it gains little."""
    if trainer.aux_loss_enabled:
        refuse_aux_loss(trainer)
    if trainer.use_transformers_continuous_batching:
        raise ValueError(
            "use_transformers_continuous_batching is True: generation would need a paged cache, which attention "
            '"flashmask" refuses; set it to False, or use vLLM'
        )
    warn_of_cut_groups(trainer, stacklevel=4)


def check_parallelism(trainer: Any) -> None:
    """Raises ValueError where sequences are spread over ranks."""
    parallelism = getattr(trainer.accelerator, "parallelism_config", None)
    if parallelism is not None and (parallelism.cp_enabled or parallelism.sp_enabled):
        raise ValueError(
            "Accelerate's ParallelismConfig spreads sequences over ranks (cp_size or sp_size), and TRL cuts padded "
            "rows for them, not packed prompts; set both to 1, or use the trainer without share_prompts()"
        )


def refuse_aux_loss(trainer: Any) -> None:
    """Raises ValueError for the loss that balances experts."""
    raise ValueError(
        f"router_aux_loss_coef is {trainer.router_aux_loss_coef}: the loss that balances experts would count the "
        f"tokens of a prompt once, and TRL counts them {trainer.num_generations} times; set router_aux_loss_coef=0.0 "
        f"in {type(trainer.args).__name__}"
    )
