# SPDX-License-Identifier: Apache-2.0
"""Checks the models of a TRL trainer whose sequences are to share a prefix."""

from __future__ import annotations

from typing import Any

from accelerate.utils import is_peft_model
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

from flashmask.transformers import flashmask_mask
from flashmask.transformers._stateful import carriers_of, why_no_forks

_LAYERS = {"full_attention", "sliding_attention"}


def models_of(trainer: Any, prefix: str) -> list[Any]:
    """Returns a trainer's model and reference model without wrappers and adapters, checked.

    `prefix` names what sequences share, "question" or "prompt". Raises ValueError for a model in which sequences with
    the same prefix would see each other.
    """
    wrapped = [each for each in (trainer.model, getattr(trainer, "ref_model", None)) if each is not None]
    models = [unwrapped(trainer, each, prefix) for each in wrapped]
    for model in models:
        _check_layers(model, prefix)
        check_attention(model, prefix)
    return models


def unwrapped(trainer: Any, model: Any, prefix: str) -> Any:
    """Returns a model without wrappers and adapters; raises ValueError for adapters that learn a prompt."""
    model = trainer.accelerator.unwrap_model(model)
    if not is_peft_model(model):
        return model
    kinds = [kind for kind, config in model.peft_config.items() if config.is_prompt_learning]
    if kinds:
        raise ValueError(
            f"adapter {kinds[0]!r} learns a prompt, whose tokens stand before each padded sequence; shared {prefix}s "
            "are packed without it: train it with TRL's own trainer"
        )
    return model.get_base_model()


def check_attention(model: Any, prefix: str) -> None:
    """Raises ValueError for a model whose attention would not read the mask of a packed batch."""
    implementation = model.config._attn_implementation
    if ALL_MASK_ATTENTION_FUNCTIONS.get(implementation) is not flashmask_mask:
        raise ValueError(
            f"{type(model).__name__} has attn_implementation={implementation!r}, under which answers to one {prefix} "
            'would see each other; make it with attn_implementation="flashmask" after '
            "flashmask.transformers.register()"
        )


def _check_layers(model: Any, prefix: str) -> None:
    name, config = type(model).__name__, model.config
    if config.get_text_config() is not config:
        raise ValueError(f"{name} is a model of text and images; shared {prefix}s are packed for models of text only")
    others = set(getattr(config, "layer_types", None) or ()) - _LAYERS
    unforked = why_no_forks(model)
    if unforked or ((others or getattr(model, "_is_stateful", False)) and not carriers_of(model)):
        what = unforked or (f"{sorted(others)} layers" if others else "layers with a state")
        raise ValueError(f"{name} has {what}, which carry one answer into the next; train it with TRL's own trainer")
