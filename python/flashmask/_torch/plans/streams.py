# SPDX-License-Identifier: Apache-2.0
"""Streams of a GPU, and captures of CUDA graphs on them."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import torch

from flashmask._abi.library import call


def current_stream(device: int) -> int:
    """Returns the cudaStream_t that torch currently uses on a device."""
    stream: int = torch._C._cuda_getCurrentRawStream(device)
    return stream


def capture_of(device: int, stream: int) -> int:
    """Returns the CUDA graph capture that the current stream of a device is in; 0: none.

    Tensors made in a capture hold nothing until the graph runs, and are computed again in every run from what its
    inputs hold then. So they must not be used outside of the graph, nor may the graph use what was made before from
    inputs that may change.
    """
    if torch._C._cuda_getDevice() == device and not torch._C._cuda_isCurrentStreamCapturing():
        return 0
    capture = ctypes.c_uint64()
    call("stream_capture", device, stream, ctypes.byref(capture))
    return capture.value


def in_graph_tree(device_index: int) -> bool:
    """Whether torch.compile's mode="reduce-overhead" warms up or captures a graph on the current stream.

    PyTorch raises an error for memory that is allocated there and kept without being a result of the graph.
    """
    trees: Any = sys.modules.get("torch._inductor.cudagraph_trees")
    if trees is None:
        return False
    try:
        manager = trees.get_manager(device_index, create_if_none_exists=False)
    except AssertionError:  # in threads unknown to the trees, which have no graphs there either
        return False
    return manager is not None and current_stream(device_index) == manager.stream.cuda_stream
