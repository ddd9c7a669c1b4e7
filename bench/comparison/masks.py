# SPDX-License-Identifier: Apache-2.0
"""Masks in the forms that contestants take: a flashmask.Mask, and a mask_mod for FlexAttention."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_mask

import flashmask
from comparison.data import Documents, alpaca, sample
from flashmask import block_maps, masks
from flashmask._draft_tree import draft_tree

MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]

SEED = 20261121
GLOBALS = 16
BLOCK = 128
NEIGHBOURS = 4


@dataclass(frozen=True)
class Setting:
    """The sizes and the device that a mask is built for. Only some masks use `parameter`."""

    tokens: int
    batch: int
    heads: int
    device: str
    parameter: int = 0


@dataclass
class MaskCase:
    """One mask. `plain`: "full" or "causal", if it is one of these; `documents`: their lengths, if it is a document
    mask, `causal` or both ways.

    `tensors`: those that the mask_mod reads, if other values may be written into them.
    """

    mask: flashmask.Mask
    mask_mod: MaskMod | None
    device: str
    plain: str = ""
    documents: Sequence[int] = ()
    causal: bool = True
    tensors: tuple[Tensor, ...] = ()

    @cached_property
    def rows(self) -> flashmask.RowIndices | None:
        """The mask as row indices on the device; None if intervals cannot express it."""
        try:
            values, causal = self.mask.to_startend_row_indices()
        except NotImplementedError:
            return None
        return flashmask.RowIndices(torch.from_numpy(values).to(self.device), causal, rows=self.mask.shape.rows)

    @cached_property
    def visible(self) -> Tensor:
        """Booleans on the device, [batch, heads, rows, columns]."""
        batch, heads, rows, columns = self.mask.shape
        return create_mask(self.mask_mod or (lambda b, h, q, k: q >= 0), batch, heads, rows, columns, self.device)

    @cached_property
    def row_ends(self) -> Tensor:
        """What each row sees, int32 [heads, n, batch * rows] as Mask.to_row_ranges() returns it, on the device."""
        return torch.from_numpy(self.mask.to_row_ranges()).to(self.device)

    @cached_property
    def visible_pairs(self) -> int:
        return self.mask.explain().visible_pairs


def spread(values: Sequence[int], lengths: Sequence[int], device: str) -> Tensor:
    """Repeats each document's value for each of its tokens, as int32 on the device."""
    return torch.repeat_interleave(torch.tensor(values), torch.tensor(lengths)).to(device, torch.int32)


def ids_of(lengths: Sequence[int], device: str) -> Tensor:
    return spread(range(len(lengths)), lengths, device)


def full(at: Setting) -> MaskCase:
    return MaskCase(masks.full(at.tokens, at.tokens), None, at.device, plain="full")


def causal(at: Setting) -> MaskCase:
    return MaskCase(masks.causal(at.tokens, at.tokens), lambda b, h, q, k: q >= k, at.device, plain="causal")


def sliding_window(at: Setting) -> MaskCase:
    """A row sees itself and as many tokens before it as a sixteenth of the sequence."""
    left = at.tokens // 16
    mask = masks.sliding_window(at.tokens, at.tokens, left + 1)
    return MaskCase(mask, lambda b, h, q, k: (q >= k) & (q - k <= left), at.device)


def causal_documents(lengths: Sequence[int], device: str) -> MaskCase:
    ids = ids_of(lengths, device)
    mod: MaskMod = lambda b, h, q, k: (ids[q] == ids[k]) & (q >= k)  # noqa: E731
    return MaskCase(masks.causal_document(lengths), mod, device, documents=lengths, tensors=(ids,))


def documents(lengths: Sequence[int], device: str) -> MaskCase:
    ids = ids_of(lengths, device)
    mod: MaskMod = lambda b, h, q, k: ids[q] == ids[k]  # noqa: E731
    return MaskCase(masks.document(lengths), mod, device, documents=lengths, causal=False, tensors=(ids,))


def cut(length: int, pieces: int, draw: random.Random) -> list[int]:
    ends = [0, *sorted(draw.sample(range(1, length), pieces - 1)), length]
    return [end - begin for begin, end in pairwise(ends)]


