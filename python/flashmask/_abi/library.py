# SPDX-License-Identifier: Apache-2.0
"""Finds and loads the compiled library and gives each function of its C ABI (flashmask/c_api.h) a prototype."""

from __future__ import annotations

import ctypes
import os
import sys
from ctypes import POINTER, c_char_p, c_float, c_int, c_int32, c_int64, c_size_t, c_uint8, c_uint64, c_void_p
from pathlib import Path
from typing import Any

from flashmask._abi import structs as s
from flashmask._abi.struct_layouts import check_layouts

_OUT = POINTER(c_void_p)
_LENGTHS = POINTER(c_int64)
_BYTES = POINTER(c_uint8)
_MASK = c_void_p
_PLAN = c_void_p
_MAP = c_void_p
_PROBLEM = [POINTER(s.Problem), POINTER(s.PlanOptions)]

_BUILDERS: dict[str, list[Any]] = {
    "full": [c_int64, c_int64],
    "causal": [c_int64, c_int64],
    "sliding_window": [c_int64, c_int64, c_int64],
    "window": [c_int64, c_int64, c_int64, c_int64],
    "causal_document": [_LENGTHS, c_int64, c_int64],
    "causal_document_pairs": [_LENGTHS, _LENGTHS, c_int64],
    "document": [_LENGTHS, c_int64, c_int64],
    "document_pairs": [_LENGTHS, _LENGTHS, c_int64],
    "sliding_window_document": [_LENGTHS, c_int64, c_int64, c_int64],
    "shared_question": [POINTER(s.SharedQuestion), c_int64, c_int64],
    "global_sliding_window": [c_int64, c_int64, c_int64, c_int64],
    "causal_blockwise": [_LENGTHS, c_int64, c_int64],
    "prefix_lm_document": [_LENGTHS, _LENGTHS, c_int64, c_int64],
    "prefix_lm_causal": [c_int64, c_int64],
    "qk_sparse_segments": [c_int64, POINTER(s.Span), c_int64],
    "hash_sparse_sorted": [POINTER(s.HashedToken), c_int64, POINTER(s.HashedToken), c_int64],
    "random_eviction": [c_int64, _LENGTHS, c_int64],
    "tree": [_LENGTHS, _LENGTHS, c_int64, c_int64, c_int32, _LENGTHS],
    "bidirectional_spans": [c_int64, POINTER(s.Span), c_int64],
    "block_diffusion": [c_int64, c_int64],
    "dilated_window": [c_int64, c_int64, c_int64, c_int64, c_int64],
    "global_tokens": [c_int64, _LENGTHS, c_int64, c_int64, c_int64],
    "big_bird": [c_int64, POINTER(s.BigBird)],
    "neighbourhood": [POINTER(s.NeighbourhoodAxis), c_int64],
    "strided_factorised": [c_int64, c_int64],
    "fixed_factorised": [c_int64, c_int64, c_int64],
    "scfa_hash_sparse": [_LENGTHS, _LENGTHS, c_int64, c_int64, c_int64],
    "scfa_qk_sparse": [_BYTES, _BYTES, c_int64, c_int64, c_int64],
    "drop_queries": [_MASK, _LENGTHS, c_int64],
    "tree_in_order": [_LENGTHS, c_int64, c_int64, c_int64, c_int32],
    "medusa_tree": [_LENGTHS, c_int64, c_int64, c_int64, c_int32],
    "graph": [c_int64, POINTER(s.VisiblePair), c_int64, c_int32, c_int32],
    "from_dense": [POINTER(s.MaskShape), _BYTES],
    "from_strided": [POINTER(s.MaskShape), c_void_p, c_int32, _LENGTHS],
    "from_packed": [POINTER(s.MaskShape), _BYTES],
    "from_pairs": [c_int64, c_int64, POINTER(s.VisiblePair), c_int64],
    "from_csr": [c_int64, c_int64, _LENGTHS, _LENGTHS, c_int64],
    "from_row_ranges": [POINTER(c_int32), POINTER(s.MaskShape), c_int32],
    "from_startend_row_indices": [POINTER(c_int32), POINTER(s.MaskShape), c_int, c_int],
    "and": [_MASK, _MASK],
    "or": [_MASK, _MASK],
    "not": [_MASK],
    "from_block_map": [_MAP],
    "and_block_map": [_MASK, _MAP],
    "slice": [_MASK, POINTER(s.Span), c_int64, POINTER(s.Span), c_int64],
    "stack_batch": [_OUT, c_int64],
    "stack_heads": [_OUT, c_int64],
    "permute": [_MASK, _LENGTHS, _LENGTHS],
    "unpack": [c_void_p, c_int64],
}

