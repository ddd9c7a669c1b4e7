# SPDX-License-Identifier: Apache-2.0
"""Masks as operands: whatever attention() takes becomes row indices or bits."""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flashmask import _rows
from flashmask._abi.problem import Problem, check_mask
from flashmask._arguments import described
from flashmask._mask import Mask, MaskShape
from flashmask._plans.plan import check_booleans
from flashmask.jax._rows import RowIndices

MOST_BYTES = 256 << 20
"""Most memory that a mask of bits takes: one bit per score, so 2^31 scores."""


class Operand(NamedTuple):
    """A mask as a call takes it: row indices int32 [batch, heads, columns, n], bits uint8, or None: all is seen."""

    array: Any = None
    causal: bool = False
    name: tuple[int, int] = (0, 0)
    most_documents: int = 0
    """As RowIndices says; 0: not known."""


def mask_operand(mask: Any, problem: Problem) -> Operand:
    """Returns a mask as an operand; refuses one that does not fit the problem."""
    if mask is None:
        return Operand(name=_name(None, False))
    if isinstance(mask, RowIndices):
        batch, heads, columns, _ = mask.startend_row_indices.shape
        rows = columns if mask.rows is None else mask.rows
        check_mask("mask", MaskShape(batch, heads, rows, columns), problem)
        return Operand(mask.startend_row_indices, mask.causal, most_documents=mask.most_documents or 0)
    if isinstance(mask, _rows.RowIndices):
        raise TypeError(
            "mask is a flashmask.RowIndices, which holds a torch tensor; expected flashmask.jax.RowIndices: "
            "flashmask.jax.from_cu_seqlens, from_segment_ids and from_position_ids make them"
        )
    if isinstance(mask, jax.Array):
        return _traced_booleans(mask, problem)
    if not isinstance(mask, Mask):
        check_booleans(mask)
        from flashmask.masks._imports import from_booleans

        mask = from_booleans("mask", mask)
    check_mask("mask", mask.shape, problem)
    return constant(mask)


def constant(mask: Mask) -> Operand:
    """Returns the shortest row indices of a mask, or its bits; made once for each mask."""
    kept: Operand | None = mask.__dict__.get("_jax_operand")
    if kept is None:
        kept = _made(mask)
        mask.__dict__["_jax_operand"] = kept
    return kept


def _made(mask: Mask) -> Operand:
    if mask.form == "intervals":
        try:
            values, causal = mask.to_startend_row_indices()
            return Operand(values, causal, _name(values, causal))
        except NotImplementedError:  # a block map was ANDed onto it
            pass
    _check_bits(mask.shape)
    bits = np.packbits(mask.to_dense(), axis=-1, bitorder="little")
    return Operand(bits, False, _name(bits, False))


def _traced_booleans(mask: jax.Array, problem: Problem) -> Operand:
    if mask.dtype != jnp.bool_ or not 2 <= mask.ndim <= 4:
        raise TypeError(
            f"mask is {described(mask)}; expected booleans, True = visible, [rows, columns], optionally with heads, or "
            "batch and heads, in front"
        )
    whole = mask[(None,) * (4 - mask.ndim)]
    shape = MaskShape(*whole.shape)
    check_mask("mask", shape, problem)
    _check_bits(shape)
    return Operand(jnp.packbits(whole, axis=-1, bitorder="little"))


def _check_bits(shape: MaskShape) -> None:
    needed = shape.batch * shape.heads * shape.rows * -(-shape.columns // 8)
    if needed > MOST_BYTES:
        raise NotImplementedError(
            f"mask has shape {tuple(shape)} and more than two ranges of masked rows per key column, or is an array of "
            f"booleans: as bits it takes {needed:,} bytes, and flashmask.jax takes at most {MOST_BYTES:,}; use row "
            "indices, or fewer tokens"
        )


def _name(values: np.ndarray[Any, Any] | None, causal: bool) -> tuple[int, int]:
    """Names the contents of a mask by a hash, as two 64-bit integers; the same in every process."""
    digest = hashlib.blake2b(digest_size=16)
    if values is not None:
        digest.update(repr((values.dtype.str, values.shape, causal)).encode())
        digest.update(np.ascontiguousarray(values).data)
    words = np.frombuffer(digest.digest(), np.int64)
    return int(words[0]), int(words[1])
