# SPDX-License-Identifier: Apache-2.0
"""The structs and enumerations of the C ABI (flashmask/c_api.h), field for field.

A test checks them against the header; importing the package checks them against the library.
"""

from __future__ import annotations

from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    c_char_p,
    c_double,
    c_float,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_uint64,
    c_void_p,
    sizeof,
)
from typing import Any

OK, INVALID_ARGUMENT, UNSUPPORTED, OUT_OF_MEMORY, IO, INTERNAL = range(6)
F32, BF16, F16 = range(3)
CPU, CUDA = range(2)
FORWARD, BACKWARD = range(2)
INTERVALS, BITS = range(2)
FORM_BEST, FORM_INTERVALS, FORM_BITS = range(3)
VISIT_ACTIVE, VISIT_ALL = range(2)
BALANCED, CONTIGUOUS, ZIGZAG = range(3)
DEVICE_ROW_INDICES, DEVICE_DENSE, DEVICE_PACKED = range(3)
NUMBER_BOOLEAN, NUMBER_I32, NUMBER_I64, NUMBER_F32, NUMBER_F64 = range(5)
ALL_OF, ANY_OF, LESS, LESS_EQUAL, GREATER, GREATER_EQUAL, EQUAL, UNEQUAL, ROW_FACT, COLUMN_FACT = range(10)
SEARCH_TOO_LONG, NOT_A_NUMBER = 1 << 29, 1 << 30
DENSE_BOOLEAN, DENSE_I8, DENSE_I16, DENSE_I32, DENSE_I64 = range(5)


class Sized(Structure):
    """A struct that begins with its size, which the constructor fills in."""

    _fields_ = [("struct_size", c_uint64)]

    def __init__(self, *values: Any, **named: Any) -> None:
        super().__init__(sizeof(self), *values, **named)


class MaskShape(Structure):
    _fields_ = [("batch", c_int64), ("heads", c_int64), ("rows", c_int64), ("columns", c_int64)]


class SharedQuestion(Sized):
    _fields_ = [("question", c_int64), ("answers", POINTER(c_int64)), ("answer_count", c_int64)]


class Span(Structure):
    _fields_ = [("begin", c_int64), ("end", c_int64)]


class HashedToken(Structure):
    _fields_ = [("bucket", c_int64), ("position", c_int64)]


class BigBird(Sized):
    _fields_ = [
        ("block", c_int64),
        ("window_blocks", c_int64),
        ("global_blocks", c_int64),
        ("random_blocks", c_int64),
        ("heads", c_int64),
        ("seed", c_uint64),
    ]


class NeighbourhoodAxis(Sized):
    _fields_ = [("length", c_int64), ("kernel", c_int64), ("dilation", c_int64)]


class VisiblePair(Structure):
    _fields_ = [("row", c_int64), ("column", c_int64)]


class StartendRowIndices(Sized):
    _fields_ = [("vectors", c_int32), ("causal", c_int32), ("size", c_int64)]


class Explanation(Sized):
    _fields_ = [
        ("form", c_int32),
        ("tile_rows", c_int32),
        ("tile_columns", c_int32),
        ("first_empty_row_count", c_int32),
        ("first_empty_rows", c_int64 * 8),
        ("empty_rows", c_int64),
        ("visible_pairs", c_int64),
        ("skipped_tiles", c_int64),
        ("partial_tiles", c_int64),
        ("full_tiles", c_int64),
        ("density", c_double),
        ("waste", c_double),
        ("mask_bytes", c_uint64),
        ("schedule_bytes", c_uint64),
        ("dense_bytes", c_uint64),
    ]


FEATURES = (
    *("dropout", "deterministic", "block_map", "sinks", "float32_key_gradients", "softcap", "alibi"),
    *("invariant", "bias", "distance_bias", "any_change", "max_scores", "functions"),
)
"""Bits of KernelInfo.features."""


class KernelInfo(Sized):
    _fields_ = [
        ("name", c_char_p),
        ("arch", c_char_p),
        ("direction", c_int32),
        ("dtype", c_int32),
        ("device_type", c_int32),
        ("form", c_int32),
        ("tile_rows", c_int32),
        ("tile_columns", c_int32),
        ("why_not", c_char_p),
        ("head_dim", c_int32),
        ("value_dim", c_int32),
        ("features", c_uint64),
        ("compute_capability_major", c_int32),
        ("compute_capability_minor", c_int32),
    ]


class DrawOptions(Sized):
    _fields_ = [("batch", c_int64), ("head", c_int64), ("width", c_int64), ("colour", c_int64)]


class RowRangesView(Sized):
    _fields_ = [("ends", c_int64), ("size", c_int64), ("values", POINTER(c_int32))]


