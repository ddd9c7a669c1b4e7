# SPDX-License-Identifier: Apache-2.0
"""Heads that are wider than any kernel of their device takes, and what is kept beside a mask for them."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from flashmask._info import kernels
from flashmask.transformers._recognise import MaskFunction, causal_documents

_HEAD_DIMS = ("head_dim", "global_head_dim", "qk_head_dim", "v_head_dim")  # of configurations
_LENGTHS = "flashmask_lengths"  # of a mask: those of its causal documents, list[list[int]], a list a batch entry
_TABLE = [each for each in kernels() if each["runs"]]
#: What kernels take that run here, (head dim, value dim), by device and direction.
_TAKEN = {
    device: [
        [(each["head_dim"], each["value_dim"]) for each in _TABLE if (each["device"], each["direction"]) == key]
        for key in ((device, "forward"), (device, "backward"))
    ]
    for device in ("cpu", "cuda")
}


def is_wide(device: str, head_dim: int, value_dim: int) -> bool:
    """Whether no kernel takes these head dims on a device that has kernels, forward or backward."""
    return any(
        bool(taken) and not any(head_dim <= d and value_dim <= dv for d, dv in taken)
        for taken in _TAKEN.get(device, [])
    )


def note_lengths(mask: Tensor, function: MaskFunction, config: Any) -> None:
    """Keeps beside a mask int32 [B or 1, S, 2] how long its documents are, where the layers of `config` need that.

    The host waits here for documents that lie on a GPU, where the forward begins and nothing is under way, rather
    than in each layer. Only for masks of causal documents without padding.
    """
    layers = config.per_layer_config if getattr(config, "is_heterogeneous", False) else [config]
    widest = max(getattr(layer, name, None) or 0 for layer in layers for name in _HEAD_DIMS)
    if not is_wide(mask.device.type, widest, widest):
        return
    known, documents = causal_documents(function)
    if known:
        setattr(mask, _LENGTHS, _lengths(documents) if documents is not None else [[mask.shape[1]]])


def _lengths(documents: Tensor) -> list[list[int]]:
    return [row.unique_consecutive(return_counts=True)[1].tolist() for row in documents.cpu()]


def noted_lengths(mask: Tensor | None) -> list[list[int]] | None:
    """What note_lengths() kept, a list a batch entry or one for all."""
    return getattr(mask, _LENGTHS, None)
