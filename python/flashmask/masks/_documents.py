# SPDX-License-Identifier: Apache-2.0
"""Masks of packed documents. Lengths are in tokens; tokens past the documents are padding, which no row sees."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, overload

from flashmask._abi import structs as s
from flashmask._abi.library import create
from flashmask._arguments import IntArray, described, integer, items, length, lengths, pairs, pointer, structs
from flashmask._graph_break import breaks_graph
from flashmask._mask import Mask

if TYPE_CHECKING:
    from flashmask._arguments import Integers, Pairs


class SharedQuestion(NamedTuple):
    """Lengths in tokens of one prompt and of each answer that shares it."""

    question: int
    answers: Integers


def _packing(documents: object, tokens: object) -> tuple[IntArray, int]:
    """Returns the documents' lengths [count] and the sequence length, by default their sum."""
    given = lengths("documents", documents)
    return given, int(given.sum()) if tokens is None else length("tokens", tokens)


def _one_length(name: str, documents: object, tokens: object) -> Mask:
    given, total = _packing(documents, tokens)
    return Mask(create(f"mask_{name}", pointer(given), given.size, total))


def _two_lengths(name: str, query_lengths: object, key_lengths: object) -> Mask:
    queries = lengths("query_lengths", query_lengths)
    keys = lengths("key_lengths", key_lengths)
    if queries.size != keys.size:
        raise ValueError(
            f"query_lengths has {queries.size} documents, key_lengths has {keys.size}; expected as many of each"
        )
    return Mask(create(f"mask_{name}_pairs", pointer(queries), pointer(keys), queries.size))


def _documents(name: str, documents: object, tokens: object, query_lengths: object, key_lengths: object) -> Mask:
    if documents is not None:
        if query_lengths is not None or key_lengths is not None:
            raise TypeError(f"{name} takes documents and tokens, or query_lengths and key_lengths, not both")
        return _one_length(name, documents, tokens)
    if query_lengths is None or key_lengths is None or tokens is not None:
        raise TypeError(f"{name} takes documents and tokens, or query_lengths and key_lengths")
    return _two_lengths(name, query_lengths, key_lengths)


@overload
def causal_document(documents: Integers, tokens: int | None = None) -> Mask: ...
@overload
def causal_document(*, query_lengths: Integers, key_lengths: Integers) -> Mask: ...
@breaks_graph
def causal_document(
    documents: Integers | None = None,
    tokens: int | None = None,
    *,
    query_lengths: Integers | None = None,
    key_lengths: Integers | None = None,
) -> Mask:
    """Each document is causal and sees itself only (family 3).

    `documents` [count] are lengths in a sequence of `tokens` (default: their sum). Or document k has query_lengths[k]
    rows and key_lengths[k] columns and is causal bottom-right, as with a cache.
    """
    return _documents("causal_document", documents, tokens, query_lengths, key_lengths)


@overload
def document(documents: Integers, tokens: int | None = None) -> Mask: ...
@overload
def document(*, query_lengths: Integers, key_lengths: Integers) -> Mask: ...
@breaks_graph
def document(
    documents: Integers | None = None,
    tokens: int | None = None,
    *,
    query_lengths: Integers | None = None,
    key_lengths: Integers | None = None,
) -> Mask:
    """Each document sees itself only, both ways (family 4).

    `documents` [count] are lengths in a sequence of `tokens` (default: their sum). Or document k has query_lengths[k]
    rows and key_lengths[k] columns.
    """
    return _documents("document", documents, tokens, query_lengths, key_lengths)


@breaks_graph
def sliding_window_document(documents: Integers, tokens: int | None, window: int) -> Mask:
    """A sliding window of `window` keys, self included, inside each causal document of `documents` [count].

    `tokens` None: the sum of the documents.
    """
    given, total = _packing(documents, tokens)
    keys = integer("window", window, minimum=1)
    return Mask(create("mask_sliding_window_document", pointer(given), given.size, total, keys))


@breaks_graph
def causal_blockwise(documents: Integers, tokens: int | None = None) -> Mask:
    """Causal documents of the lengths `documents` [count], the last of which sees all before it (family 7)."""
    return _one_length("causal_blockwise", documents, tokens)


@breaks_graph
def prefix_lm_document(documents: Integers, prefixes: Integers, tokens: int | None = None) -> Mask:
    """Each document sees its prefix both ways and the rest causally (family 8).

    `prefixes` [count] has one length per document of `documents` [count], at most the document's own.
    """
    given, total = _packing(documents, tokens)
    heads = lengths("prefixes", prefixes)
    if heads.size != given.size:
        raise ValueError(f"prefixes has {heads.size} values for {given.size} documents; expected one a document")
    return Mask(create("mask_prefix_lm_document", pointer(given), pointer(heads), given.size, total))


@breaks_graph
def prefix_lm_causal(tokens: int, prefix: int) -> Mask:
    """One causal sequence whose first `prefix` tokens are visible to all (family 9)."""
    return Mask(create("mask_prefix_lm_causal", length("tokens", tokens), length("prefix", prefix)))


@breaks_graph
def shared_question(documents: Iterable[tuple[int, Integers]], tokens: int | None = None) -> Mask:
    """An answer sees its question and itself, causally; answers do not see each other (family 5).

    `documents` holds (question, answers) in tokens, such as [(4, [3, 3])]: two answers for DPO, up to six for a reward
    model, any number for GRPO. `tokens` defaults to their sum.
    """
    pairs_given = items("documents", documents, "pairs (question, answers), such as [(4, [3, 3])]")
    given = [_shared_question(k, document) for k, document in enumerate(pairs_given)]
    trees = [s.SharedQuestion(question, pointer(answers), answers.size) for question, answers in given]
    array = (s.SharedQuestion * len(given))(*trees)
    used = sum(question + int(answers.sum()) for question, answers in given)
    return Mask(create("mask_shared_question", array, len(given), used if tokens is None else length("tokens", tokens)))


def _shared_question(k: int, document: object) -> tuple[int, IntArray]:
    if not isinstance(document, Sequence) or isinstance(document, str) or len(document) != 2:
        raise TypeError(f"documents[{k}] is {described(document)}; expected (question, answers), such as (4, [3, 3])")
    question = length(f"documents[{k}].question", document[0])
    return question, lengths(f"documents[{k}].answers", document[1])


@breaks_graph
def bidirectional_spans(tokens: int, spans: Pairs) -> Mask:
    """Causal text with `spans` [count, 2], half-open (begin, end), that see themselves both ways (images)."""
    given = pairs("spans", spans)
    return Mask(create("mask_bidirectional_spans", length("tokens", tokens), structs(given, s.Span), len(given)))


@breaks_graph
def block_diffusion(length: int, block: int) -> Mask:
    """Block diffusion of one sample laid out [x_t | x_0], 2 * `length` tokens in blocks of `block`.

    A noisy block sees itself and the clean blocks before it; a clean block sees the clean blocks up to and including
    itself. Arriola et al. 2025 (Block Diffusion).
    """
    tokens = integer("length", length, minimum=0)
    return Mask(create("mask_block_diffusion", tokens, integer("block", block, minimum=1)))