class NodesView(Sized):
    _fields_ = [
        ("count", c_int64),
        ("tokens", c_int64),
        ("begins", POINTER(c_int64)),
        ("ends", POINTER(c_int64)),
        ("parents", POINTER(c_int64)),
        ("levels", POINTER(c_int64)),
        ("predecessors", POINTER(c_int64)),
    ]


class ReorderingView(Sized):
    _fields_ = [
        ("gained", c_int64),
        ("tile_rows", c_int32),
        ("tile_columns", c_int32),
        ("tiles_before", c_int64),
        ("tiles_after", c_int64),
        ("rows", POINTER(c_int64)),
        ("columns", POINTER(c_int64)),
        ("why", c_char_p),
    ]


class PartitionOptions(Sized):
    _fields_ = [
        ("division", c_int32),
        ("aligned", c_int32),
        ("tile", c_int64),
        ("query_heads", c_int64),
        ("kv_heads", c_int64),
        ("head_dim", c_int64),
        ("element_bytes", c_int64),
        ("flops_per_ns", c_int64),
        ("bytes_per_ns", c_int64),
        ("exchange_ns", c_int64),
        ("node_bytes_per_ns", c_int64),
    ]


class PartitionView(Sized):
    _fields_ = [
        ("tokens", c_int64),
        ("ranks", c_int64),
        ("tile", c_int64),
        ("aligned", c_int64),
        ("run_count", c_int64),
        ("runs", POINTER(c_int64)),
        ("why", c_char_p),
    ]


class Tensor(Structure):
    _fields_ = [
        ("data", c_void_p),
        ("dtype", c_int32),
        ("device_type", c_int32),
        ("device_index", c_int32),
        ("rank", c_int32),
        ("shape", c_int64 * 4),
        ("strides", c_int64 * 4),
    ]


class Problem(Sized):
    _fields_ = [
        ("batch", c_int64),
        ("query_length", c_int64),
        ("key_length", c_int64),
        ("query_heads", c_int64),
        ("kv_heads", c_int64),
        ("head_dim", c_int64),
        ("value_dim", c_int64),
        ("dtype", c_int32),
        ("device_type", c_int32),
        ("device_index", c_int32),
        ("scale", c_float),
        ("dropout", c_double),
        ("softcap", c_double),
        ("bias", c_int64),
        ("double_scale", c_double),
        ("change", c_char_p),
    ]


ExecutorWorkers = CFUNCTYPE(c_int, c_void_p)
ExecutorBody = CFUNCTYPE(None, c_void_p, c_int)
ExecutorRun = CFUNCTYPE(None, c_void_p, c_int, ExecutorBody, c_void_p)


class Executor(Sized):
    _fields_ = [("context", c_void_p), ("workers", ExecutorWorkers), ("run", ExecutorRun)]


class PlanOptions(Sized):
    _fields_ = [
        ("kernel", c_char_p),
        ("executor", POINTER(Executor)),
        ("visit", c_int32),
        ("form", c_int32),
        ("reorder", c_int32),
        ("deterministic", c_int32),
        ("forward_tiles", c_int32),
        ("backward_tiles", c_int32),
        ("skip_query_gradient", c_int32),
        ("skip_key_gradients", c_int32),
        ("invariant", c_int64),
        ("compile_when_called", c_int64),
        ("compile_backward_later", c_int64),
    ]


class CompiledKernel(Sized):
    _fields_ = [
        ("name", c_char_p),
        ("compiler", c_char_p),
        ("origin", c_int64),
        ("seconds", c_double),
        ("spilled", c_int64),
    ]


class PlanPlace(Sized):
    _fields_ = [("stream", c_void_p), ("memory", c_void_p), ("bytes", c_size_t), ("made", c_int64)]


class DeviceMask(Sized):
    _fields_ = [
        ("kind", c_int32),
        ("vectors", c_int32),
        ("causal", c_int64),
        ("shape", MaskShape),
        ("data", c_void_p),
        ("strides", c_int64 * 4),
        ("keep_blocks", c_void_p),
        ("keep_batch", c_int64),
        ("keep_heads", c_int64),
        ("most_documents", c_int64),
    ]


class TokenNumbers(Structure):
    _fields_ = [("data", c_void_p), ("strides", c_int64 * 3), ("type", c_int64)]


class Condition(Structure):
    _fields_ = [("kind", c_int32), ("parts", c_int32), ("rows", TokenNumbers), ("columns", TokenNumbers)]


class Formula(Sized):
    _fields_ = [
        ("conditions", c_char_p),  # packed Conditions
        ("count", c_int64),
        ("shape", MaskShape),
        ("visible", c_int32),
        ("slots", c_int32),
        ("device_type", c_int32),
        ("device_index", c_int32),
        ("stream", c_void_p),
        ("workspace", c_void_p),
        ("workspace_bytes", c_size_t),
    ]


