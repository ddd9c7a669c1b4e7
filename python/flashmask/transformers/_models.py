# SPDX-License-Identifier: Apache-2.0
"""Refuses, when they are made, models that a registered attention function cannot serve."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import torch
from transformers import PreTrainedModel, masking_utils

_REGISTRY = "ALL_ATTENTION_FUNCTIONS"
_ITSELF = "its attention layers never look at Transformers' registry of attention functions"
_TYPES = {
    "blt": "its masks of patches are numbers to add to the scores",
    "deepseek_v4": "it joins compressed keys to a mask of numbers, and flashmask's masks hold none",
    "doge": "it adds numbers of its own to the mask, and flashmask's masks hold none",
    "git": _ITSELF,
}


def refuse_model(model: torch.nn.Module, name: str) -> None:
    """Raises ValueError if a model of this class and configuration would be wrong, or would not run on flashmask."""
    reason = _why_not(type(model), getattr(model, "config", None))
    if reason:
        raise ValueError(
            f'{type(model).__name__} cannot run with attn_implementation="{name}": {reason}; use another one, such as '
            '"eager"'
        )


def _why_not(kind: type[torch.nn.Module], config: Any) -> str:
    modules = [vars(sys.modules[name]) for name in modules_of(kind) if name in sys.modules]
    by_itself = any(map(_has_attention, modules)) and not any(_REGISTRY in each for each in modules)
    if by_itself and (any(map(_makes_masks, modules)) or hasattr(config, "vocab_size")):
        return _ITSELF
    return _TYPES.get(getattr(config, "model_type", ""), "")


def modules_of(kind: type[torch.nn.Module]) -> list[str]:
    """Returns the names of the modules that define a model class and the model classes that it inherits from."""
    return [
        each.__module__ for each in kind.__mro__ if issubclass(each, PreTrainedModel) and each is not PreTrainedModel
    ]


def _has_attention(module: Mapping[str, Any]) -> bool:
    """Whether a module defines attention layers."""
    own = [each for each in module.values() if getattr(each, "__module__", None) == module["__name__"]]
    return any(
        isinstance(each, type) and issubclass(each, torch.nn.Module) and "Attention" in each.__name__ for each in own
    )


def _makes_masks(module: Mapping[str, Any]) -> bool:
    """Whether a module makes masks by Transformers, hence by us. Towers that do not run as they would without us."""
    return any(getattr(each, "__module__", None) == masking_utils.__name__ for each in module.values())
