# SPDX-License-Identifier: Apache-2.0
"""Handle: owns a plan of the C ABI."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Handle:
    """Owns a plan of the C ABI, and destroys it when collected.

    This is not the plan's own __del__: Python runs that before it clears weak references, so another thread could still
    get the plan out of the cache while, or after, it is destroyed.
    """

    def __init__(self, value: int, destroy: Callable[[int], Any]) -> None:
        """Takes over a handle; `destroy` is the function of the library that frees it."""
        self.value = value
        self._destroy = destroy

    def __del__(self) -> None:
        self._destroy(self.value)
