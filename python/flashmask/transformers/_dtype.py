# SPDX-License-Identifier: Apache-2.0
"""Casts float32 queries, keys and values of a model that computes in another dtype."""

from __future__ import annotations

import torch
from torch import Tensor


def in_kernels_dtype(module: torch.nn.Module, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Casts query, key and value to the dtype that Transformers' own FlashAttention casts float32 queries to on a GPU.

    QLoRA keeps norms in float32; without autocast their float32 results arrive here.
    """
    query = tensors[0]
    if not query.is_cuda or query.dtype is not torch.float32:
        return tensors
    dtype = _target(module, query.device.type)
    return tensors if dtype is None else tuple(each.to(dtype) for each in tensors)


def refuse_float32(module: torch.nn.Module, query: Tensor) -> None:
    """Raises NotImplementedError for a model that computes in float32 on a GPU, where no kernel does."""
    if not query.is_cuda or query.dtype is not torch.float32:
        return
    raise NotImplementedError(
        f"{type(module).__name__} computes in float32 on {query.device}; flashmask's kernels there compute bfloat16 "
        "and float16: load the model with dtype=torch.bfloat16, run it under torch.autocast, or run it on the CPU"
    )


def _target(module: torch.nn.Module, device: str) -> torch.dtype | None:
    """Returns the dtype of autocast, else of a quantised model's configuration, else of the layer's own weights."""
    if torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    config = getattr(module, "config", None)
    if hasattr(config, "_is_quantized"):
        said = getattr(config, "dtype", None)
        return said if isinstance(said, torch.dtype) else None
    return next((each.weight.dtype for each in module.modules() if isinstance(each, torch.nn.Linear)), None)
