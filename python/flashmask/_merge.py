# SPDX-License-Identifier: Apache-2.0
"""merge(): joins attention over several sets of keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flashmask._abi.merge import Placed, layout
from flashmask._abi.merge import merge as run_merge
from flashmask._abi.problem import DTYPES, F64
from flashmask._abi.structs import F32
from flashmask._arguments import Kind, described, is_tensor
from flashmask._graph_break import breaks_graph
from flashmask._merge_in_double import merge_in_double
from flashmask._plans.plan import dtype_name

Array = np.ndarray[Any, np.dtype[Any]]


def merge(o1: Kind, lse1: Kind, o2: Kind, lse2: Kind, *more: Kind) -> tuple[Kind, Kind]:
    """Joins attention of the same queries over disjoint keys, as if it had been computed over all of them.

    Ring attention, chunked prefill and caches split keys that way: Milakov and Gimelshein 2018, section 3.1. Sums are
    in float32 (float64 for float64) and in the order of the arguments, so that results repeat bit for bit. Give sinks
    to the call of one part, whichever: they are in its lse, and so in the result once.

    Args:
        o1, o2: (batch, query length, heads, value dim), or (total, heads, value dim) from varlen_attention(): torch
            tensors on one device, or NumPy arrays.
        lse1, lse2: (batch, heads, query length), or (heads, total): what attention returned with each, float32, or
            float64 where o is.
        more: o3, lse3, o4, lse4 and so on. On a GPU at most 32 parts, unless the parts are evenly spaced views of one
            tensor.

    Returns:
        o, with the shape and dtype of o1, and lse, with those of lse1. Torch tensors are differentiable once in all
        arguments. Where the lse of a part is -inf, or +inf as FlashAttention writes it for rows that saw nothing, the
        part counts for nothing; a row that saw nothing in any part has o = 0, lse = -inf and passes no gradient on.

    Raises:
        ValueError, TypeError: an argument is not as described, or the arguments do not fit each other.
    """
    arguments: tuple[Any, ...] = (o1, lse1, o2, lse2, *more)
    if len(more) % 2:
        raise TypeError(f"merge() was given {len(arguments)} arguments; expected an lse behind each o")
    o, lse = arguments[::2], arguments[1::2]
    kind = "a torch tensor" if is_tensor(o1) else "a NumPy array"
    for name, each in _named(o, lse):
        if not (is_tensor(each) if is_tensor(o1) else isinstance(each, np.ndarray)):
            raise TypeError(f"{name} is {described(each)}; expected {kind}{'' if name == 'o1' else ', as o1 is'}")
    _check(o, lse)
    if o1.ndim == 3:
        merged = _merge([each[None] for each in o], [each[None] for each in lse])
        return merged[0][0], merged[1][0]
    return _merge(o, lse)


def _named(o: Sequence[Any], lse: Sequence[Any]) -> list[tuple[str, Any]]:
    pairs = enumerate(zip(o, lse, strict=True), 1)
    return [named for i, (one, its) in pairs for named in ((f"o{i}", one), (f"lse{i}", its))]


def _check(o: Sequence[Any], lse: Sequence[Any]) -> None:
    first = o[0]
    if first.ndim not in (3, 4):
        raise ValueError(
            f"o1 has shape {list(first.shape)}; expected (batch, query length, heads, value dim) or (total, heads, "
            "value dim)"
        )
    dtype = dtype_name("o1", first)
    of_lse = "float64" if dtype == "float64" else "float32"
    rows = (*first.shape[:-3], first.shape[-2], first.shape[-3])
    for name, each in _named(o, lse):
        shape, kind = (rows, of_lse) if name.startswith("lse") else (tuple(first.shape), dtype)
        if tuple(each.shape) != shape:
            raise ValueError(f"{name} has shape {list(each.shape)}; expected {list(shape)}, that of o1")
        if str(each.dtype).removeprefix("torch.") != kind:
            raise TypeError(f"{name} is {each.dtype}; expected {kind} beside an o1 of {dtype}")
        if is_tensor(each) and each.device != first.device:
            raise ValueError(f"{name} is on {each.device}; expected {first.device}, the device of o1")


def _merge(o: Sequence[Any], lse: Sequence[Any]) -> tuple[Any, Any]:
    if is_tensor(o[0]):
        from flashmask._torch.merge import merge_operator

        return merge_operator(o, lse)
    return _merge_arrays(o, lse)


@breaks_graph
def _merge_arrays(o: Sequence[Array], lse: Sequence[Array]) -> tuple[Array, Array]:
    code = DTYPES.index(dtype_name("o1", o[0]))
    if code == F64:
        return merge_in_double(o, lse)
    merged = np.empty(o[0].shape, o[0].dtype), np.empty(lse[0].shape, np.float32)
    kept: list[Array] = []  # copies must live until they have been read

    def placed(array: Array, code: int) -> Placed:
        kept.append(_ready(array))
        strides = tuple(stride // array.itemsize for stride in kept[-1].strides)
        return kept[-1].ctypes.data, layout(code, (0, 0), array.shape, strides)

    parts = [each for one, its in zip(o, lse, strict=True) for each in (placed(one, code), placed(its, F32))]
    run_merge(parts, placed(merged[0], code), placed(merged[1], F32), 0)
    return merged


def _ready(array: Array) -> Array:
    """Returns the array, or a copy with strides that the library accepts."""
    whole = all(stride % array.itemsize == 0 for stride in array.strides)
    usable = array.flags.aligned and whole and array.strides[-1] == array.itemsize
    return array if usable else np.array(array, order="C")
