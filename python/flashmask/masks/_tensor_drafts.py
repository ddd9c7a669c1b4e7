# SPDX-License-Identifier: Apache-2.0
"""Masks of drafts from tensors: built on the tensors' device, without a host synchronisation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flashmask._arguments import described, integer, traced_length
from flashmask._rows import RowIndices
from flashmask.masks._tensors import begins_of_ids, bounds_of_runs, check_integers

if TYPE_CHECKING:
    import torch


def dflash(
    anchors: torch.Tensor,
    block: int,
    tokens: int,
    keep: torch.Tensor | None = None,
    *,
    document_ids: torch.Tensor | None = None,
) -> RowIndices:
    """Blocks of drafts that are trained at once, as DFlash does: each sees the context before its anchor, and itself.

    Queries are the tokens of all blocks, [blocks * block]. Keys are the `tokens` of the context, then those of the
    blocks again, [tokens + blocks * block]. The rows of block k see the context's tokens before anchors[k], and all
    tokens of block k; no other block. `anchors` are int32 or int64, [blocks] or [batch, blocks], and ascend. `keep`,
    booleans of the same shape: blocks that are not kept see nothing and nobody sees them; they come last.

    `document_ids`, int32 or int64 [tokens] or [batch, tokens], are for a context of packed documents, as in
    masks.from_document_ids(): block k then sees only those tokens before its anchor that are in the anchor's document.
    An anchor has to be a token then. Nobody sees tokens with negative numbers, which are padding.

    In the words of SpecForge's and TorchSpec's trainers: anchor_positions, block_size, S and block_keep_mask.

    The result is [batch or 1, 1, tokens + blocks * block, 2]. Values are checked on the host only, outside of graphs:
    there, ValueError names anchors that fall or lie outside the context, and blocks kept behind others that are not.
    """
    import torch

    from flashmask._torch.packing import can_be_read

    check_integers("anchors", anchors, (1, 2))
    integer("block", block, minimum=1)
    traced_length("tokens", tokens)
    if keep is not None and (not isinstance(keep, torch.Tensor) or keep.dtype is not torch.bool):
        raise TypeError(f"keep is {described(keep)}; expected booleans, one per anchor")
    if keep is not None and (keep.shape != anchors.shape or keep.device != anchors.device):
        raise ValueError(
            f"keep is {list(keep.shape)} on {keep.device}; expected one value per anchor, {list(anchors.shape)} on "
            f"{anchors.device}"
        )
    at = (anchors if anchors.ndim == 2 else anchors[None]).long()
    kept = torch.ones_like(at, dtype=torch.bool) if keep is None else keep.reshape(at.shape)
    ids = None if document_ids is None else _ids_of_context(document_ids, at, tokens)
    if can_be_read(anchors):
        _check_values(at, kept, tokens if ids is None else tokens - 1)
    blocks = at.shape[1]
    # Blocks that are not kept have their anchor behind the context, where no key counts them.
    placed = torch.where(kept, at, tokens).contiguous()
    key = torch.arange(tokens, device=at.device).expand(at.shape[0], -1).contiguous()
    passed = torch.searchsorted(placed, key, right=True)
    within = kept.sum(1, keepdim=True).expand_as(passed)
    if ids is not None:  # blocks of later documents do not see this one
        _, end = bounds_of_runs(begins_of_ids(ids))
        within = torch.where(ids < 0, 0, torch.searchsorted(placed, end.expand_as(key).contiguous()))
    of_context = torch.stack([within * block, passed * block], -1)
    begin = torch.arange(blocks, device=at.device).expand_as(at) * block
    of_blocks = torch.stack([torch.where(kept, begin + block, 0), begin], -1).repeat_interleave(block, dim=1)
    vectors = torch.cat([of_context, of_blocks], 1).to(torch.int32)
    return RowIndices(vectors[:, None], causal=False, rows=blocks * block)


def _ids_of_context(document_ids: torch.Tensor, anchors: torch.Tensor, tokens: int) -> torch.Tensor:
    """Returns document_ids as [1 or batch, tokens], checked."""
    check_integers("document_ids", document_ids, (1, 2))
    ids = document_ids if document_ids.ndim == 2 else document_ids[None]
    if ids.shape[0] not in (1, anchors.shape[0]) or ids.shape[1] != tokens or ids.device != anchors.device:
        raise ValueError(
            f"document_ids is {list(document_ids.shape)} on {document_ids.device}; expected the document of each of "
            f"the {tokens} tokens of the context, of one batch entry or of all {anchors.shape[0]}, on {anchors.device}"
        )
    return ids


def _check_values(anchors: torch.Tensor, keep: torch.Tensor, last: int) -> None:
    """Checks anchors, 0 to `last`, and keep [batch, blocks] on the host."""
    given = anchors[keep]
    if given.numel() and not 0 <= int(given.min()) <= int(given.max()) <= last:
        outside = next(value for value in given.tolist() if not 0 <= value <= last)
        raise ValueError(f"anchors holds {outside}; expected 0 to {last}: positions in the context")
    if (keep[:, 1:] & ~keep[:, :-1]).any():
        raise ValueError("keep has a block behind one that is not kept; expected all kept blocks first")
    falls = (anchors[:, 1:] < anchors[:, :-1]) & keep[:, 1:]
    if falls.any():
        entry, block = falls.nonzero()[0].tolist()
        raise ValueError(
            f"anchors[{entry}] falls from {int(anchors[entry, block])} to {int(anchors[entry, block + 1])}; expected "
            "them to ascend: sort the blocks"
        )
