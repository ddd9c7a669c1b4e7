"""Seeds of dropout from torch's generator."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from flashmask._arguments import described, integer


def seed_offset_of(fixed: Tensor | Sequence[int] | None, dropout: float) -> Tensor:
    """int64 [2] on the CPU: what was fixed, else numbers of torch's generator, or zeros where nothing is dropped.

    The generator is that of the CPU, whatever device computes, so that torch.manual_seed() repeats a run on each.
    """
    if fixed is not None:
        return _fixed(fixed)
    if dropout == 0:
        return torch.zeros(2, dtype=torch.int64)
    return torch.randint(2**32, (2,), dtype=torch.int64)


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
