# SPDX-License-Identifier: Apache-2.0
"""Seeds of dropout from torch's generators."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from flashmask._abi.library import call as call_library
from flashmask._abi.problem import Problem
from flashmask._arguments import IntArray, described, integer
from flashmask._plans.call import Call


def seed_offset_of(fixed: Tensor | Sequence[int] | None, dropout: float, device: torch.device) -> Tensor:
    """Returns int64 [2]: the fixed values, or numbers from the device's generator, or zeros if nothing is dropped.

    There is one draw per call: whatever repeats the generator's numbers, as torch.manual_seed() and activation
    checkpointing do, repeats the dropout, and a captured graph draws anew each time that it is run.
    """
    if fixed is not None:
        return _fixed(fixed)
    if dropout == 0:
        return torch.zeros(2, dtype=torch.int64, device=device)
    return torch.randint(2**32, (2,), dtype=torch.int64, device=device)


def seed_offset_in(call: Call) -> Tensor | None:
    """Returns seed and offset, int64 [2]; None where nothing is dropped."""
    dropout, seed_offset = call.dropout, call.seed_offset
    if dropout == 0:
        return None
    if seed_offset is None or seed_offset.dtype != torch.int64 or seed_offset.shape != (2,):
        given = None if seed_offset is None else f"{seed_offset.dtype} {list(seed_offset.shape)}"
        raise ValueError(f"seed_offset is {given}; expected int64 [2], since dropout is {dropout}")
    return seed_offset


def seed_in(seed_offset: Tensor) -> tuple[int, int]:
    """Returns seed and offset as numbers; waits for a tensor on a GPU."""
    seed, offset = seed_offset.tolist()
    if not 0 <= offset < 2**32:
        raise ValueError(f"seed_offset holds the offset {offset}; expected one in [0, 2^32)")
    return seed & (2**64 - 1), offset


def place_in(call: Call, device: torch.device) -> tuple[int, int]:
    """Returns the address and size of a call's packed place; zeros where it has none."""
    place = call.dropout_place
    if place is None:
        return 0, 0
    if place.dtype != torch.int32 or place.ndim != 1 or not place.is_contiguous() or place.device != device:
        raise ValueError(
            f"dropout_place is {place.dtype} {list(place.shape)} on {place.device}; expected int32 [n] without gaps on "
            f"{device}, as flashmask_dropout_place_pack() writes it"
        )
    return place.data_ptr(), place.numel()


def pack_place(problem: Problem, first_head: int, heads: int, row_eights: IntArray, column_eights: IntArray) -> Tensor:
    """Packs Call.dropout_place, int32 [n] on the CPU: which heads, rows and columns of a larger problem a problem has.

    `first_head`: its first head among the `heads` query heads of the larger problem. `row_eights` and `column_eights`,
    int32: for each group of eight rows, or columns, of the problem, which group of the larger problem it is.
    """
    given = ctypes.byref(problem.struct()), first_head, heads, row_eights.ctypes.data, column_eights.ctypes.data
    size = ctypes.c_int64()
    call_library("dropout_place_pack", *given, None, 0, ctypes.byref(size))
    place = torch.empty(size.value, dtype=torch.int32)
    call_library("dropout_place_pack", *given, place.data_ptr(), size.value, ctypes.byref(size))
    return place


def _fixed(fixed: Tensor | Sequence[int]) -> Tensor:
    if isinstance(fixed, (tuple, list)):
        if len(fixed) != 2:
            raise ValueError(f"fixed_seed_offset has {len(fixed)} values; expected (seed, offset)")
        return torch.tensor([integer("fixed_seed_offset", value) for value in fixed], dtype=torch.int64)
    if not isinstance(fixed, Tensor):
        raise TypeError(f"fixed_seed_offset is {described(fixed)}; expected an int64 tensor [2] of seed and offset")
    if fixed.dtype is not torch.int64 or fixed.shape != (2,):
        raise ValueError(
            f"fixed_seed_offset is {fixed.dtype} {list(fixed.shape)}; expected an int64 tensor [2] of seed and offset"
        )
    return fixed
