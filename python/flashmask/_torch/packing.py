# SPDX-License-Identifier: Apache-2.0
"""Which part of a packed sequence a token is in. Imported only where torch is."""

from __future__ import annotations

import torch
from torch import Tensor

from flashmask._torch.shared import is_traced


def can_be_read(tensor: Tensor) -> bool:
    """Whether the host may look at values: it would have to wait for a GPU, and a trace has none."""
    return type(tensor) is Tensor and tensor.device.type == "cpu" and not is_traced()


def check_ends(name: str, cu_seqlens: Tensor, tokens: int) -> None:
    """Refuses ends [documents + 1] that are not cumulative lengths of documents in a sequence of `tokens`.

    Checks only what can_be_read().
    """
    if not can_be_read(cu_seqlens):
        return
    ends = cu_seqlens.numpy()  # 2.6 microseconds for three ends, where operations of torch take 9
    if ends[0] != 0 or ends[-1] > tokens or (ends[1:] < ends[:-1]).any():
        values = ends.tolist()
        shown = values if len(values) <= 8 else f"[{', '.join(map(str, values[:7]))}, ..., {values[-1]}]"
        raise ValueError(
            f"{name} is {shown}; expected cumulative lengths that begin with 0, never fall, and end at {tokens} tokens "
            "at most: documents of 3 and 4 tokens are [0, 3, 7]"
        )


def document_of(cu_seqlens: Tensor, tokens: int) -> Tensor:
    """Returns int64 [tokens]: the number of each token's document, `documents` for tokens past the last.

    `cu_seqlens` [documents + 1] has the ends of the documents, from 0 upwards.
    """
    return ends_passed(cu_seqlens[None, 1:], tokens)[0]


def ends_passed(ends: Tensor, tokens: int) -> Tensor:
    """Returns int64 [batch, tokens]: how many ends lie at or before a token, which is the number of its part.

    `ends` [batch, parts] ascend from 0. They are counted, not searched for: on a GPU, compilers of PyTorch before 2.13
    search a slice such as cu_seqlens[1:] from the beginning of the whole tensor (pytorch#182343), and callers may pass
    slices too.
    """
    within = ends.long().clamp(0, tokens)
    ending = within.new_zeros(within.shape[0], tokens + 1).scatter_add(1, within, torch.ones_like(within))
    return ending.cumsum(1)[:, :tokens]
