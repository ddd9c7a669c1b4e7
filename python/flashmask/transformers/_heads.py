# SPDX-License-Identifier: Apache-2.0
"""Heads that are wider than any kernel of their device takes, and the document lengths kept with a mask for them."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from flashmask._info import kernels
from flashmask.transformers._recognise import MaskFunction, causal_documents

_HEAD_DIMS = ("head_dim", "global_head_dim", "qk_head_dim", "v_head_dim")  # fields of a configuration
_LENGTHS = "flashmask_lengths"  # attribute of a mask: lengths of causal documents, one list[int] per batch entry
_TABLE = [each for each in kernels() if each["runs"]]
#: (head dim, value dim) of every kernel that runs here, by device and direction.
_TAKEN = {
    device: [
        [(each["head_dim"], each["value_dim"]) for each in _TABLE if (each["device"], each["direction"]) == key]
        for key in ((device, "forward"), (device, "backward"))
    ]
    for device in ("cpu", "cuda")
}


def is_wide(device: str, head_dim: int, value_dim: int) -> bool:
    """Whether a device has kernels, but none for these head dims, forward or backward."""
    return any(
        bool(taken) and not any(head_dim <= d and value_dim <= dv for d, dv in taken)
        for taken in _TAKEN.get(device, [])
    )


def note_lengths(mask: Tensor, function: MaskFunction, config: Any) -> None:
    """Stores document lengths with a mask int32 [B or 1, S, 2], if layers of `config` are too wide for all kernels.

    If the documents lie on a GPU, the host waits for them here, at the start of the forward, where nothing is under
    way, rather than in each layer. Only for masks of causal documents without padding.
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
    """Returns what note_lengths() stored, one list of lengths per batch entry or one for all; None if nothing."""
    return getattr(mask, _LENGTHS, None)
