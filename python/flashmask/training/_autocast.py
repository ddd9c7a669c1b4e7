# SPDX-License-Identifier: Apache-2.0
"""Records the state of autocast, to enter it again later."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Any

import torch

_DEVICES = ("cuda", "cpu")


def autocast_now() -> Callable[[], AbstractContextManager[Any]]:
    """Returns what enters this state again; cast weights are not cached: those cast under no_grad have no gradient."""
    state = {name: (torch.is_autocast_enabled(name), torch.get_autocast_dtype(name)) for name in _DEVICES}
    return partial(_entered, state)


def _entered(state: dict[str, tuple[bool, torch.dtype]]) -> AbstractContextManager[Any]:
    stack = ExitStack()
    for device, (enabled, dtype) in state.items():
        if enabled or torch.is_autocast_enabled(device):
            stack.enter_context(torch.autocast(device, dtype, enabled=enabled, cache_enabled=False))
    return stack
