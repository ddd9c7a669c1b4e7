# SPDX-License-Identifier: Apache-2.0
"""Predicates that people give to FlexAttention, restated, and the way in which from_mask_mod() serves each."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

B, H = 2, 3


class Case(NamedTuple):
    mask_mod: Callable[..., Any]
    rows: int
    columns: int
    way: str = "columns"


CASES: dict[str, Callable[[], Case]] = {}


def case(make):
    """Registers a function without arguments that makes a case."""
    CASES[make.__name__.replace("_", " ")] = make
    return make


def documents_of(tokens, count, seed):
    """Numbers of documents and positions in them, [B, tokens] each, of other lengths in each batch entry."""
    generator = torch.Generator().manual_seed(seed)
    cuts = torch.stack(
        [torch.randperm(tokens - 1, generator=generator)[: count - 1].sort().values + 1 for _ in range(B)]
    )
    ids = (torch.arange(tokens) >= cuts[..., None]).sum(1)
    starts = torch.cat([torch.zeros(B, 1, dtype=torch.long), cuts], 1).gather(1, ids)
    return ids, torch.arange(tokens) - starts, starts


N = 150
IDS, POSITIONS, STARTS = documents_of(N, 6, 0)
PADDING = torch.arange(N) < torch.tensor([[N - 7], [N]])
LEFT = torch.tensor([5, 0])
IMAGES = torch.where(IDS % 2 == 1, IDS, -1)


@case
def causal():
    return Case(lambda b, h, q, kv: q >= kv, N, N)


@case
def sliding_window():
    return Case(lambda b, h, q, kv: (q >= kv) & (q - kv < 17), N, N)


@case
def prefix():
    lengths = torch.tensor([13, 40])
    return Case(lambda b, h, q, kv: (kv < lengths[b]) | (q >= kv), N, N)


@case
def queries_behind_a_cache():
    offset = torch.tensor(90)
    return Case(lambda b, h, q, kv: kv <= q + offset, 60, N)


@case
def packed_documents():
    return Case(lambda b, h, q, kv: (IDS[b, q] == IDS[b, kv]) & (q >= kv), N, N)


@case
def documents_by_start():
    return Case(lambda b, h, q, kv: (q >= kv) & (kv >= STARTS[b, q]), N, N)


@case
def documents_by_position_in_them():
    def mask_mod(b, h, q, kv):
        row, column = q - STARTS[b, q], kv - STARTS[b, kv]
        return (IDS[b, q] == IDS[b, kv]) & (row >= column) & (row - column <= 30)

    return Case(mask_mod, N, N)


@case
def position_ids_and_a_window():
    def mask_mod(b, h, q, kv):
        row, column = POSITIONS[b, q], POSITIONS[b, kv]
        return (IDS[b, q] == IDS[b, kv]) & (column <= row) & (column > row - 9)

    return Case(mask_mod, N, N)


@case
def padding():
    return Case(lambda b, h, q, kv: PADDING[b, kv] & (q >= kv), N, N)


@case
def chunks_after_padding_on_the_left():
    def mask_mod(b, h, q, kv):
        same = (q - LEFT[b]) // 16 == (kv - LEFT[b]) // 16
        return same & (q >= kv) & (kv >= LEFT[b])

    return Case(mask_mod, N, N)


@case
def chunks_with_limits():
    def mask_mod(b, h, q, kv):
        distance = q // 12 - kv // 12
        return (distance >= 0) & (distance <= 3) & PADDING[b, q] & PADDING[b, kv]

    return Case(mask_mod, N, N)


@case
def audio_window():
    def mask_mod(b, h, q, kv):
        distance = q - kv
        left = (distance >= 0) & (distance < 21)
        right = (distance < 0) & (-distance < 5)
        return (left | right) & PADDING[b, kv]

    return Case(mask_mod, N, N)


@case
def images_in_causal_text():
    def mask_mod(b, h, q, kv):
        same = (IMAGES[b, q] == IMAGES[b, kv]) & (IMAGES[b, q] >= 0)
        return (q >= kv) | same

    return Case(mask_mod, N, N)


@case
def images_in_text_with_a_window():
    def mask_mod(b, h, q, kv):
        same = (IMAGES[b, q] == IMAGES[b, kv]) & (IMAGES[b, q] != -1)
        return ((q >= kv) & (q - kv < 25)) | same

    return Case(mask_mod, N, N)


@case
def text_and_images_with_noise():
    """BAGEL's: text is causal, splits of images see themselves, and noised ones are seen by themselves alone."""
    split = torch.where(IDS[0] % 3 != 0, IDS[0], -1).float()
    noise = torch.where(IDS[0] % 3 == 2, IDS[0], -1).float()
    sample = (torch.arange(N) >= 80).float()

    def mask_mod(b, h, q, kv):
        within = (split[q] == split[kv]) & (split[q] >= 0)
        clean = ~((noise[kv] >= 0) & (noise[q] != noise[kv]))
        return ((q >= kv) | within) & clean & (sample[q] == sample[kv])

    return Case(mask_mod, N, N)


