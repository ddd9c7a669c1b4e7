# SPDX-License-Identifier: Apache-2.0
"""States of a recurrence: a tensor, several in a tuple or another container, or None."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_map


def changed(change: Callable[..., Tensor], *states: Any) -> Any:
    """Calls `change` with the tensors that stand at the same position of all states; None stays None."""
    return tree_map(lambda *parts: None if parts[0] is None else change(*parts), *states)
