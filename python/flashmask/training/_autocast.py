# SPDX-License-Identifier: Apache-2.0
"""Autocast as it is now, for later."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Any

import torch

_DEVICES = ("cuda", "cpu")


def autocast_now() -> Callable[[], AbstractContextManager[Any]]:
    """What enters the state of now again, and keeps no casted weights: those made without a gradient have none."""
    state = {name: (torch.is_autocast_enabled(name), torch.get_autocast_dtype(name)) for name in _DEVICES}
    return partial(_entered, state)


def _entered(state: dict[str, tuple[bool, torch.dtype]]) -> AbstractContextManager[Any]:
    stack = ExitStack()
    for device, (enabled, dtype) in state.items():
        if enabled or torch.is_autocast_enabled(device):
            stack.enter_context(torch.autocast(device, dtype, enabled=enabled, cache_enabled=False))
    return stack
