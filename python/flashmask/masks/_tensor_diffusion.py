# SPDX-License-Identifier: Apache-2.0
"""Block diffusion over packed documents from tensors: built on the tensors' device, without a host synchronisation."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from flashmask._arguments import boolean, integer, traced_length
from flashmask._rows import RowIndices
from flashmask.masks._tensors import check_integers

if TYPE_CHECKING:
    import torch


class _Blocks(NamedTuple):
    """Where each token's document and block begin and end, [tokens] each."""

    document: torch.Tensor
    document_end: torch.Tensor
    begin: torch.Tensor
    end: torch.Tensor
    padding: torch.Tensor


def packed_block_diffusion(
    cu_seqlens: torch.Tensor, block: int, tokens: int, *, interleaved: bool = False
) -> torch.Tensor | RowIndices:
    """Block diffusion over packed documents: masks.block_diffusion() for each, in a sequence of 2 * `tokens`.

    Documents are those of masks.from_cu_seqlens(), each cut into blocks of `block` tokens from its own begin; the last
    block of a document may be shorter. A noisy block sees itself and the clean blocks of its document before it; a
    clean block sees the clean blocks of its document up to itself. Padding sees nothing and nobody sees it. Arriola et
    al. 2025 (Block Diffusion), section 3.2, for one document.

    The tokens lie in one of two orders:

    * as [x_t | x_0], all noisy tokens and then all clean ones. Three ranges per key column are needed, so the result
      is booleans [2 * tokens, 2 * tokens], True = visible: 4 * tokens² bytes, which attention() turns into bits;
    * `interleaved`, each noisy block followed by its clean block, the order that interleaved_blocks() brings a sequence
      into. Two ranges suffice, so the result is RowIndices [1, 1, 2 * tokens, 2], and the tiles are fewer.
    """
    import torch

    if boolean("interleaved", interleaved):
        blocks = _blocks_of(cu_seqlens, block, tokens)
        _, document_end, begin, end, padding = blocks
        noisy = torch.stack([torch.where(padding, 0, begin + end), 2 * begin], -1)
        clean = torch.stack([torch.where(padding, 0, 2 * document_end), begin + end], -1)
        vectors = torch.cat([noisy, clean])[_order(blocks)].to(torch.int32)
        return RowIndices(vectors[None, None], causal=False)
    return _of_tokens(*_between_blocks(cu_seqlens, block, tokens))


def interleaved_blocks(cu_seqlens: torch.Tensor, block: int, tokens: int) -> torch.Tensor:
    """Returns int64 [2 * tokens]: the order in which each noisy block is followed by its clean block.

    With x laid out [x_t | x_0], x[order] is what packed_block_diffusion(..., interleaved=True) is for; positions and
    labels are brought into the same order, and results back by order.argsort().
    """
    return _order(_blocks_of(cu_seqlens, block, tokens))


def _document_of(cu_seqlens: torch.Tensor, block: int, tokens: int) -> torch.Tensor:
    """Checks the arguments; returns the number of each token's document, in padding the number of documents."""
    from flashmask._torch.packing import check_ends, document_of

    check_integers("cu_seqlens", cu_seqlens, (1,))
    integer("block", block, minimum=1)
    traced_length("tokens", tokens)
    if cu_seqlens.shape[0] < 1:
        raise ValueError("cu_seqlens is empty; expected [documents + 1] values, the first of them 0")
    check_ends("cu_seqlens", cu_seqlens, tokens)
    return document_of(cu_seqlens, tokens)


def _blocks_of(cu_seqlens: torch.Tensor, block: int, tokens: int) -> _Blocks:
    import torch

    number = _document_of(cu_seqlens, block, tokens)
    bounds = torch.cat([cu_seqlens.long(), cu_seqlens.new_full((1,), tokens).long()])
    begin, end = bounds[number], bounds[number + 1]
    token = torch.arange(tokens, device=cu_seqlens.device)
    of_block = token - (token - begin) % block
    return _Blocks(
        begin, end, of_block, of_block + (end - of_block).clamp(max=block), number == cu_seqlens.shape[0] - 1
    )


def _between_blocks(cu_seqlens: torch.Tensor, block: int, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns which blocks see which, [2 * blocks, 2 * blocks], noisy ones and then clean ones; and the block of each
    token of x_0, [tokens].

    As many blocks are counted as documents and padding can be cut into at most: how many there are is not known here.
    """
    import torch

    document = _document_of(cu_seqlens, block, tokens)
    documents = cu_seqlens.shape[0] - 1
    token = torch.arange(tokens, device=document.device)
    number = ((token - cu_seqlens[document]) % block == 0).cumsum(0) - 1
    of_block = document.new_full((tokens // block + documents + 1,), documents).scatter_(0, number, document)
    same = (of_block[:, None] == of_block) & (of_block < documents)
    before, up_to = same.tril(-1), same.tril()
    noisy = torch.cat([before ^ up_to, before], 1)
    return torch.cat([noisy, torch.nn.functional.pad(up_to, (up_to.shape[1], 0))]), number


def _of_tokens(of_blocks: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
    """Returns what the tokens of [x_t | x_0] see, given what their blocks see, and which block each token of x_0 is in.

    Rows are repeated last, as words of eight booleans, so that all of the result is written once and read never.
    """
    import torch

    tokens = 2 * number.shape[0]
    if tokens == 0:
        return of_blocks[:0, :0]
    columns = torch.cat([number, number + of_blocks.shape[0] // 2, number.new_zeros(-tokens % 8)])
    rows = of_blocks.index_select(1, columns).view(torch.int64)
    return rows[columns[:tokens]].view(torch.bool)[:, :tokens]


def _order(blocks: _Blocks) -> torch.Tensor:
    """Returns the token of [x_t | x_0] at each position of the interleaved order."""
    import torch

    token = torch.arange(blocks.begin.shape[0], device=blocks.begin.device)
    # Twice the tokens before the block lie before it; before the clean half, the block's noisy half does too.
    positions = torch.cat([blocks.begin + token, blocks.end + token])
    return torch.empty_like(positions).scatter_(0, positions, torch.arange(positions.shape[0], device=positions.device))
