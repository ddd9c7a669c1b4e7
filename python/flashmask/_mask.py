"""Mask: which query row sees which key column."""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from flashmask import _structs as s
from flashmask._header import HEADER_BYTES, Options, header
from flashmask._library import call, create, library

if TYPE_CHECKING:
    import torch


class MaskShape(NamedTuple):
    """Sizes of a mask; a batch of 1 is shared by every batch entry, 1 head by every head."""

    batch: int
    heads: int
    rows: int
    columns: int


class Mask:
    """An immutable mask that the compiled library holds; the builders are in flashmask.masks."""

    def __init__(self, handle: int) -> None:
        """Takes over a handle of the C ABI; builders call this, users do not."""
        self._handle = handle
        self._id = os.urandom(16)
        self._tensor: torch.Tensor | None = None

    def __del__(self, destroy: Any = library.flashmask_mask_destroy) -> None:
        handle = getattr(self, "_handle", None)
        if handle is not None:
            destroy(handle)

    @property
    def shape(self) -> MaskShape:
        sizes = s.MaskShape()
        call("mask_get_shape", self._handle, ctypes.byref(sizes))
        return MaskShape(sizes.batch, sizes.heads, sizes.rows, sizes.columns)

    def _packed(self, options: Options) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        """Header and bytes [HEADER_BYTES + n] of the mask, as operators take them."""
        size = ctypes.c_int64()
        call("mask_pack", self._handle, None, 0, ctypes.byref(size))
        packed = np.empty(HEADER_BYTES + size.value, np.uint8)
        packed[:HEADER_BYTES] = np.frombuffer(header(self._id, options), np.uint8)
        call("mask_pack", self._handle, packed.ctypes.data + HEADER_BYTES, size.value, ctypes.byref(size))
        return packed

    @staticmethod
    def _unpack(packed: np.ndarray[Any, np.dtype[np.uint8]]) -> Mask:
        """The mask in what _packed() gave, whatever process gave it."""
        body = np.ascontiguousarray(packed[HEADER_BYTES:])
        return Mask(create("mask_unpack", body.ctypes.data, body.size))
