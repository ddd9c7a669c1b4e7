# SPDX-License-Identifier: Apache-2.0
"""Attention of a few tokens to a cache: drafts that are verified, or the end of a prompt."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from flashmask._options import CallOptions
from flashmask._torch.decode import attend_few_rows
from flashmask.transformers._indices import Indices

MOST_ROWS = 16


def few_rows(q: Tensor, k: Tensor, v: Tensor, mask: Any, options: CallOptions) -> Tensor | None:
    """Returns o (batch, rows, heads, value dim) for few rows and more keys; None where another way is better."""
    if not q.shape[1] <= MOST_ROWS < k.shape[1]:
        return None
    if options.dropout or options.deterministic or options.invariant or options.score.kind:
        return None
    if not isinstance(mask, Indices) or mask.causal or mask.vectors.shape[1] != 1 or mask.vectors.shape[3] != 2:
        return None
    return attend_few_rows(q, k, v, mask.vectors, options)