_BLOCK_MAPS: dict[str, list[Any]] = {
    "create": [POINTER(s.MaskShape), c_int64, _BYTES],
    "butterfly": [POINTER(s.MaskShape), c_int64, c_int64],
    "strided": [POINTER(s.MaskShape), c_int64, c_int64],
    "sliding": [POINTER(s.MaskShape), c_int64, c_int64, c_int64],
    "random": [POINTER(s.MaskShape), c_int64, c_int64, c_uint64],
    "best": [POINTER(s.MaskShape), c_int64, POINTER(c_float), c_int64],
    "at_least": [POINTER(s.MaskShape), c_int64, POINTER(c_float), c_float],
}

_FUNCTIONS: dict[str, list[Any]] = {
    "struct_layouts": [POINTER(c_char_p)],
    "set_thread_count": [c_int],
    "kernel_count": [POINTER(c_int64)],
    "kernel_get": [c_int64, POINTER(s.KernelInfo)],
    "describe_kernels": [c_int, POINTER(c_char_p)],
    "instruction_sets": [POINTER(c_char_p)],
    "score_check": [c_char_p],
    "score_report": [c_char_p, c_char_p, c_int64, c_int, POINTER(c_char_p)],
    "describe_cached_kernels": [POINTER(c_char_p)],
    "clear_cached_kernels": [POINTER(c_int64)],
    "mask_to_startend_row_indices": [_MASK, POINTER(c_int32), c_int64, POINTER(s.StartendRowIndices)],
    "mask_expand": [_MASK, _BYTES, c_int64],
    "mask_get_shape": [_MASK, POINTER(s.MaskShape)],
    "mask_get_form": [_MASK, POINTER(c_int32), POINTER(c_char_p)],
    "mask_explain": [_MASK, c_int32, c_int32, POINTER(s.Explanation)],
    "mask_draw": [_MASK, POINTER(s.DrawOptions), c_char_p, c_size_t, POINTER(c_size_t)],
    "mask_reorder": [_MASK, c_int32, c_int32, _OUT],
    "mask_pack": [_MASK, c_void_p, c_int64, POINTER(c_int64)],
    "mask_to_row_ranges": [_MASK, c_int32, _OUT],
    "row_ranges_get": [c_void_p, POINTER(s.RowRangesView)],
    "mask_nodes": [_MASK, _OUT],
    "nodes_get": [c_void_p, POINTER(s.NodesView)],
    "reordering_get": [c_void_p, POINTER(s.ReorderingView)],
    "reordering_get_mask": [c_void_p, _OUT],
    "reverse_cuthill_mckee": [c_int64, _LENGTHS, _LENGTHS, c_int64, _LENGTHS],
    "partition_create": [_OUT, _LENGTHS, c_int64, _LENGTHS, c_int64, POINTER(s.PartitionOptions), _OUT],
    "partition_from_runs": [c_int64, c_int64, c_int64, _LENGTHS, c_int64, _OUT],
    "partition_get": [c_void_p, POINTER(s.PartitionView)],
    "partition_loads": [c_void_p, _MASK, _LENGTHS],
    "partition_predict": [c_void_p, _MASK, POINTER(s.PartitionOptions), _LENGTHS],
    "partition_needs": [c_void_p, _MASK, _OUT],
    "needs_get": [c_void_p, POINTER(_LENGTHS), _LENGTHS],
    "plan_create": [_MASK, *_PROBLEM, _OUT],
    "plan_bytes": [_MASK, *_PROBLEM, POINTER(c_size_t)],
    "plan_tile_sizes": [_MASK, *_PROBLEM, POINTER(c_int32), POINTER(c_int32)],
    "plan_create_at": [_MASK, *_PROBLEM, POINTER(s.PlanPlace), _OUT],
    "device_mask_plan_bytes": [POINTER(s.DeviceMask), *_PROBLEM, POINTER(c_size_t)],
    "device_mask_plan_create": [POINTER(s.DeviceMask), *_PROBLEM, POINTER(s.PlanPlace), _OUT],
    "formula_workspace": [c_void_p, POINTER(c_size_t)],
    "formula_ranges": [c_void_p, c_void_p, c_void_p],
    "stream_capture": [c_int32, c_void_p, POINTER(c_uint64)],
    "plan_kernel": [_PLAN, c_int32, POINTER(c_char_p)],
    "plan_compiled_kernel": [_PLAN, c_int32, c_int64, POINTER(s.CompiledKernel)],
    "plan_reordering": [_PLAN, POINTER(s.ReorderingView)],
    "plan_workspace": [_PLAN, c_int32, c_int, POINTER(c_size_t)],
    "plan_tangents_workspace": [_PLAN, c_int, POINTER(c_size_t)],
    "dropout_place_pack": [
        POINTER(s.Problem),
        c_int64,
        c_int64,
        c_void_p,
        c_void_p,
        c_void_p,
        c_int64,
        POINTER(c_int64),
    ],
    "dropout_expand": [POINTER(s.Problem), c_uint64, c_uint64, _BYTES, c_int64],
    "forward": [_PLAN, c_void_p, c_void_p],
    "backward": [_PLAN, c_void_p, c_void_p],
    "forward_tangents": [_PLAN, c_void_p, c_void_p],
    "merge": [c_void_p, c_void_p],
    "merge_backward": [c_void_p, c_void_p],
    "linear_plan_create": [_MASK, POINTER(s.LinearProblem), c_char_p, _OUT],
    "linear_plan_get": [c_void_p, POINTER(s.LinearPlanView)],
    "reference_linear_forward": [_MASK, POINTER(s.LinearProblem), POINTER(s.ReferenceLinearTensors)],
    "reference_linear_backward": [_MASK, POINTER(s.LinearProblem), POINTER(s.ReferenceLinearTensors)],
    "linear_forward_workspace": [c_void_p, c_void_p, POINTER(c_size_t)],
    "linear_backward_workspace": [c_void_p, c_void_p, POINTER(c_size_t)],
    "linear_forward": [c_void_p, c_void_p, c_void_p],
    "linear_backward": [c_void_p, c_void_p, c_void_p],
    "reference_forward": [_MASK, POINTER(s.Problem), POINTER(s.ReferenceInputs), c_void_p, c_void_p],
    "reference_max_scores": [_MASK, POINTER(s.Problem), POINTER(s.ReferenceInputs), c_void_p],
    "reference_forward_tangents": [_MASK, POINTER(s.Problem), POINTER(s.ReferenceInputs), *[c_void_p] * 5],
    "reference_backward": [_MASK, POINTER(s.Problem), POINTER(s.ReferenceInputs), *[c_void_p] * 5],
    "reference_backward_sinks": [_MASK, POINTER(s.Problem), POINTER(s.ReferenceInputs), *[c_void_p] * 3],
    "reference_backward_bias": [_MASK, POINTER(s.Problem), POINTER(s.ReferenceInputs), *[c_void_p] * 3],
}

