# SPDX-License-Identifier: Apache-2.0
"""Which tiles a plan's kernels take, where they have small ones beside their own."""

from __future__ import annotations

import ctypes

from flashmask._abi.header import Options
from flashmask._abi.library import call
from flashmask._abi.problem import Problem
from flashmask._mask import Mask

TILES = ("automatic", "large", "small")


def tile_sizes(mask: Mask, problem: Problem, options: Options) -> tuple[str, str]:
    """Of the forward and of the backward: what a plan of the mask takes, told on the host.

    Where options leave it to the kernel: "large" or "small" where it has both sizes, "automatic" where it has one.
    """
    if problem.dtype == "float64":  # the reference, which has no tiles
        return TILES[0], TILES[0]
    found = ctypes.c_int32(), ctypes.c_int32()
    call(
        "plan_tile_sizes",
        mask._handle,
        ctypes.byref(problem.struct()),
        ctypes.byref(options.struct()),
        *map(ctypes.byref, found),
    )
    asked = options.forward_tiles, options.backward_tiles
    forward, backward = (TILES[own or told.value] for own, told in zip(asked, found, strict=True))
    return forward, backward
