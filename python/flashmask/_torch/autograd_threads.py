# SPDX-License-Identifier: Apache-2.0
"""The threads in which PyTorch runs the backward of GPUs, where a program ends."""

from __future__ import annotations

import atexit
from contextlib import suppress

import torch
from torch.autograd import Variable

_devices: set[torch.device] = set()


def await_at_exit(device: torch.device) -> None:
    """Has the interpreter wait, when it ends, until the thread of `device` has let go of the graphs it ran.

    backward() returns before that thread has. What it frees last may be Python's: the copy of the context that PyTorch
    hands to it, and gradients that torch.autograd.grad gave. It asks for Python's lock then, and Python ends threads
    that wait for it while the interpreter ends, which C++ calls a termination: "terminate called without an active
    exception".
    """
    if device not in _devices:
        if not _devices:
            atexit.register(_await_threads)
        _devices.add(device)


def _await_threads() -> None:
    for device in _devices:
        # A thread takes up a graph only once it has let go of the one before. This one leaves it nothing of Python's to
        # free: no gradients to give, and no copy of the context, which Tensor.backward() would hand over.
        with suppress(RuntimeError):  # of a GPU that answers no more
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
