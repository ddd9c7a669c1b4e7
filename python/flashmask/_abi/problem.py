# SPDX-License-Identifier: Apache-2.0
"""Problem: shapes, dtype, scale, change of scores and dropout of one attention call."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from flashmask._abi import structs as s
from flashmask._arguments import described
from flashmask.scores import kind_of

if TYPE_CHECKING:
    from flashmask._mask import MaskShape

DTYPES = ("float32", "bfloat16", "float16", "float64")
"""Indexed by dtype code; the first three are the C ABI's, the last is computed by the reference."""
F64 = 3
MAX_HEAD_DIM = 512


class Problem(NamedTuple):
    """Everything about an attention call but the data. Lengths are in tokens."""

    batch: int
    query_length: int
    key_length: int
    query_heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    dtype: str
    scale: float | None = None
    """None: 1 / sqrt(head_dim)."""
    dropout: float = 0.0
    device: str = "cpu"
    """"cpu", or a GPU such as "cuda:0"."""
    change: str = ""
    """The steps that are done to scores, such as "softcap(50.0) | alibi": ScoreChange.text."""

    @property
    def code(self) -> int:
        """Position of the dtype in DTYPES."""
        return DTYPES.index(self.dtype)

    @property
    def bias_kind(self) -> str:
        """What is added to the scores: one of scores.OPERANDS, or nothing."""
        return kind_of(self.change)

    @property
    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Shapes of q, k and v, each (batch, sequence, heads, head dim)."""
        return (
            (self.batch, self.query_length, self.query_heads, self.head_dim),
            (self.batch, self.key_length, self.kv_heads, self.head_dim),
            (self.batch, self.key_length, self.kv_heads, self.value_dim),
        )

    def struct(self) -> s.Problem:
        """Returns the struct of the C ABI, with float32 for float64: the reference ignores the dtype."""
        dtype = s.F32 if self.code == F64 else self.code
        kind, _, index = self.device.partition(":")
        device = (s.CUDA if kind == "cuda" else s.CPU, int(index or 0))
        change = self.change.encode() or None
        return s.Problem(*self[:7], dtype, *device, 0.0, self.dropout, 0.0, 0, self.scale or 0.0, change)


def make_problem(
    shapes: Sequence[Sequence[int]],
    dtype: str,
    scale: float | None,
    dropout: float,
    names: tuple[str, str, str] = ("q", "k", "v"),
) -> Problem:
    """Returns the problem of q, k and v, each (batch, sequence, heads, head dim); raises where they do not fit."""
    for name, shape in zip(names, shapes, strict=True):
        if len(shape) != 4:
            raise ValueError(f"{name} has shape {list(shape)}; expected (batch, sequence, heads, head dim)")
    q, k, v = shapes
    of_q, of_k, of_v = names
    for name, shape in ((of_k, k), (of_v, v)):
        if shape[0] != q[0]:
            raise ValueError(f"{name} has a batch of {shape[0]}; expected {q[0]}, that of {of_q}")
    if v[1] != k[1]:
        raise ValueError(f"{of_v} has {v[1]} tokens; expected {k[1]}, as many as {of_k}")
    if v[2] != k[2]:
        raise ValueError(f"{of_v} has {v[2]} heads; expected {k[2]}, as many as {of_k}")
    if k[3] != q[3]:
        raise ValueError(f"{of_k} has a head dim of {k[3]}; expected {q[3]}, that of {of_q}")
    if (q[2] > 0) != (k[2] > 0) or (k[2] and q[2] % k[2]):
        raise ValueError(f"{of_q} has {q[2]} heads; expected a multiple of those of {of_k}, {k[2]}")
    for name, dim in ((of_q, q[3]), (of_v, v[3])):
        if not 1 <= dim <= MAX_HEAD_DIM:
            raise ValueError(f"{name} has a head dim of {dim}; expected 1 to {MAX_HEAD_DIM}")
    check_dropout("dropout", dropout)
    sizes = q[0], q[1], k[1], q[2], k[2], q[3], v[3]
    return Problem(*sizes, dtype, scale, dropout)


def check_scale(name: str, scale: object) -> float:
    """Returns the scale as the C ABI takes it, where 0 means 1 / sqrt(head dim)."""
    if scale is None:
        return 0.0
    if isinstance(scale, bool) or not isinstance(scale, (int, float)):
        raise TypeError(f"{name} is {described(scale)}; expected a number, or None for 1 / sqrt(head dim)")
    if scale == 0 or not math.isfinite(scale):
        raise ValueError(f"{name} is {scale}; expected a finite number other than 0, or None for 1 / sqrt(head dim)")
    return float(scale)


def check_dropout(name: str, dropout: object) -> float:
    """Returns a dropout probability, which must be below 1 when rounded to 1/65536."""
    if isinstance(dropout, bool) or not isinstance(dropout, (int, float)):
        raise TypeError(f"{name} is {described(dropout)}; expected a probability in [0, 1)")
    if not 0 <= dropout < 1 - 2**-17:
        raise ValueError(f"{name} is {dropout}; expected a probability from 0 to 0.99999: it is rounded to 1/65536")
    return float(dropout)


def check_mask(name: str, mask: MaskShape, problem: Problem) -> None:
    """Refuses a mask that does not fit a problem."""
    if mask.rows != problem.query_length:
        raise ValueError(f"{name} has {mask.rows} rows; expected {problem.query_length}, the tokens of q")
    if mask.columns != problem.key_length:
        raise ValueError(f"{name} has {mask.columns} columns; expected {problem.key_length}, the tokens of k")
    if mask.batch not in (1, problem.batch):
        raise ValueError(f"{name} has a batch of {mask.batch}; expected 1 or {problem.batch}, that of q")
    if mask.heads not in (1, problem.kv_heads, problem.query_heads):
        raise ValueError(
            f"{name} has {mask.heads} heads; expected 1, {problem.kv_heads} (the heads of k) or "
            f"{problem.query_heads} (the heads of q)"
        )
