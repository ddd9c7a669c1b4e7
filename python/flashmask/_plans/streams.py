# SPDX-License-Identifier: Apache-2.0
"""Streams of a GPU, and captures of CUDA graphs on them. Imported only where torch is."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import torch

from flashmask._abi.library import call


def current_stream(device: int) -> int:
    """The cudaStream_t that torch works on there."""
    stream: int = torch._C._cuda_getCurrentRawStream(device)
    return stream


def capture_of(device: int, stream: int) -> int:
    """The capture of a CUDA graph that the current stream of a device is in; 0: none.

    What is made in a capture holds nothing until the graph runs, and is made again whenever it runs, from what its
    inputs hold then: it must not be used outside, nor what was made before it be used for inputs that may change.
    """
    if torch._C._cuda_getDevice() == device and not torch._C._cuda_isCurrentStreamCapturing():
        return 0
    capture = ctypes.c_uint64()
    call("stream_capture", device, stream, ctypes.byref(capture))
    return capture.value


def in_graph_tree(device_index: int) -> bool:
    """Whether torch.compile's mode="reduce-overhead" warms up or captures a graph on the current stream.

    Memory that is taken there and kept, without being a result of the graph, is an error to PyTorch.
    """
    trees: Any = sys.modules.get("torch._inductor.cudagraph_trees")
    if trees is None:
        return False
    try:
        manager = trees.get_manager(device_index, create_if_none_exists=False)
    except AssertionError:  # in threads that it does not know, where it has no graphs either
        return False
    return manager is not None and current_stream(device_index) == manager.stream.cuda_stream
