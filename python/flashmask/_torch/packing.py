"""Which part of a packed sequence a token is in. Imported only where torch is."""

from __future__ import annotations

import torch
from torch import Tensor


def document_of(cu_seqlens: Tensor, tokens: int) -> Tensor:
    """int64 [tokens]: the number of each token's document, `documents` for tokens past the last.

    `cu_seqlens` [documents + 1] has the ends of the documents, from 0 upwards.
    """
    return ends_passed(cu_seqlens[None, 1:], tokens)[0]


def ends_passed(ends: Tensor, tokens: int) -> Tensor:
    """int64 [batch, tokens]: how many of the ends lie at or before a token, so the number of the part that holds it.

    `ends` [batch, parts], from 0 upwards. They are counted, not searched for: compilers of PyTorch before 2.13
    search a slice, such as cu_seqlens[1:], from the beginning of the whole tensor on a GPU (pytorch#182343), and what a
    caller gives may be a slice too.
    """
    within = ends.long().clamp(0, tokens)
    ending = within.new_zeros(within.shape[0], tokens + 1).scatter_add(1, within, torch.ones_like(within))
    return ending.cumsum(1)[:, :tokens]
