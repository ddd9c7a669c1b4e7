# SPDX-License-Identifier: Apache-2.0
"""Packing for reinforcement learning: rollouts as the tree of their prefixes, each token once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flashmask._arguments import integer, items, lengths
from flashmask.data._batch import Batch
from flashmask.data._examples import IGNORED, Tokens, token_ids
from flashmask.data._registered import warn_where_nobody_reads_masks


class PackedRollouts(Batch):
    """The batch that pack_rollouts() returns."""


def pack_rollouts(
    rollouts: Iterable[Any],
    *,
    pad_to_multiple_of: int = 1,
    pad_token_id: int = 0,
    shared_until: Any = None,
    unit: int = 1,
) -> PackedRollouts:
    """Packs rollouts into one sequence that holds shared prefixes once: the tree of their prefixes, depth-first.

    A rollout is its token ids from the first one of the prompt on: a list, array or tensor of whole numbers. Rollouts
    of several prompts make several trees; one that shares no prefix with others is a document of its own. The same
    input gives the same batch. T is padded to a multiple of `pad_to_multiple_of` tokens.

    `shared_until` gives one integer for each rollout, a list, array or tensor: its tokens from there on are shared with
    no other rollout, even where they are equal. With the length of the prompt less 1, the prompt's last token is
    repeated in front of every answer, and each row predicts at most one token: `labels` says which.

    `unit`: only multiples of so many tokens are shared, and each rollout is padded to such a multiple; its padding
    continues it, so that nothing else sees it. With 128, attention with invariant=True gives every token of a rollout
    the bits that it has when the rollout is packed alone; on a Hopper GPU 192 do for heads of up to 64 dims, and 384
    for heads of 192.

    Returns, for R rollouts of which the longest has L tokens:

    - `input_ids`, `position_ids` int64 [1, T], positions as in each rollout alone;
    - `startend_row_indices` int32 [1, 1, T, 1], to be read causally: a token sees the tokens before it in its rollouts;
    - `rows` int64 [R, L]: where token t of rollout r lies, -1 past the rollout's end. Its logits are in row
      rows[r, t - 1]; rollout_log_probs() gathers them, and the gradient sums over rollouts that gather the same row;
    - `order` int64 [R] and `holders` int64 [1, T, 2], the inverse: a token belongs to the rollouts order[first] to
      order[end - 1], where (first, end) are its holders;
    - where `shared_until` is given, `labels` int64 [1, T], which are shifted already: in row rows[r, t - 1] token t of
      rollout r, for every t > shared_until[r]; elsewhere -100, which losses ignore.

    Raises ValueError and TypeError that name the rollout.
    """
    multiple = integer("pad_to_multiple_of", pad_to_multiple_of, minimum=1)
    unit = integer("unit", unit, minimum=1)
    given = [
        token_ids(each, f"rollouts[{number}]", at_least=1)
        for number, each in enumerate(items("rollouts", rollouts, "lists of token ids"))
    ]
    if not given:
        raise ValueError("rollouts is empty; expected at least one")
    warn_where_nobody_reads_masks()
    limits = _limits(given, shared_until)
    shareable = [each[: limit // unit * unit] for each, limit in zip(given, limits, strict=True)]
    order = _order(shareable, unit)
    leaves = [given[number] for number in order]
    shared = _shared([shareable[number] for number in order], unit)
    held = [-(-tokens.size // unit) * unit - common for tokens, common in zip(leaves, shared, strict=True)]
    starts = np.cumsum([0, *held])
    length = -(-int(starts[-1]) // multiple) * multiple
    fields = _fields(leaves, shared, starts, length=length, pad=pad_token_id)
    rows = _rows(leaves, shared, starts)
    if shared_until is not None:
        fields["labels"] = _labels(leaves, rows, [limits[number] for number in order], length)
    fields["rows"] = np.empty_like(rows)
    fields["rows"][order] = rows
    fields["order"] = np.array(order)
    return PackedRollouts({name: torch.from_numpy(field) for name, field in fields.items()})


def _limits(rollouts: Sequence[Tokens], shared_until: Any) -> list[int]:
    """Returns how many leading tokens each rollout may share."""
    sizes = [each.size for each in rollouts]
    if shared_until is None:
        return sizes
    limits = lengths("shared_until", shared_until).tolist()
    if len(limits) != len(sizes):
        raise ValueError(f"shared_until has {len(limits)} integers for {len(sizes)} rollouts; expected one for each")
    return [min(pair) for pair in zip(limits, sizes, strict=True)]


def _order(rollouts: Sequence[Tokens], unit: int) -> list[int]:
    """Orders rollouts so that those with a common prefix are neighbours, and prefixes are in the order they appear in.

    First sorts them by content. Then splits the sorted list into subtrees where neighbours share the fewest tokens, and
    orders these by their earliest rollout: the order is the same for other tokens with the same common prefixes.
    """
    contents = [each.astype(">i8").tobytes() for each in rollouts]
    order = sorted(range(len(rollouts)), key=contents.__getitem__)
    shared = np.array(_shared([rollouts[number] for number in order], unit))
    numbers, ordered, pending = np.array(order), [], [(0, len(order))]
    while pending:
        first, end = pending.pop()
        if end - first == 1:
            ordered.append(order[first])
            continue
        between = shared[first + 1 : end]
        cuts = [first, *(first + 1 + np.flatnonzero(between == between.min())).tolist(), end]
        pending += sorted(pairwise(cuts), key=lambda subtree: -numbers[slice(*subtree)].min())
    return ordered


def _shared(leaves: Sequence[Tokens], unit: int) -> list[int]:
    """Returns how many leading tokens each rollout shares with the one before it, a multiple of `unit`."""
    return [0, *(common_prefix(one, other) // unit * unit for one, other in pairwise(leaves))]


def common_prefix(one: Tokens, other: Tokens) -> int:
    """Returns how many leading tokens two sequences share."""
    size = min(one.size, other.size)
    differ = one[:size] != other[:size]
    first = int(differ.argmax()) if size else 0
    return first if size and differ[first] else size


def _rows(leaves: Sequence[Tokens], shared: Sequence[int], starts: Tokens) -> Tokens:
    """Returns where each token of each leaf lies, [leaves, longest]: first the tokens it shares, then its own."""
    rows = np.full((len(leaves), max(map(len, leaves))), -1)
    for leaf, (tokens, common) in enumerate(zip(leaves, shared, strict=True)):
        rows[leaf, :common] = rows[leaf - 1, :common]
        rows[leaf, common : tokens.size] = starts[leaf] + np.arange(tokens.size - common)
    return rows


def _labels(leaves: Sequence[Tokens], rows: Tokens, limits: Sequence[int], length: int) -> Tokens:
    """Returns the token that each row predicts, [1, length], where only one rollout holds both."""
    labels = np.full((1, length), IGNORED)
    for tokens, own, limit in zip(leaves, rows, limits, strict=True):
        labels[0, own[limit : tokens.size - 1]] = tokens[limit + 1 :]
    return labels


def _fields(
    leaves: Sequence[Tokens], shared: Sequence[int], starts: Tokens, *, length: int, pad: int
) -> dict[str, Tokens]:
    """Returns the batch's fields with one entry per token, [1, length, ...]."""
    input_ids, position_ids = np.full(length, pad), np.zeros(length, np.int64)
    holders = np.zeros((length, 2), np.int64)  # the leaf that a token came with, and the first one without it
    ends = np.zeros(length, np.int32)
    padded = np.diff(starts) + shared  # the length of each leaf's path with its padding
    behind = np.full(padded.max(), len(leaves))  # per depth, the first later leaf on another path there
    for leaf in reversed(range(len(leaves))):
        common, size = shared[leaf], leaves[leaf].size
        depths = np.arange(common, padded[leaf])
        own, tokens = slice(starts[leaf], starts[leaf + 1]), slice(starts[leaf], starts[leaf] + size - common)
        input_ids[tokens] = leaves[leaf][common:]
        position_ids[own] = np.minimum(depths, size - 1)  # not beyond the positions that a model knows
        holders[tokens, 0], holders[tokens, 1] = leaf, behind[common:size]
        ends[own] = starts[behind[depths]]
        behind[common:] = leaf
    position_ids[starts[-1] :] = np.arange(length - starts[-1])
    fields = {"input_ids": input_ids, "position_ids": position_ids, "holders": holders}
    fields["startend_row_indices"] = ends[None, :, None]
    return {name: field[None] for name, field in fields.items()}


