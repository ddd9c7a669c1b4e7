# SPDX-License-Identifier: Apache-2.0
"""The curves that papers on sparse masks draw: time over block sparsity, and memory over length."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

import flashmask
from comparison import clock
from comparison.contestants import CONTESTANTS, of_intervals
from comparison.gpu import DEVICE, Tensors, launch_of
from comparison.masks import SEED, MaskCase, causal_documents, cut, documents, shared_questions
from comparison.workloads import row

TOKENS = 32768
SAMPLES = 16
MOST_DOCUMENTS = 64
CURVES: dict[str, Callable[[Sequence[int], str], MaskCase]] = {
    "causal_document": causal_documents,
    "document": documents,
    "share_question": shared_questions,
}
MEMORY_LENGTHS = [1024 << n for n in range(11)]


def random_lengths(draw: random.Random) -> list[int]:
    """Random lengths of more than eight tokens each, for a log-uniform number of documents."""
    count = round(math.exp(draw.uniform(0, math.log(MOST_DOCUMENTS))))
    return [8 + length for length in cut(TOKENS - 8 * count, count, draw)]


def sparsity(mask: flashmask.Mask) -> float:
    """Share of the 128 × 128 blocks in which nothing is visible."""
    explanation = mask.explain((128, 128))
    return explanation.skipped_tiles / explanation.tiles


def latency(kind: str, direction: str) -> list[dict[str, float]]:
    """Sustained milliseconds over sparsity, for SAMPLES random sets of documents."""
    torch.compiler.reset()
    draw = random.Random(SEED)
    tensors = Tensors(row("curves", kind, TOKENS, ()), direction == "backward")
    first = CURVES[kind](random_lengths(draw), DEVICE)
    points = []
    for _ in range(SAMPLES):
        case = CURVES[kind](random_lengths(draw), DEVICE)
        # FlexAttention is compiled for the first case's tensors, into which the values of the others are copied.
        for held, given in zip(first.tensors, case.tensors, strict=True):
            held.copy_(given)
        points.append(
            {"sparsity": sparsity(case.mask)} | times(replace(case, mask_mod=first.mask_mod), tensors, direction)
        )
    return points


def times(case: MaskCase, tensors: Tensors, direction: str) -> dict[str, float]:
    launches: dict[str, clock.Launch] = {}
    with torch.set_grad_enabled(direction == "backward"):
        for name in ("ours", "flex"):
            inputs, grad_o = tensors.inputs(CONTESTANTS[name].heads_first)
            run = CONTESTANTS[name].prepare(case, *inputs[:2])
            launches[name] = launch_of(run, inputs, grad_o, direction)
            launches[name]()
        return clock.sustained(launches)


def memory() -> list[dict[str, float]]:
    """Bytes of the mask of eight causal documents: ours with its plan, and FlexAttention's four lists of blocks."""
    points: list[dict[str, float]] = []
    for tokens in MEMORY_LENGTHS:
        case = causal_documents([tokens // 8] * 8, DEVICE)
        q = torch.empty(1, tokens, 1, 128, device=DEVICE, dtype=torch.bfloat16)
        points.append({"tokens": tokens, "ours": plan_bytes(case, q), "flex": flex_bytes(tokens), "dense": tokens**2})
    return points


def plan_bytes(case: MaskCase, q: Tensor) -> int:
    assert case.rows is not None  # makes the row indices before memory is counted
    before = torch.cuda.memory_allocated()
    run = of_intervals(case, q, q)  # noqa: F841  holds a copy of the row indices and the plan
    return torch.cuda.memory_allocated() - before


def flex_bytes(tokens: int) -> int:
    blocks = tokens // 128
    return 4 * 4 * (blocks + blocks * blocks)