def shared_questions(lengths: Sequence[int], device: str, seed: int = SEED) -> MaskCase:
    """Each document is cut at random into a question and two to six answers."""
    draw = random.Random(seed)
    pieces = [cut(length, min(length, 1 + draw.randint(2, 6)), draw) for length in lengths]
    ids = ids_of(lengths, device)
    answers = spread([i for one in pieces for i in range(len(one))], [x for one in pieces for x in one], device)

    def sees(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (q >= k) & (ids[q] == ids[k]) & ((answers[k] == 0) | (answers[q] == answers[k]))

    return MaskCase(masks.shared_question([(one[0], one[1:]) for one in pieces]), sees, device, tensors=(ids, answers))


def global_sliding_window(at: Setting) -> MaskCase:
    side = at.tokens // 16

    def sees(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (q < GLOBALS) | (k < GLOBALS) | ((q - k <= side) & (k - q <= side))

    return MaskCase(masks.global_sliding_window(at.tokens, GLOBALS, side, side), sees, at.device)


def causal_blockwise(at: Setting) -> MaskCase:
    lengths = sample(at.tokens).lengths
    ids, last = ids_of(lengths, at.device), at.tokens - lengths[-1]
    mod: MaskMod = lambda b, h, q, k: ((ids[q] == ids[k]) | (q >= last)) & (q >= k)  # noqa: E731
    return MaskCase(masks.causal_blockwise(lengths), mod, at.device)


def prefix_documents(given: Documents, device: str) -> MaskCase:
    ids = ids_of(given.lengths, device)
    begins = np.cumsum([0, *given.lengths[:-1]])
    prefix_ends = spread([int(b) + p for b, p in zip(begins, given.prefixes, strict=True)], given.lengths, device)
    mod: MaskMod = lambda b, h, q, k: (ids[q] == ids[k]) & ((q >= k) | (k < prefix_ends[k]))  # noqa: E731
    return MaskCase(masks.prefix_lm_document(given.lengths, given.prefixes), mod, device)


def prefix_lm_causal(at: Setting) -> MaskCase:
    prefix = at.tokens // 2
    return MaskCase(masks.prefix_lm_causal(at.tokens, prefix), lambda b, h, q, k: (q >= k) | (k < prefix), at.device)


def qk_sparse(at: Setting) -> MaskCase:
    """Causal, without the scores inside the documents that the sample flags."""
    given = sample(at.tokens)
    ends = np.cumsum(given.lengths).tolist()
    spans = [(e - n, e) for e, n, gone in zip(ends, given.lengths, given.dropped, strict=True) if gone]
    seen_from = spread(
        [e if gone else 0 for e, gone in zip(ends, given.dropped, strict=True)], given.lengths, at.device
    )
    mod: MaskMod = lambda b, h, q, k: (q >= k) & (q >= seen_from[k])  # noqa: E731
    return MaskCase(masks.qk_sparse_segments(at.tokens, spans), mod, at.device)


def evictions(tokens: int, heads: int, seed: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """[heads, tokens]: the row that evicts each key; from the middle on, each row drops one of the remaining keys."""
    draw = np.random.default_rng(seed)
    half = tokens // 2
    evicted_at = np.full((heads, tokens), tokens)
    left = np.tile(np.arange(half + 1), (heads, 1))
    every = np.arange(heads)
    for row in range(half, tokens):
        left[:, half] = row
        chosen = draw.integers(0, half + 1, heads)
        evicted_at[every, left[every, chosen]] = row
        left[every, chosen] = left[:, half]
    return evicted_at


def random_eviction(at: Setting) -> MaskCase:
    """A separate mask for each head of each sequence."""
    rows = evictions(at.tokens, at.batch * at.heads, SEED).reshape(at.batch, at.heads, at.tokens)
    evicted_at = torch.from_numpy(rows).to(at.device, torch.int32)
    stacked = [masks.random_eviction(at.tokens, one) for one in rows]
    mod: MaskMod = lambda b, h, q, k: (q >= k) & (q < evicted_at[b, h, k])  # noqa: E731
    return MaskCase(masks.stack_batch(stacked) if at.batch > 1 else stacked[0], mod, at.device)


def windowed(at: Setting) -> MaskCase:
    """Longformer's window, with the four neighbours on either side that Binary Block Masking was measured with."""
    mask = masks.window(at.tokens, at.tokens, NEIGHBOURS, NEIGHBOURS)
    return MaskCase(mask, lambda b, h, q, k: (q - k).abs() <= NEIGHBOURS, at.device)


def dilated(at: Setting) -> MaskCase:
    mask = masks.dilated_window(at.tokens, at.tokens, NEIGHBOURS, NEIGHBOURS, 2)
    mod: MaskMod = lambda b, h, q, k: ((q - k).abs() <= 2 * NEIGHBOURS) & ((q - k) % 2 == 0)  # noqa: E731
    return MaskCase(mask, mod, at.device)


def global_tokens(at: Setting) -> MaskCase:
    """Global tokens: the first two, and log2(tokens) - 2 drawn at random; the others see a window."""
    drawn = random.Random(SEED).sample(range(2, at.tokens), at.tokens.bit_length() - 3)
    is_global = torch.zeros(at.tokens, dtype=torch.bool)
    is_global[[0, 1, *drawn]] = True
    on_device = is_global.to(at.device)
    mask = masks.global_tokens(at.tokens, [0, 1, *drawn], NEIGHBOURS, NEIGHBOURS)
    mod: MaskMod = lambda b, h, q, k: on_device[q] | on_device[k] | ((q - k).abs() <= NEIGHBOURS)  # noqa: E731
    return MaskCase(mask, mod, at.device, tensors=(on_device,))


def medusa(at: Setting) -> MaskCase:
    """A tree with `parameter` levels of three candidates each; a node sees its ancestors. Padding sees nothing."""
    parents = masks.medusa_parents([3] * at.parameter)
    begin, end = (padded(np.array(values), at) for values in draft_tree(parents, parents.size)[:2])
    mask = masks.medusa_tree([3] * at.parameter, at.tokens)
    return MaskCase(mask, lambda b, h, q, k: (begin[k] <= begin[q]) & (begin[q] < end[k]), at.device)


def medusa_parent(at: Setting) -> MaskCase:
    """The tree of medusa() in which a node sees only itself and its parent, as in Binary Block Masking's code."""
    parents = masks.medusa_parents([3] * at.parameter)
    parent, self = padded(parents, at), padded(np.arange(parents.size), at)
    mask = masks.medusa_tree([3] * at.parameter, at.tokens, sight="parent")
    return MaskCase(mask, lambda b, h, q, k: (k == self[q]) | (k == parent[q]), at.device)


def padded(values: np.ndarray[tuple[int], np.dtype[np.int64]], at: Setting) -> Tensor:
    """Values on the device, one per token; -1 for padding."""
    return torch.from_numpy(np.pad(values, (0, at.tokens - values.size), constant_values=-1)).to(at.device, torch.int32)


def butterfly(at: Setting) -> MaskCase:
    """Keeps one score in `parameter`: a row's own block and three others, or one other where blocks would be too
    small."""
    side = at.tokens // at.parameter // 4
    strides = 3 if side >= BLOCK else 1
    side = max(side, at.tokens // at.parameter // (strides + 1))
    keep = block_maps.butterfly((at.tokens, at.tokens), side, strides)
    own = torch.arange(at.tokens, device=at.device, dtype=torch.int32) // side
    widest = 1 << strides

    def sees(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        other = own[q] ^ own[k]
        return (other < widest) & ((other & (other - 1)) == 0)

    return MaskCase(keep.to_mask(), sees, at.device)


def kept_blocks(at: Setting) -> MaskCase:
    """Keeps one block of 128 × 128 scores in `parameter`, drawn at random, with the same number in each row of
    blocks."""
    side = at.tokens // BLOCK
    draw = np.random.default_rng(SEED)
    keep = draw.random((side, side)).argsort(axis=1) < side // at.parameter
    on_device = torch.from_numpy(keep).to(at.device)
    mask = flashmask.BlockMap((at.tokens, at.tokens), BLOCK, keep).to_mask()
    return MaskCase(mask, lambda b, h, q, k: on_device[q // BLOCK, k // BLOCK], at.device)


MASKS: dict[str, Callable[[Setting], MaskCase]] = {
    "full": full,
    "causal": causal,
    "sliding_window": sliding_window,
    "causal_document": lambda at: causal_documents(sample(at.tokens).lengths, at.device),
    "document": lambda at: documents(sample(at.tokens).lengths, at.device),
    "share_question": lambda at: shared_questions(sample(at.tokens).lengths, at.device),
    "global_sliding_window": global_sliding_window,
    "causal_blockwise": causal_blockwise,
    "prefix_lm_document": lambda at: prefix_documents(sample(at.tokens), at.device),
    "prefix_lm_causal": prefix_lm_causal,
    "qk_sparse": qk_sparse,
    "random_eviction": random_eviction,
    "alpaca": lambda at: causal_documents(alpaca(at.tokens).lengths, at.device),
    "alpaca_short": lambda at: causal_documents(alpaca(at.tokens, "bert_in", "bert_out").lengths, at.device),
    "alpaca_prefix": lambda at: prefix_documents(alpaca(at.tokens, "bert_in", "bert_out"), at.device),
    "equal_documents": lambda at: causal_documents([at.parameter] * (at.tokens // at.parameter), at.device),
    "kept_blocks": kept_blocks,
    "butterfly": butterfly,
    "medusa": medusa,
    "medusa_parent": medusa_parent,
    "windowed": windowed,
    "dilated": dilated,
    "global_tokens": global_tokens,
}
TWELVE = list(MASKS)[:12]