class Execution(Sized):
    _fields_ = [
        ("executor", POINTER(Executor)),
        ("workspace", c_void_p),
        ("workspace_bytes", c_size_t),
        ("stream", c_void_p),
        ("dropout_seed", c_uint64),
        ("dropout_offset", c_uint64),
        ("dropout_on_device", c_void_p),
        ("dropout_place", c_void_p),
        ("dropout_place_size", c_int64),
    ]


class ReferenceInputs(Sized):
    _fields_ = [
        ("q", c_void_p),
        ("k", c_void_p),
        ("v", c_void_p),
        ("dropout_seed", c_uint64),
        ("dropout_offset", c_uint64),
        ("sinks", c_void_p),
        ("sink_count", c_int64),
        ("dropout_place", c_void_p),
        ("dropout_place_size", c_int64),
        ("alibi_slopes", c_void_p),
        ("alibi_slope_count", c_int64),
        ("query_positions", c_void_p),
        ("query_position_count", c_int64),
        ("key_positions", c_void_p),
        ("key_position_count", c_int64),
        ("bias", c_void_p),
        ("bias_shape", c_int64 * 4),
        ("bias_origin", c_int64),
        ("operands", c_void_p * 4),
        ("operand_shapes", c_int64 * 16),
    ]


_ALIBI = ("alibi_slopes", "query_positions", "key_positions")


class ForwardTensors(Sized):
    _fields_ = [
        *((name, Tensor) for name in ("q", "k", "v", "o", "lse", "sinks", *_ALIBI, "bias")),
        ("bias_origin", c_int64),
        ("max_scores", Tensor),
        ("operands", Tensor * 4),
    ]


class BackwardTensors(Sized):
    _fields_ = [
        *((name, Tensor) for name in ("q", "k", "v", "o", "lse", "grad_o", "grad_lse", "grad_q", "grad_k", "grad_v")),
        *((name, Tensor) for name in ("sinks", "grad_sinks", *_ALIBI, "bias")),
        ("bias_origin", c_int64),
        ("grad_bias", Tensor),
        ("operands", Tensor * 4),
    ]


class TangentTensors(Sized):
    _fields_ = [
        *((name, Tensor) for name in ("q", "k", "v", "o", "lse", "tangent_q", "tangent_k", "tangent_v")),
        *((name, Tensor) for name in ("tangent_o", "tangent_lse", "sinks", *_ALIBI, "bias")),
        ("bias_origin", c_int64),
        ("operands", Tensor * 4),
    ]


class MergeTensors(Sized):
    _fields_ = [
        *((name, Tensor) for name in ("o1", "lse1", "o2", "lse2", "o", "lse")),
        ("more", POINTER(Tensor)),
        ("more_count", c_int64),
    ]


class MergeGradients(Sized):
    _fields_ = [
        *((name, Tensor) for name in ("o1", "lse1", "o2", "lse2", "o", "lse", "grad_o", "grad_lse")),
        *((name, Tensor) for name in ("grad_o1", "grad_lse1", "grad_o2", "grad_lse2")),
        ("more", POINTER(Tensor)),
        ("more_count", c_int64),
    ]


class LinearProblem(Sized):
    _fields_ = [
        *((name, c_int64) for name in ("batch", "length", "heads", "key_heads", "key_dim", "value_dim")),
        ("dtype", c_int32),
        ("device_type", c_int32),
        ("device_index", c_int32),
        ("scale", c_float),
        ("normalize", c_int64),
    ]


class LinearPlanView(Sized):
    _fields_ = [("nodes", c_int64), ("roots", c_int64), ("kernel", c_char_p)]


class ReferenceLinearTensors(Sized):
    _fields_ = [
        (name, c_void_p)
        for name in (
            *("q", "k", "v", "log_forget", "log_input", "initial_state", "initial_normalizer", "initial_log_scale"),
            *("o", "final_state", "final_normalizer", "final_log_scale"),
            *("grad_o", "grad_final_state", "grad_final_normalizer"),
            *("grad_q", "grad_k", "grad_v", "grad_log_forget", "grad_log_input"),
            *("grad_initial_state", "grad_initial_normalizer"),
        )
    ]


_LINEAR_INPUTS = ("q", "k", "v", "log_forget", "log_input", "initial_state", "initial_normalizer", "initial_log_scale")


class LinearForwardTensors(Sized):
    _fields_ = [(name, Tensor) for name in (*_LINEAR_INPUTS, "o", "final_state", "final_normalizer", "final_log_scale")]


class LinearBackwardTensors(Sized):
    _fields_ = [
        (name, Tensor)
        for name in (
            *_LINEAR_INPUTS,
            *("o", "grad_o", "grad_final_state", "grad_final_normalizer"),
            *("grad_q", "grad_k", "grad_v", "grad_log_forget", "grad_log_input"),
            *("grad_initial_state", "grad_initial_normalizer"),
        )
    ]
