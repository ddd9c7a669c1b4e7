"""Models that attention by a registered name cannot serve, refused when they are made."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import torch
from transformers import masking_utils

_REGISTRY = "ALL_ATTENTION_FUNCTIONS"
_ITSELF = "its attention layers never look at Transformers' registry of attention functions"
_BIAS = "it adds a bias to the scores, which flashmask does not"
_TYPES = {
    "blt": "its masks of patches are numbers to add to the scores",
    "deepseek_v4": "it joins compressed keys to a mask of numbers, and flashmask's masks hold none",
    "doge": "it adds numbers of its own to the mask, and flashmask's masks hold none",
    "git": _ITSELF,
    "inkling2_text": _BIAS,
    "inkling_text": _BIAS,
}


def refuse_model(model: torch.nn.Module, name: str) -> None:
    """Raises ValueError where a model of this class and configuration would be wrong, or not run on flashmask."""
    reason = _why_not(type(model), getattr(model, "config", None))
    if reason:
        raise ValueError(
            f'{type(model).__name__} cannot run with attn_implementation="{name}": {reason}; use another one, such as '
            '"eager"'
        )


def _why_not(kind: type[torch.nn.Module], config: Any) -> str:
    held = vars(sys.modules[kind.__module__]) if kind.__module__ in sys.modules else {}
    if _attends_by_itself(held) and (_makes_masks(held) or hasattr(config, "vocab_size")):
        return _ITSELF
    if getattr(config, "attn_logit_softcapping", None):
        return f"it caps scores (attn_logit_softcapping={config.attn_logit_softcapping}), which flashmask does not"
    return _TYPES.get(getattr(config, "model_type", ""), "")


def _attends_by_itself(module: Mapping[str, Any]) -> bool:
    """Whether a module of models has attention layers and does not know the registry."""
    own = [each for each in module.values() if getattr(each, "__module__", None) == module["__name__"]]
    return _REGISTRY not in module and any(
        isinstance(each, type) and issubclass(each, torch.nn.Module) and "Attention" in each.__name__ for each in own
    )


def _makes_masks(module: Mapping[str, Any]) -> bool:
    """Whether layers there are given masks of our making. Towers that are not go on as they would without us."""
    return any(getattr(each, "__module__", None) == masking_utils.__name__ for each in module.values())
