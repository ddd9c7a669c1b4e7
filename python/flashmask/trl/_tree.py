# SPDX-License-Identifier: Apache-2.0
"""Attention over the trees of rollouts that TRL's AsyncGRPOTrainer packs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface

from flashmask._torch.packing import ends_passed
from flashmask._torch.shared import shared
from flashmask.masks import from_tree
from flashmask.transformers import flashmask_attention_forward
from flashmask.trl._version import check_version


def register_tree_attention() -> None:
    """Makes FlashMask compute the attention of trl.experimental.async_grpo.AsyncGRPOTrainer; can be called again.

    The trainer packs rollouts into trees and, when it is made, registers its own attention for them, "tree_fa3". From
    now on that name means tree_attention(), in the trainer and in models made with attn_implementation="tree_fa3".
    Raises ImportError for a TRL other than 1.16.
    """
    check_version()
    from trl.experimental.async_grpo import async_grpo_trainer, packing

    packing.register_tree_attention = async_grpo_trainer.register_tree_attention = _register
    _register()


def _register() -> None:
    from trl.experimental.async_grpo.packing import TREE_ATTENTION

    AttentionInterface.register(TREE_ATTENTION, tree_attention)
    AttentionMaskInterface.register(TREE_ATTENTION, _no_mask)


def _no_mask(**_: Any) -> None:
    """Makes no mask: the tree that comes with a batch decides what is visible."""


def tree_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    tree_kv_index: Tensor,
    tree_cu_seqlens_q: Tensor,
    tree_cu_seqlens_k: Tensor,
    tree_max_seqlen_q: int,
    tree_max_seqlen_k: int,
    sliding_window: int | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Computes attention of one layer over one sequence that is a forest; Transformers calls this, users do not.

    query [1, Hq, N, D], key [1, Hkv, N, D], value [1, Hkv, N, Dv]; returns [1, N, Hq, Dv] and None. Nodes, which TRL
    calls segments, come depth-first: node s holds the rows from tree_cu_seqlens_q[s] to [s + 1], int32 [S + 1], and its
    path, from the root to its own end, has tree_cu_seqlens_k[s + 1] - tree_cu_seqlens_k[s] tokens. This determines the
    tree: tree_kv_index, by which TRL copies the keys and values of every path, is not read. `others` are keywords of
    flashmask.transformers, which refuses by name what it does not support, such as head_mask.

    sliding_window counts along a path. If it is shorter than the longest path, the mask of such layers is booleans for
    every pair, made on the device once per forward, since the rows that see a key are then not one range.
    """
    if attention_mask is not None:
        raise ValueError(
            f"attention_mask {list(attention_mask.shape)} came beside a tree, which says who sees whom; leave it out"
        )
    tree = (tree_cu_seqlens_q, tree_cu_seqlens_k)
    if sliding_window is None or sliding_window >= tree_max_seqlen_k:
        mask = shared(_row_indices, tree, tokens=query.shape[2])
    else:
        mask = shared(_within_window, tree, tokens=query.shape[2], window=sliding_window)
    others["is_causal"] = True
    return flashmask_attention_forward(module, query, key, value, mask, **others)


def _row_indices(cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, *, tokens: int) -> Tensor:
    """Returns the row indices of a tree, int32 [1, 1, tokens, 1]."""
    lengths, paths = cu_seqlens_q.diff().long(), cu_seqlens_k.diff().long()
    # A node's parent is the last node before it whose path is as long as the node's own path without the node.
    nodes = len(lengths)
    number = torch.arange(nodes, device=lengths.device)
    by_path, order = (paths * nodes + number).sort()
    before = torch.searchsorted(by_path, (paths - lengths) * nodes + number) - 1
    parents = torch.where(paths == lengths, -1, order[before.clamp(min=0)])
    return from_tree(parents, lengths, tokens).startend_row_indices


def _within_window(cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, *, tokens: int, window: int) -> Tensor:
    """Returns which pairs a tree and a window leave visible, bool [1, 1, tokens, tokens]."""
    ends = _row_indices(cu_seqlens_q, cu_seqlens_k, tokens=tokens)[0, 0, :, 0]
    row = torch.arange(tokens, device=ends.device)
    node = ends_passed(cu_seqlens_q[None, 1:], tokens)[0].clamp(max=len(cu_seqlens_q) - 2)
    position = row + (cu_seqlens_k[1:] - cu_seqlens_k[:-1] - cu_seqlens_q[1:])[node]
    visible = (row[:, None] >= row) & (row[:, None] < ends) & (position[:, None] < position + window)
    return visible[None, None]
