# SPDX-License-Identifier: Apache-2.0
"""Masks of packed documents from tensors: built on the tensors' device, without a host synchronisation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from flashmask._arguments import check_document_options, described, traced_length
from flashmask._rows import RowIndices

if TYPE_CHECKING:
    import torch
    from typing_extensions import TypeIs


class _Documents(NamedTuple):
    """Where each token's document begins and ends, int64, and which tokens are padding; [batch, tokens] each."""

    begin: torch.Tensor
    """First token of the token's document."""
    end: torch.Tensor
    padding: torch.Tensor


def from_cu_seqlens(
    cu_seqlens: torch.Tensor,
    tokens: int,
    *,
    causal: bool = True,
    window: int | None = None,
    prefix: int | torch.Tensor | None = None,
) -> RowIndices:
    """Packed documents by their ends: document k holds the tokens cu_seqlens[k] to cu_seqlens[k + 1] of `tokens`.

    `cu_seqlens` is int32 or int64 [documents + 1] and ascends from 0; equal neighbours are an empty document. Tokens
    past the last end are padding: they see nothing and no row sees them. On the CPU, outside of graphs, values that
    do not begin at 0, that decrease, or that end past the last token raise ValueError. On a GPU they are not checked,
    since the host would have to wait for them: wrong values give a wrong mask there.

    A row sees the keys of its own document that are

    * not after it, if `causal`, or in the document's prefix: its first `prefix` tokens, an int or a tensor
      [documents] (prefix-LM; a prefix as long as the document is bidirectional). `prefix` needs `causal`;
    * and fewer than `window` tokens before it, or on either side of it if not `causal`: `window` keys with itself. A
      prefix does not reach further back than the window.

    The result is [1, 1, tokens, n], n = 1 for causal documents without a prefix, else 2.
    """
    torch = _torch()
    check_integers("cu_seqlens", cu_seqlens, (1,))
    if cu_seqlens.shape[0] < 1:
        raise ValueError("cu_seqlens is empty; expected [documents + 1] values, the first of them 0")
    traced_length("tokens", tokens)
    check_document_options(causal, window, prefix, _is_tensor)
    from flashmask._torch.packing import check_ends, document_of

    check_ends("cu_seqlens", cu_seqlens, tokens)
    documents = cu_seqlens.shape[0] - 1
    document = document_of(cu_seqlens, tokens)  # in padding: the number of documents
    bounds = torch.cat([cu_seqlens, cu_seqlens[-1:]]).long()
    prefixes = prefix
    if _is_tensor(prefix):
        _check_prefix(prefix, cu_seqlens, ((documents,),))
        prefixes = torch.cat([prefix, prefix.new_zeros(1)])[document][None]
    packing = _Documents(bounds[document][None], bounds[document + 1][None], (document == documents)[None])
    return _row_indices(packing, causal, window, prefixes, documents + 1)  # and the padding behind them


def from_document_ids(
    ids: torch.Tensor, *, causal: bool = True, window: int | None = None, prefix: int | torch.Tensor | None = None
) -> RowIndices:
    """Packed documents by the document number of each token, integers [tokens] or [batch, tokens].

    A document is a run of equal numbers, which need not be sorted: a number that comes back later begins another
    document. A negative number is padding. `causal`, `window` and `prefix` as in from_cu_seqlens(); a tensor of
    prefixes is [documents] or [batch, documents], in the order of the documents in the sequence.
    """
    check_integers("ids", ids, (1, 2))
    check_document_options(causal, window, prefix, _is_tensor)
    ids = ids[None] if ids.ndim == 1 else ids
    return _runs(begins_of_ids(ids), ids < 0, causal, window, prefix)


def from_position_ids(
    position_ids: torch.Tensor,
    *,
    causal: bool = True,
    window: int | None = None,
    prefix: int | torch.Tensor | None = None,
) -> RowIndices:
    """Packed documents by each token's position, integers [tokens] or [batch, tokens].

    A position that is not its predecessor's + 1 begins a document. `causal`, `window` and `prefix` as in
    from_document_ids(). There is no padding: what follows the last restart is a document.
    """
    torch = _torch()
    check_integers("position_ids", position_ids, (1, 2))
    check_document_options(causal, window, prefix, _is_tensor)
    positions = position_ids[None] if position_ids.ndim == 1 else position_ids
    begins = torch.ones_like(positions, dtype=torch.bool)
    begins[:, 1:] = positions[:, 1:] != positions[:, :-1] + 1
    return _runs(begins, torch.zeros_like(begins), causal, window, prefix)


