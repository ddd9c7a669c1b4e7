# SPDX-License-Identifier: Apache-2.0
"""Checks the models of a TRL trainer whose sequences are to share a prefix."""

from __future__ import annotations

from typing import Any

from flashmask.transformers._shared_prefix import check_attention, check_layers, without_adapters


def models_of(trainer: Any, prefix: str) -> list[Any]:
    """Returns a trainer's model and reference model without wrappers and adapters, checked.

    `prefix` names what sequences share, "question" or "prompt". Raises ValueError for a model in which sequences with
    the same prefix would see each other.
    """
    wrapped = [each for each in (trainer.model, getattr(trainer, "ref_model", None)) if each is not None]
    models = [unwrapped(trainer, each, prefix) for each in wrapped]
    for model in models:
        check_layers(model, prefix)
        check_attention(model, prefix)
    return models


def unwrapped(trainer: Any, model: Any, prefix: str) -> Any:
    """Returns a model without wrappers and adapters; raises ValueError for adapters that learn a prompt."""
    return without_adapters(trainer.accelerator.unwrap_model(model), prefix)
