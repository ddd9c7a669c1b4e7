# SPDX-License-Identifier: Apache-2.0
"""merge() of the C ABI, with its structs packed as bytes."""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Sequence
from itertools import chain
from typing import TypeAlias

from flashmask._abi import structs as s
from flashmask._abi.library import call

_LAYOUT = struct.Struct("=4i8q")


Placed: TypeAlias = tuple[int, bytes]
"""A tensor: its address, and the rest of its flashmask_tensor, as layout() packs it."""
ABSENT: Placed = 0, bytes(_LAYOUT.size)


@functools.lru_cache(maxsize=1024)
def layout(code: int, device: tuple[int, int], shape: tuple[int, ...], strides: tuple[int, ...]) -> bytes:
    """Packs a flashmask_tensor without its address; `device` is (type, index), `strides` are in elements."""
    unused = (0,) * (4 - len(shape))
    return _LAYOUT.pack(code, *device, len(shape), *shape, *unused, *strides, *unused)


def merge(parts: Sequence[Placed], o: Placed, lse: Placed, stream: int) -> None:
    """Merges at least two parts, o1, lse1, o2, lse2 and so on; `stream` is a cudaStream_t or 0."""
    more = packed(*parts[4:])
    _run("merge", packed(*parts[:4], o, lse), more, len(parts) // 2 - 2, stream)


def merge_backward(parts: Sequence[Placed], merged: Sequence[Placed], gradients: Sequence[Placed], stream: int) -> None:
    """Writes merge()'s `gradients`, grad_o1, grad_lse1 and so on; `merged`: o, lse, grad_o, grad_lse."""
    pairs = range(4, len(parts), 2)
    more = packed(*(each for i in pairs for each in (*parts[i : i + 2], *gradients[i : i + 2])))
    _run("merge_backward", packed(*parts[:4], *merged, *gradients[:4]), more, len(pairs), stream)


@functools.cache
def _packer(count: int) -> struct.Struct:
    return struct.Struct("=" + f"Q{_LAYOUT.size}s" * count)


def packed(*tensors: Placed) -> bytes:
    """Packs flashmask_tensor structs, one after the other."""
    return _packer(len(tensors)).pack(*chain.from_iterable(tensors))


def _run(name: str, tensors: bytes, more: bytes, count: int, stream: int) -> None:
    size = len(tensors) + 24
    pointer = ctypes.cast(ctypes.c_char_p(more), ctypes.c_void_p).value if more else 0
    given = struct.pack("=Q", size) + tensors + struct.pack("=Qq", pointer, count)
    call(name, given, _execution(stream) if stream else None)


@functools.lru_cache(maxsize=64)
def _execution(stream: int) -> bytes:
    return bytes(s.Execution(stream=stream))
