# SPDX-License-Identifier: Apache-2.0
"""Waits, when a program ends, for the threads in which PyTorch runs the backward of GPUs."""

from __future__ import annotations

import atexit
from contextlib import suppress

import torch
from torch.autograd import Variable

_devices: set[torch.device] = set()


def await_at_exit(device: torch.device) -> None:
    """Makes the interpreter wait at its end until the thread of `device` has released the graphs it ran.

    backward() returns before that. The last objects that the thread frees may be Python's: the copy of the context that
    PyTorch hands to it, and gradients that torch.autograd.grad returned. It then asks for Python's lock. While the
    interpreter ends, Python ends threads that wait for the lock, which C++ reports as "terminate called without an
    active exception".
    """
    if device not in _devices:
        if not _devices:
            atexit.register(_await_threads)
        _devices.add(device)


def _await_threads() -> None:
    for device in _devices:
        # A thread takes up a graph only after it has released the one before. This graph leaves it no Python objects to
        # free: no gradients to return, and no copy of the context, which Tensor.backward() would hand over.
        with suppress(RuntimeError):  # from a GPU that no longer responds
            leaf = torch.empty(0, device=device, requires_grad=True)
            Variable._execution_engine.run_backward(
                (leaf,),
                (torch.empty(0, device=device),),
                False,
                False,
                (),
                allow_unreachable=True,
                accumulate_grad=True,
            )
