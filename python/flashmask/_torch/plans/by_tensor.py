# SPDX-License-Identifier: Apache-2.0
"""Values that belong to tensors, and the masks that made them."""

from __future__ import annotations

import weakref
from typing import Generic, TypeVar

from torch import Tensor

from flashmask._mask import Mask

Value = TypeVar("Value")


class ByTensor(Generic[Value]):
    """One value per tensor, found by the tensor's identity and kept for as long as the tensor lives."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[weakref.ref[Tensor], Value]] = {}

    def __len__(self) -> int:
        return len(self._held)

    def get(self, tensor: Tensor) -> Value | None:
        """Returns the value of this very tensor, or None."""
        held = self._held.get(id(tensor))
        return held[1] if held is not None and held[0]() is tensor else None

    def put(self, tensor: Tensor, value: Value) -> Value:
        """Keeps the value, which must not refer to the tensor."""
        key = id(tensor)

        def forget(reference: weakref.ref[Tensor]) -> None:
            held = self._held.get(key)
            if held is not None and held[0] is reference:
                self._held.pop(key, None)

        self._held[key] = (weakref.ref(tensor, forget), value)
        return value


_masks: ByTensor[weakref.ref[Mask]] = ByTensor()


def remember(mask: Mask) -> None:
    """Lets mask_of() find a mask by its tensor."""
    _masks.put(mask.tensor, weakref.ref(mask))


def mask_of(tensor: Tensor) -> Mask:
    """Returns the mask that made a packed tensor while it lives, else one that the library unpacks from the tensor."""
    kept = _masks.get(tensor)
    mask = None if kept is None else kept()
    return Mask._from_tensor(tensor) if mask is None else mask
