# SPDX-License-Identifier: Apache-2.0
"""Attention of a token over its own states in earlier layers (Inkling 2): it asks the registry, but sees no tokens."""

from __future__ import annotations

import torch
from torch import Tensor


def is_over_layers(module: torch.nn.Module) -> bool:
    """Whether a module attends to the layers before it, token by token: its "heads" are tokens."""
    return type(module).__name__.endswith("AttentionResidual")


def attention_over_layers(query: Tensor, key: Tensor, value: Tensor, scaling: float | None) -> Tensor:
    """Returns [B, queries, tokens, D] for query [B, tokens, queries, D] and key, value [B, tokens, layers, D].

    In the dtype that is given, float32, and for all sizes of hidden states, which are the head dim here.
    """
    out = torch.nn.functional.scaled_dot_product_attention(query, key, value, scale=scaling)
    return out.transpose(1, 2)
