"""Which linear layers are what they seem."""

from __future__ import annotations

from typing import Any

from torch import nn

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def plain_linears(*layers: Any) -> tuple[nn.Linear, ...]:
    """Of layers whose result is a product, or that and PEFT's plain LoRA beside it: the module of the product.

    Others have results that steps behind it do more with than add (DoRA scales by its norm), or products of their own
    (quantised weights, shards), and are left out.
    """
    return tuple(each for each in map(_plain, layers) if each is not None)


def _plain(layer: Any) -> nn.Linear | None:
    if type(layer).__module__ == "peft.tuners.lora.layer" and type(layer).__name__ == "Linear":
        layer = None if layer.lora_variant else layer.base_layer
    if type(layer) is not nn.Linear or "forward" in vars(layer):
        return None
    return None if any(getattr(layer, name) for name in _HOOKS) else layer
