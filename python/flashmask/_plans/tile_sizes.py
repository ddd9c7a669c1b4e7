# SPDX-License-Identifier: Apache-2.0
"""Which tile size a plan's kernels use, where they have small tiles too."""

from __future__ import annotations

import ctypes

from flashmask._abi.header import Options
from flashmask._abi.library import call
from flashmask._abi.problem import Problem
from flashmask._mask import Mask

TILES = ("automatic", "large", "small")


def tile_sizes(mask: Mask, problem: Problem, options: Options) -> tuple[str, str]:
    """Returns the tile sizes that a plan of the mask uses in the forward and the backward, found on the host.

    Where options leave the choice to the kernel: "large" or "small" if it has both sizes, "automatic" if it has one.
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
    forward, backward = (TILES[own or chosen.value] for own, chosen in zip(asked, found, strict=True))
    return forward, backward