def rollout_log_probs(logits: Tensor, packed: Mapping[str, Tensor]) -> Tensor:
    """Returns the log-probability of each rollout's tokens given those before them, float32 [R, L], 0 where none.

    `logits` [1, T, vocabulary] come from a model that was given `packed`, a batch of pack_rollouts(), on the same
    device. The first token of a rollout has no log-probability, since nothing predicts it, nor have positions past its
    end. Differentiable, and without a host synchronisation. On the CPU, raises ValueError if a token lies outside the
    vocabulary.
    """
    missing = [name for name in ("input_ids", "rows") if name not in packed]
    if missing:
        raise ValueError(f"packed has no {missing[0]}; expected a batch that pack_rollouts() made")
    if logits.ndim != 3 or logits.shape[:2] != packed["input_ids"].shape:
        raise ValueError(
            f"logits has shape {list(logits.shape)}; expected {[*packed['input_ids'].shape, 'vocabulary']}"
        )
    rows = packed["rows"]
    held, before = rows[:, 1:].clamp(min=0), rows[:, :-1].clamp(min=0)
    tokens = packed["input_ids"][0, held]
    if tokens.device.type == "cpu" and not torch.compiler.is_compiling():
        _check_vocabulary(tokens, logits.shape[2])
    log_probs = logits[0, before, tokens].float() - logits[0].float().logsumexp(-1)[before]
    return torch.nn.functional.pad(log_probs.where(rows[:, 1:] >= 0, 0), (1, 0))


def _check_vocabulary(tokens: Tensor, vocabulary: int) -> None:
    if tokens.numel() and int(tokens.max()) >= vocabulary:
        raise ValueError(
            f"logits has a vocabulary of {vocabulary}, and packed holds token {int(tokens.max())}; expected logits of "
            "the model whose tokenizer made the rollouts, with all columns of its vocabulary"
        )
