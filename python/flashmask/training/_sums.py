# SPDX-License-Identifier: Apache-2.0
"""Gradients of parameters, summed over chunks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor


class GradientSums:
    """Sums in float32 or wider, so that many chunks round like one product over all tokens."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._dtypes = [each.dtype for each in parameters]
        self._sums: list[Tensor | None] = [None] * len(parameters)

    def add(self, gradients: Iterable[Tensor | None]) -> None:
        """Adds the gradients of a chunk; None: the chunk did not use that parameter."""
        for number, gradient in enumerate(gradients):
            if gradient is None:
                continue
            held = self._sums[number]
            if held is None:
                self._sums[number] = gradient.to(torch.promote_types(gradient.dtype, torch.float32))
            else:
                held.add_(gradient)

    def result(self) -> list[Tensor | None]:
        """Returns the sums in the parameters' dtypes."""
        return [None if held is None else held.to(dtype) for held, dtype in zip(self._sums, self._dtypes, strict=True)]