@case
def answers_that_share_a_prefix():
    prompt, answer = IDS // 3, IDS % 3

    def mask_mod(b, h, q, kv):
        sees = (answer[b, kv] == 0) | (answer[b, q] == answer[b, kv])
        return (prompt[b, q] == prompt[b, kv]) & sees & (q >= kv)

    return Case(mask_mod, N, N)


@case
def trees_by_preorder_and_postorder():
    parents = torch.tensor([max(0, i - 1) if i % 7 else max(0, i - 11) for i in range(N)])
    last = torch.arange(N)  # the last token of each subtree, where tokens lie in preorder
    for i in range(N - 1, 0, -1):
        if parents[i] == i - 1:
            last[i - 1] = max(int(last[i - 1]), int(last[i]))
    return Case(lambda b, h, q, kv: (kv <= q) & (last[kv] >= q), N, N)


FRAME = 10


@case
def frames():
    ends = (torch.arange(N) // (3 * FRAME) + 1) * 3 * FRAME
    return Case(lambda b, h, q, kv: (kv < ends[q]) | (q == kv), N, N)


@case
def frames_within_a_window():
    ends = (torch.arange(N) // FRAME + 1) * FRAME
    return Case(lambda b, h, q, kv: ((kv < ends[q]) & (kv >= ends[q] - 4 * FRAME)) | (q == kv), N, N)


@case
def teacher_forcing_of_frames():
    """Clean frames, then the same ones noised, each of which sees itself and the clean ones before."""
    half = N // 2
    at = torch.arange(N)
    clean_end = torch.where(at < half, (at // FRAME + 1) * FRAME, 0).clamp(max=half)
    context_end = torch.where(at >= half, (at - half) // FRAME * FRAME, 0)
    noise_start = torch.where(at >= half, half + (at - half) // FRAME * FRAME, 0)
    noise_end = torch.where(at >= half, (noise_start + FRAME).clamp(max=N), 0)

    def mask_mod(b, h, q, kv):
        clean = (kv < clean_end[q]) & (q < half)
        context = (q >= half) & (kv < context_end[q])
        own = (q >= half) & (kv >= noise_start[q]) & (kv < noise_end[q])
        return clean | context | own | (q == kv)

    return Case(mask_mod, N, N)


@case
def block_diffusion():
    half, size = N // 2, 8

    def mask_mod(b, h, q, kv):
        clean_q, clean_kv = q >= half, kv >= half
        block_q = torch.where(clean_q, (q - half) // size, q // size)
        block_kv = torch.where(clean_kv, (kv - half) // size, kv // size)
        own = (block_q == block_kv) & (clean_q == clean_kv)
        before = (block_q > block_kv) & clean_kv & (~clean_q)
        causal = (block_q >= block_kv) & clean_kv & clean_q
        return own | before | causal

    return Case(mask_mod, N, N)


@case
def block_diffusion_of_packed_answers():
    half = N // 2
    ids, at, _ = documents_of(half, 4, 1)
    ids, block = ids.repeat(1, 2), (at // 4).repeat(1, 2)

    def mask_mod(b, h, q, kv):
        noised_q, noised_kv = q < half, kv < half
        same = ids[b, q] == ids[b, kv]
        own = noised_q & noised_kv & (block[b, q] == block[b, kv])
        context = ~noised_kv & torch.where(noised_q, block[b, q] > block[b, kv], block[b, q] >= block[b, kv])
        return same & (own | context)

    return Case(mask_mod, N, N, way="rows")


@case
def drafts_on_diagonals():
    """EAGLE-3's: keys of later draft steps are seen by the row of the same token alone."""
    length, tokens = torch.tensor([40, 50]), 50

    def mask_mod(b, h, q, kv):
        causal = (q >= kv) & (kv < length[b]) & (q < length[b])
        later = (kv >= tokens) & (kv % tokens < length[b]) & ((kv - q) % tokens == 0)
        return causal | later

    return Case(mask_mod, tokens, 3 * tokens)


@case
def drafts_at_depths():
    depth, start = torch.arange(N) % 5, torch.arange(N) // 5

    def mask_mod(b, h, q, kv):
        context = (depth[kv] == 0) & (start[kv] <= start[q])
        chain = (start[kv] == start[q]) & (depth[kv] <= depth[q])
        return context | chain

    return Case(mask_mod, N, N)


@case
def blocks_of_drafts_behind_a_context():
    context, size = 100, 5
    anchor = torch.tensor([[7, 20, 21, 33, 40, 61, 62, 80, 90, 99], [0, 3, 5, 20, 31, 41, 52, 62, 71, 100]])

    def mask_mod(b, h, q, kv):
        own = (kv >= context) & ((kv - context) // size == q // size) & (kv - context <= q)
        return ((kv < context) & (kv < anchor[b, q // size])) | own

    return Case(mask_mod, 50, N)


@case
def anchors_with_dropped_blocks():
    context, size = 100, 5
    anchor = torch.tensor([[7, 20, 21, 33, 40, 61, 62, 80, 90, 99], [0, 3, 5, 20, 31, 41, 52, 62, 71, 100]])
    keep = torch.arange(10) % 3 != 1

    def mask_mod(b, h, q, kv):
        block = q // size
        own = (kv >= context) & ((kv - context) // size == block)
        return (((kv < context) & (kv < anchor[b, block])) | own) & keep[block]

    return Case(mask_mod, 50, N, way="rows")


@case
def text_that_looks_at_images():
    intervals = torch.stack([(torch.arange(N) // 40) * 9, (torch.arange(N) // 40) * 9 + 9], 1)

    def mask_mod(b, h, q, kv):
        interval = intervals[q]
        return (kv >= interval[0]) & (kv < interval[1])

    return Case(mask_mod, N, 40)


@case
def global_tokens_and_a_window():
    is_global = torch.arange(N) < torch.tensor([[3], [8]])
    return Case(lambda b, h, q, kv: ((q - kv).abs() <= 12) | is_global[b, q] | is_global[b, kv], N, N)


@case
def a_batch_in_one_row():
    return Case(lambda b, h, q, kv: q // 30 == kv // 20, N, 100)


@case
def pruned_keys():
    kept = torch.rand(H, N, generator=torch.Generator().manual_seed(2)) < 0.6
    return Case(lambda b, h, q, kv: kept[h, kv] & (q >= kv), N, N)


@case
def band_beside_text_and_padding():
    """Sparse VideoGen's: video tokens see a band, text is seen by all and sees all, behind it lies padding."""
    video, end = 110, 140

    def mask_mod(b, h, q, kv):
        band = (torch.abs(q - kv) < 20) & (q < video) & (kv < video)
        text = ((kv >= video) & (kv < end) & (q < end)) | ((q >= video) & (q < end) & (kv < end))
        return band | text | ((q >= end) & (kv >= end))

    return Case(mask_mod, N, N, way="rows")


WIDTH = 12


@case
def neighbourhood_of_an_image():
    def mask_mod(b, h, q, kv):
        x, y = (q % WIDTH).clamp(1, WIDTH - 2), (q // WIDTH).clamp(1, 10)
        return ((x - kv % WIDTH).abs() <= 1) & ((y - kv // WIDTH).abs() <= 1)

    return Case(mask_mod, 12 * WIDTH, 12 * WIDTH, way="rows")


@case
def tiles_that_slide():
    tile = 4

    def mask_mod(b, h, q, kv):
        x, y = q % WIDTH // tile, q // WIDTH // tile
        return ((x - kv % WIDTH // tile).abs() <= 0) & ((y - kv // WIDTH // tile).abs() <= 1)

    return Case(mask_mod, 12 * WIDTH, 12 * WIDTH, way="rows")


@case
def dilated_window():
    return Case(lambda b, h, q, kv: (q >= kv) & (q - kv < 60) & ((q - kv) % 3 == 0), N, N, way="evaluated bits")


@case
def matrix_of_a_tree():
    generator = torch.Generator().manual_seed(3)
    up = torch.eye(N, dtype=torch.bool)
    for i in range(1, N):
        up[i] |= up[int(torch.randint(0, i, (), generator=generator))]
    return Case(lambda b, h, q, kv: up[q, kv], N, N, way="evaluated bits")


@case
def adjacency_of_a_graph():
    adjacency = torch.rand(B, N, N, generator=torch.Generator().manual_seed(4)) < 0.05
    return Case(lambda b, h, q, kv: adjacency[b, q, kv] | (q == kv), N, N, way="evaluated bits")