_DESTROYERS = (
    "mask_destroy",
    "block_map_destroy",
    "nodes_destroy",
    "row_ranges_destroy",
    "reordering_destroy",
    "partition_destroy",
    "needs_destroy",
    "plan_destroy",
    "linear_plan_destroy",
)

_EXCEPTIONS: dict[int, type[Exception]] = {
    s.INVALID_ARGUMENT: ValueError,
    s.UNSUPPORTED: NotImplementedError,
    s.OUT_OF_MEMORY: MemoryError,
    s.IO: OSError,
}


def library_path() -> str:
    """Returns the file that FLASHMASK_LIBRARY names, else the one in the package."""
    named = os.environ.get("FLASHMASK_LIBRARY")
    if named:
        return named
    file = Path(__file__).parent.with_name("libflashmask.dylib" if sys.platform == "darwin" else "libflashmask.so")
    if not file.exists():
        raise ImportError(
            f"flashmask: there is no {file.name} in {file.parent}; install the package with `pip install .`, "
            "or set FLASHMASK_LIBRARY to a compiled library"
        )
    return str(file)


def _load() -> ctypes.CDLL:
    library = ctypes.CDLL(library_path())
    library.flashmask_version.restype = c_char_p
    library.flashmask_last_error.restype = c_char_p
    signatures = dict(_FUNCTIONS)
    signatures |= {f"mask_{name}": [*arguments, _OUT] for name, arguments in _BUILDERS.items()}
    signatures |= {f"block_map_{name}": [*arguments, _OUT] for name, arguments in _BLOCK_MAPS.items()}
    for name, arguments in signatures.items():
        function = getattr(library, f"flashmask_{name}", None)
        if function is None:
            raise ImportError(
                f"flashmask: {library_path()} has no flashmask_{name}; it is another version than this package: "
                "rebuild it"
            )
        function.argtypes = arguments
        function.restype = c_int
    for name in _DESTROYERS:
        function = getattr(library, f"flashmask_{name}")
        function.argtypes = [c_void_p]
        function.restype = None
    layouts = c_char_p()
    library.flashmask_struct_layouts(ctypes.byref(layouts))
    check_layouts((layouts.value or b"").decode(), library_path())
    return library


library = _load()


def version() -> str:
    """Version of the compiled library."""
    text: bytes = library.flashmask_version()
    return text.decode()


def check(status: int) -> None:
    """Raises the exception for a status other than OK, with the library's message."""
    if status != s.OK:
        raise _EXCEPTIONS.get(status, RuntimeError)(library.flashmask_last_error().decode())


def call(name: str, *arguments: Any) -> None:
    """Calls flashmask_<name> and raises when it fails."""
    check(getattr(library, f"flashmask_{name}")(*arguments))


def create(name: str, *arguments: Any) -> int:
    """Calls flashmask_<name>, whose last argument receives a handle, and returns the handle."""
    handle = c_void_p()
    check(getattr(library, f"flashmask_{name}")(*arguments, ctypes.byref(handle)))
    assert handle.value is not None
    return handle.value
