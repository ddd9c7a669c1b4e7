"""Which document of a packed sequence a token is in. Imported only where torch is."""

from __future__ import annotations

import torch
from torch import Tensor


def document_of(cu_seqlens: Tensor, tokens: int) -> Tensor:
    """int64 [tokens]: the number of each token's document, `documents` for tokens past the last.

    `cu_seqlens` [documents + 1] has the ends of the documents, from 0 upwards. They are counted, not searched for:
    compilers of PyTorch before 2.13 search a slice, such as cu_seqlens[1:], from the beginning of the whole tensor on a
    GPU (pytorch#182343), and a caller's cu_seqlens may be a slice too.
    """
    ends = cu_seqlens[1:].long().clamp(0, tokens)
    ending = ends.new_zeros(tokens + 1).scatter_add(0, ends, torch.ones_like(ends))
    return ending.cumsum(0)[:tokens]
