# SPDX-License-Identifier: Apache-2.0
"""Masks of drafts from tensors: built on the tensors' device, without a host synchronisation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flashmask._arguments import described, integer, length
from flashmask._rows import RowIndices
from flashmask.masks._tensors import check_integers

if TYPE_CHECKING:
    import torch


def dflash(anchors: torch.Tensor, block: int, tokens: int, keep: torch.Tensor | None = None) -> RowIndices:
    """Blocks of drafts that are trained at once, as DFlash does: each sees the context before its anchor, and itself.

    Queries are the tokens of all blocks, [blocks * block]. Keys are the `tokens` of the context, then those of the
    blocks again, [tokens + blocks * block]. The rows of block k see the context's tokens before anchors[k], and all
    tokens of block k; no other block. `anchors` are int32 or int64, [blocks] or [batch, blocks], and ascend. `keep`,
    booleans of the same shape: blocks that are not kept see nothing and nobody sees them; they come last.

    In the words of SpecForge's and TorchSpec's trainers: anchor_positions, block_size, S and block_keep_mask.

    The result is [batch or 1, 1, tokens + blocks * block, 2]. Values are checked on the host only, outside of graphs:
    there, ValueError names anchors that fall or lie outside the context, and blocks kept behind others that are not.
    """
    import torch

    check_integers("anchors", anchors, (1, 2))
    integer("block", block, minimum=1)
    length("tokens", tokens)
    if keep is not None and (not isinstance(keep, torch.Tensor) or keep.dtype is not torch.bool):
        raise TypeError(f"keep is {described(keep)}; expected booleans, one per anchor")
    if keep is not None and (keep.shape != anchors.shape or keep.device != anchors.device):
        raise ValueError(
            f"keep is {list(keep.shape)} on {keep.device}; expected one value per anchor, {list(anchors.shape)} on "
            f"{anchors.device}"
        )
    at = (anchors if anchors.ndim == 2 else anchors[None]).long()
    kept = torch.ones_like(at, dtype=torch.bool) if keep is None else keep.reshape(at.shape)
    if at.device.type == "cpu" and type(anchors) is torch.Tensor and not torch.compiler.is_compiling():
        _check_values(at, kept, tokens)
    blocks = at.shape[1]
    key = torch.arange(tokens, device=at.device).expand(at.shape[0], -1).contiguous()
    # Blocks that are not kept have their anchor behind the context, where no key counts them.
    passed = torch.searchsorted(torch.where(kept, at, tokens).contiguous(), key, right=True)
    end = kept.sum(1, keepdim=True) * block
    of_context = torch.stack([end.expand_as(passed), passed * block], -1)
    begin = torch.arange(blocks, device=at.device).expand_as(at) * block
    of_blocks = torch.stack([torch.where(kept, begin + block, 0), begin], -1).repeat_interleave(block, dim=1)
    vectors = torch.cat([of_context, of_blocks], 1).to(torch.int32)
    return RowIndices(vectors[:, None], causal=False, rows=blocks * block)


def _check_values(anchors: torch.Tensor, keep: torch.Tensor, tokens: int) -> None:
    """Checks anchors and keep [batch, blocks] on the host."""
    given = anchors[keep]
    if given.numel() and not 0 <= int(given.min()) <= int(given.max()) <= tokens:
        outside = next(value for value in given.tolist() if not 0 <= value <= tokens)
        raise ValueError(f"anchors holds {outside}; expected 0 to {tokens}, the tokens of the context")
    if (keep[:, 1:] & ~keep[:, :-1]).any():
        raise ValueError("keep has a block behind one that is not kept; expected all kept blocks first")
    falls = (anchors[:, 1:] < anchors[:, :-1]) & keep[:, 1:]
    if falls.any():
        entry, place = falls.nonzero()[0].tolist()
        raise ValueError(
            f"anchors[{entry}] falls from {int(anchors[entry, place])} to {int(anchors[entry, place + 1])}; expected "
            "them to ascend: sort the blocks"
        )
