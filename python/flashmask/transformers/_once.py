# SPDX-License-Identifier: Apache-2.0
"""Warnings that are given once."""

from __future__ import annotations

import warnings

import torch

_warned: set[str] = set()


def warn_once(message: str) -> None:
    """Warns the first time that this process gives a message; does nothing while torch.compile traces."""
    if torch.compiler.is_compiling() or message in _warned:
        return
    _warned.add(message)
    warnings.warn(message, stacklevel=3)
