# SPDX-License-Identifier: Apache-2.0
"""Whose kernels compute a call on a GPU: this library's, or NVIDIA's cudnn.flex_attention. Nothing of torch is here."""

from __future__ import annotations

import os
from typing import Literal, TypeAlias

from flashmask._arguments import choice

BACKENDS = ("flashmask", "cudnn")
Backend: TypeAlias = Literal["flashmask", "cudnn"] | None
AUTOMATIC, OURS, WHERE_IT_SERVES, BY_NAME = 0, -1, 1, 2
"""What the field `cudnn` of a call says: FLASHMASK_BACKEND and the GPU decide; no; yes where cudnn serves; yes."""


def backend_of_environment() -> str:
    """Returns FLASHMASK_BACKEND, "" where it is not set. Raises ValueError where it names no backend."""
    chosen = os.environ.get("FLASHMASK_BACKEND", "")
    if chosen not in ("", *BACKENDS):
        raise ValueError(f"FLASHMASK_BACKEND is {chosen!r}; expected {' or '.join(BACKENDS)}, or nothing")
    return chosen


def cudnn_of(backend: Backend) -> int:
    """Returns the field of a call for the argument `backend`; None: automatic."""
    return AUTOMATIC if backend is None else (OURS, BY_NAME)[choice("backend", backend, BACKENDS)]
