# SPDX-License-Identifier: Apache-2.0
"""Calls between two graphs of torch.compile. Imports the compiler: import this only where that is loaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def _between_graphs(function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    """Returns what the function returns in eager mode."""
    return function(*arguments, **keywords)


between_graphs: Any = torch.compiler.disable(_between_graphs)  # type: ignore[no-untyped-call]
# The attribute that torch.compiler.disable(reason=...) sets; PyTorch 2.6 does not take the argument.
between_graphs._torchdynamo_disable_msg = (
    "flashmask makes masks and plans, and reads score_mods, on the host, where a graph with fullgraph=True cannot "
    "break; make masks and plans outside and pass them in, or make RowIndices from tensors inside: "
    "flashmask.masks.from_cu_seqlens and its kin; pass what a score_mod computes to flashmask.attention()"
)