def begins_of_ids(ids: torch.Tensor) -> torch.Tensor:
    """Returns booleans: whether a run of equal numbers in `ids` [batch, tokens] begins at a token."""
    begins: torch.Tensor = _torch().ones_like(ids, dtype=_torch().bool)
    begins[:, 1:] = ids[:, 1:] != ids[:, :-1]
    return begins


def bounds_of_runs(begins: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns where each token's run begins and ends, for runs that begin where `begins` [batch, tokens] is true."""
    torch = _torch()
    tokens = begins.shape[1]
    position = torch.arange(tokens, device=begins.device).expand_as(begins)
    begin = torch.where(begins, position, 0).cummax(dim=1).values
    last = begins.roll(-1, dims=1)  # last token of a run; the first begins one, so the last token counts too
    end = torch.where(last, position + 1, tokens).flip(1).cummin(dim=1).values.flip(1)
    return begin, end


def _runs(begins: torch.Tensor, padding: torch.Tensor, causal: bool, window: int | None, prefix: Any) -> RowIndices:
    """Makes row indices for documents that begin where `begins` [batch, tokens] is true."""
    torch = _torch()
    begin, end = bounds_of_runs(begins)
    prefixes = prefix
    if _is_tensor(prefix):
        _check_prefix(prefix, begins, ((None,), (begins.shape[0], None)))
        document = (begins & ~padding).cumsum(dim=1) - 1
        document = torch.where(padding, 0, document)
        prefixes = prefix.expand(begins.shape[0], -1).gather(1, document) if prefix.shape[-1] else None
    return _row_indices(_Documents(begin, end, padding), causal, window, prefixes)


def _row_indices(
    documents: _Documents, causal: bool, window: int | None, prefix: Any, most_documents: int | None = None
) -> RowIndices:
    """Makes row indices; `prefix` is one length, or [batch, tokens]: the prefix length of each token's document."""
    torch = _torch()
    begin, end, padding = documents
    key = torch.arange(begin.shape[1], dtype=begin.dtype, device=begin.device)
    # A window or prefix may be as large as integers go, for no limit: distances are compared with it, which are small.
    lower = end if window is None else key + (end - key).clamp(max=window)
    lower = torch.where(padding, 0, lower)
    if causal and prefix is None:
        vectors = [lower]
    elif causal:
        vectors = [lower, torch.where(key - begin < prefix, begin, key)]
    else:
        vectors = [lower, begin if window is None else key - (key - begin).clamp(max=window - 1)]
    values = torch.stack(vectors, dim=-1).to(torch.int32).unsqueeze(1)
    return RowIndices(values, causal and prefix is None, most_documents=most_documents)


def _torch() -> Any:
    import torch

    return torch


def _is_tensor(value: object) -> TypeIs[torch.Tensor]:
    import torch

    return isinstance(value, torch.Tensor)


def check_integers(name: str, tensor: Any, ranks: tuple[int, ...]) -> None:
    """Refuses anything but an int32 or int64 tensor with one of these numbers of dimensions; reads no values."""
    torch = _torch()
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name} is {described(tensor)}; expected an integer tensor")
    if tensor.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"{name} holds {tensor.dtype} values; expected int32 or int64")
    if tensor.ndim not in ranks:
        expected = " or ".join(map(str, ranks))
        raise ValueError(f"{name} has shape {list(tensor.shape)}; expected {expected} dimensions")


def _check_prefix(prefix: Any, like: Any, shapes: tuple[tuple[int | None, ...], ...]) -> None:
    check_integers("prefix", prefix, tuple(len(shape) for shape in shapes))
    if prefix.device != like.device:
        raise ValueError(f"prefix is on {prefix.device}, the documents are on {like.device}; expected one device")
    for shape in shapes:
        if len(shape) == prefix.ndim and all(
            size is None or size == given for size, given in zip(shape, prefix.shape, strict=True)
        ):
            return
    raise ValueError(f"prefix has shape {list(prefix.shape)}; expected one value per document")
