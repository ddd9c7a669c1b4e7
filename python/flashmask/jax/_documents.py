# SPDX-License-Identifier: Apache-2.0
"""Masks of packed documents from arrays of JAX, whose values may be traced."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flashmask._arguments import check_document_options, described, length
from flashmask.jax._rows import RowIndices


class _Documents(NamedTuple):
    """Where each token's document begins and ends, int32, and which tokens are padding; [batch, tokens] each."""

    begin: jax.Array
    end: jax.Array
    padding: jax.Array


def from_cu_seqlens(
    cu_seqlens: Any, tokens: int, *, causal: bool = True, window: int | None = None, prefix: Any = None
) -> RowIndices:
    """Packed documents by their ends: document k holds the tokens cu_seqlens[k] to cu_seqlens[k + 1] of `tokens`.

    `cu_seqlens` is int [documents + 1] and ascends from 0; equal neighbours are an empty document. Tokens past the last
    end are padding: they see nothing and no row sees them. Values that are not traced and lie on a CPU raise ValueError
    where they do not begin at 0, fall, or end past the last token; others are not looked at.

    A row sees the keys of its own document that are

    * not after it, if `causal`, or in the document's prefix: its first `prefix` tokens, an int or an array [documents]
      (prefix-LM). `prefix` needs `causal`;
    * and fewer than `window` tokens before it, or on either side of it if not `causal`: `window` keys with itself. A
      prefix does not reach further back than the window.

    The result is [1, 1, tokens, n], n = 1 for causal documents without a prefix, else 2. Inside jit, where the number
    of ends is a part of the program, it says `most_documents`; outside it says None, so that jit compiles one program
    for any number of documents.
    """
    ends = _integers("cu_seqlens", cu_seqlens, (1,))
    if ends.shape[0] < 1:
        raise ValueError("cu_seqlens is empty; expected [documents + 1] values, the first of them 0")
    length("tokens", tokens)
    check_document_options(causal, window, prefix, _is_array)
    _check_ends(cu_seqlens, tokens)
    documents = ends.shape[0] - 1
    ends = ends.astype(jnp.int32)  # narrower ones do not hold every token, and unsigned ones no distances
    document = jnp.searchsorted(ends[1:], jnp.arange(tokens, dtype=ends.dtype), side="right")
    bounds = jnp.concatenate([ends, ends[-1:]])  # the document behind the last is padding
    packing = _Documents(bounds[document][None], bounds[document + 1][None], (document == documents)[None])
    if _is_array(prefix):
        prefix = jnp.append(_prefixes(prefix, ((documents,),)), 0)[document][None]
    indices = _row_indices(packing, causal, window, prefix)
    if not isinstance(indices.startend_row_indices, jax.core.Tracer):
        return indices
    return replace(indices, most_documents=documents + 1)  # and the padding behind them


def from_segment_ids(
    segment_ids: Any, *, causal: bool = True, window: int | None = None, prefix: Any = None
) -> RowIndices:
    """Packed documents by the segment of each token, integers [tokens] or [batch, tokens].

    A document is a run of equal numbers: a number that comes back later begins another document. A negative number is
    padding; where 0 is, pass `segment_ids - 1`. `causal`, `window` and `prefix` as in from_cu_seqlens(); an array of
    prefixes is [documents] or [batch, documents], in the order of the documents in the sequence.
    """
    ids = _rows_of(_integers("segment_ids", segment_ids, (1, 2)))
    check_document_options(causal, window, prefix, _is_array)
    changes = ids[:, 1:] != ids[:, :-1]
    return _runs(changes, ids < 0, causal, window, prefix)


def from_position_ids(
    position_ids: Any, *, causal: bool = True, window: int | None = None, prefix: Any = None
) -> RowIndices:
    """Packed documents by each token's position, integers [tokens] or [batch, tokens].

    A position that is not its predecessor's + 1 begins a document. `causal`, `window` and `prefix` as in
    from_segment_ids(). There is no padding: what follows the last restart is a document.
    """
    positions = _rows_of(_integers("position_ids", position_ids, (1, 2))).astype(jnp.int32)
    check_document_options(causal, window, prefix, _is_array)
    changes = positions[:, 1:] != positions[:, :-1] + 1
    return _runs(changes, jnp.zeros(positions.shape, bool), causal, window, prefix)


