# SPDX-License-Identifier: Apache-2.0
"""Waits, when a program ends, for the threads of Gloo to let go of the tensors that they were lent."""

from __future__ import annotations

import atexit
import time
import weakref

from torch import Tensor

_MOST_SECONDS = 0.5  # somebody else may hold a tensor for as long as the program runs
_lent: dict[int, weakref.ref[Tensor]] = {}


def lend(*tensors: Tensor) -> None:
    """Notes tensors that a collective was given; the interpreter ends when they are gone, or half a second later.

    A collective returns before the thread that ran it lets go of its tensors. Where Python no longer holds one, the
    thread frees the Python object and asks for Python's lock. While the interpreter ends, Python ends threads that wait
    for the lock, which C++ reports as "terminate called without an active exception".
    """
    for tensor in tensors:
        if tensor.device.type == "cpu":
            # Forgotten when the Python object goes, which C++ keeps as long as it holds the tensor.
            reference = weakref.ref(tensor, _forget)
            _lent[id(reference)] = reference


def _forget(reference: weakref.ref[Tensor]) -> None:
    _lent.pop(id(reference), None)


@atexit.register
def _await_threads() -> None:
    end = time.monotonic() + _MOST_SECONDS
    while _lent and time.monotonic() < end:
        time.sleep(0.001)