def _runs(changes: Any, padding: Any, causal: bool, window: int | None, prefix: Any) -> RowIndices:
    """Makes row indices for documents that begin at token 0 and behind each of `changes` [batch, tokens - 1]."""
    batch, tokens = padding.shape
    begins = jnp.concatenate([jnp.ones((batch, min(tokens, 1)), bool), changes], axis=1)
    lasts = jnp.roll(begins, -1, axis=1)  # the first token begins a document, so the last one ends one
    position = jnp.arange(tokens, dtype=jnp.int32)
    begin = jax.lax.cummax(jnp.where(begins, position, 0), axis=1)
    end = jax.lax.cummin(jnp.where(lasts, position + 1, tokens), axis=1, reverse=True)
    packing = _Documents(begin, end, padding)
    if not _is_array(prefix):
        return _row_indices(packing, causal, window, prefix)
    lengths = jnp.broadcast_to(_prefixes(prefix, ((None,), (batch, None))), (batch, prefix.shape[-1]))
    document = jnp.where(padding, 0, jnp.cumsum(begins & ~padding, axis=1) - 1)
    return _row_indices(packing, causal, window, jnp.take_along_axis(lengths, document, axis=1, mode="clip"))


def _row_indices(documents: _Documents, causal: bool, window: int | None, prefix: Any) -> RowIndices:
    """Makes row indices; `prefix` is one length, or [batch, tokens]: the prefix length of each token's document."""
    begin, end, padding = documents
    tokens = begin.shape[1]
    key = jnp.arange(tokens, dtype=begin.dtype)
    # A window or prefix may be larger than int32 holds, for no limit: distances are compared with it, which are small.
    reach = tokens if window is None else min(window, tokens)
    lower = jnp.where(padding, 0, key + jnp.minimum(end - key, reach))
    if causal and prefix is None:
        vectors = [lower]
    elif causal:
        seen_by_all = prefix if _is_array(prefix) else min(prefix, tokens)
        vectors = [lower, jnp.where(key - begin < seen_by_all, begin, key)]
    else:
        vectors = [lower, key - jnp.minimum(key - begin, reach - 1)]
    values = jnp.stack(vectors, axis=-1).astype(jnp.int32)[:, None]
    return RowIndices(values, causal and prefix is None)


def _rows_of(array: Any) -> Any:
    return array[None] if array.ndim == 1 else array


def _is_array(value: object) -> bool:
    return isinstance(value, (jax.Array, np.ndarray))


def _integers(name: str, given: Any, ranks: tuple[int, ...]) -> Any:
    """Returns an array of integers with one of these numbers of dimensions; looks at values of NumPy only."""
    if not _is_array(given):
        raise TypeError(f"{name} is {described(given)}; expected an array of JAX or NumPy that holds integers")
    if not jnp.issubdtype(given.dtype, jnp.integer):
        raise TypeError(f"{name} holds {given.dtype} values; expected integers")
    if given.ndim not in ranks:
        expected = " or ".join(map(str, ranks))
        raise ValueError(f"{name} has shape {list(given.shape)}; expected {expected} dimensions")
    kept = jnp.asarray(given)
    if (
        isinstance(given, np.ndarray)
        and kept.dtype != given.dtype
        and (lost := given != given.astype(kept.dtype)).any()
    ):
        raise ValueError(f"{name} holds {given[lost][0]}, which JAX cuts to {kept.dtype}; expected what that can hold")
    return kept


def _check_ends(cu_seqlens: Any, tokens: int) -> None:
    if isinstance(cu_seqlens, jax.core.Tracer):
        return
    if isinstance(cu_seqlens, jax.Array) and any(device.platform != "cpu" for device in cu_seqlens.devices()):
        return
    ends = np.asarray(cu_seqlens)
    if ends[0] != 0 or ends[-1] > tokens or (ends[1:] < ends[:-1]).any():
        raise ValueError(
            f"cu_seqlens is {described(ends.tolist())}; expected cumulative lengths that begin with 0, never fall, and "
            f"end at {tokens} tokens at most: documents of 3 and 4 tokens are [0, 3, 7]"
        )


def _prefixes(prefix: Any, shapes: tuple[tuple[int | None, ...], ...]) -> Any:
    """Returns an int32 array of prefix lengths, which must have one of these shapes; None: any size."""
    lengths = _integers("prefix", prefix, tuple(map(len, shapes)))
    for shape in shapes:
        if len(shape) == lengths.ndim and all(
            size in (None, given) for size, given in zip(shape, lengths.shape, strict=True)
        ):
            return jnp.minimum(lengths, min(jnp.iinfo(lengths.dtype).max, 2**31 - 1)).astype(jnp.int32)
    raise ValueError(f"prefix has shape {list(lengths.shape)}; expected one value per document")
