# SPDX-License-Identifier: Apache-2.0
"""Contestants that compute attention in the models that train: this library, and what people use today."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

import flashmask
import flashmask.distributed
from training.batches import Batch
from training.shapes import Shape

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Attention: takes q [1, N, heads, head dim], k and v [1, N, kv heads, head dim]; returns o, shaped like q."""


class Absent(Exception):
    """Why a contestant does not take part."""


@dataclass(frozen=True)
class Contestant:
    """`prepare(batch, q, k)` makes the mask of a batch ready for tensors like q and k, and returns attention under
    it."""

    label: str
    prepare: Callable[[Batch, Tensor, Tensor], Attend]
    repeats: bool = False
    """Whether a question lies before each of its answers, because they cannot share it."""
    everywhere: bool = False
    """Whether every pair of tokens is computed."""
    repeats_bits: bool = False
    """Whether it is asked for the same bits in every run, where a row is about bits."""
    extra: Callable[[Shape, int], int] = lambda shape, tokens: 0
    """Bytes that a mask of so many tokens and attention under it take beside q, k, v, o and their gradients."""
    rate: float = 600e12
    """FLOP/s that it reaches on an H200 on the pairs that it computes, roughly."""

    def pairs(self, batch: Batch) -> int:
        """Pairs that are computed, without the masked pairs in partial tiles at the edges of the mask."""
        if self.everywhere:
            return batch.tokens**2
        if self.repeats:
            return sum(length * (length + 1) // 2 for length in batch.documents)
        return batch.sample.visible_pairs


def skipping(batch: Batch, q: Tensor, k: Tensor) -> Attend:
    """Attends from row indices that are on the device before the first layer; over ranks, from the rank's own."""
    if batch.sharding is not None:
        return partial(_over_ranks, batch.sharding)
    rows = flashmask.RowIndices(batch.startend_row_indices.clone(), causal=True)
    return partial(_flashmask, rows)


def _flashmask(rows: flashmask.RowIndices, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    deterministic = torch.are_deterministic_algorithms_enabled()
    o: Tensor = flashmask.attention(q, k, v, rows, deterministic=deterministic)
    return o


def _over_ranks(sharding: flashmask.distributed.Sharding, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    o: Tensor = flashmask.distributed.attention(q, k, v, sharding)
    return o


def every_tile(batch: Batch, q: Tensor, k: Tensor) -> Attend:
    """FlashMask without skipping, with the same bits: the work that attention under a dense mask has to do."""
    deterministic = torch.are_deterministic_algorithms_enabled()
    plan = flashmask.plan(batch.sample.mask(), q, k, visit="all", deterministic=deterministic)
    return lambda q, k, v: flashmask.attention(q, k, v, plan=plan)


def visible_pairs(batch: Batch) -> Tensor:
    """Booleans [N, N]. Padding sees itself: SDPA has no result for a row that sees nothing."""
    ends = batch.startend_row_indices[0, 0, :, 0]
    places = torch.arange(batch.tokens, device=ends.device)
    visible = (places <= places[:, None]) & (places[:, None] < ends)
    visible.fill_diagonal_(True)
    return visible


def dense(batch: Batch, q: Tensor, k: Tensor) -> Attend:
    """SDPA as Transformers calls it, with key heads repeated: its kernels that take a mask do not take fewer key
    heads."""
    visible, group = visible_pairs(batch)[None, None], q.shape[2] // k.shape[2]

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (each.transpose(1, 2) for each in (q, k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)))
        return scaled_dot_product_attention(q, k, v, attn_mask=visible).transpose(1, 2)

    return attend


def eager(batch: Batch, q: Tensor, k: Tensor) -> Attend:
    """The products and the softmax written out, as in Transformers."""
    added = torch.zeros_like(visible_pairs(batch), dtype=q.dtype).masked_fill_(
        ~visible_pairs(batch), torch.finfo(q.dtype).min
    )
    group = q.shape[2] // k.shape[2]

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (each.transpose(1, 2) for each in (q, k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)))
        scores = q @ k.mT * q.shape[-1] ** -0.5 + added
        return (scores.softmax(-1, dtype=torch.float32).to(q.dtype) @ v).transpose(1, 2)

    return attend


@cache
def _compiled() -> tuple[Any, Any]:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    # A separate sorting kernel would take Triton a minute to compile.
    options = {"triton.persistent_reductions": False}
    return (
        torch.compile(flex_attention, dynamic=False),
        torch.compile(create_block_mask, dynamic=False, options=options),
    )


@cache
def _ends_of(tokens: int, device: torch.device) -> tuple[Tensor, Callable[..., Tensor]]:
    """A buffer [tokens] for the rows where keys end, and the mask that reads it: for another mask function
    FlexAttention would compile again."""
    ends = torch.zeros(tokens, dtype=torch.int32, device=device)

    def visible(b: Tensor, h: Tensor, row: Tensor, column: Tensor) -> Tensor:
        return (column <= row) & (row < ends[column])

    return ends, visible


def flex(batch: Batch, q: Tensor, k: Tensor) -> Attend:
    """FlexAttention, compiled once per length."""
    if q.device.type != "cuda":
        raise Absent("FlexAttention has no backward on a CPU")
    attention, make_mask = _compiled()
    ends, visible = _ends_of(batch.tokens, q.device)
    ends.copy_(batch.startend_row_indices[0, 0, :, 0])
    mask = make_mask(visible, None, None, batch.tokens, batch.tokens, device=q.device)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        o: Tensor = attention(q, k, v, block_mask=mask, enable_gqa=True)
        return o.transpose(1, 2)

    return attend


def of_documents(batch: Batch, q: Tensor, attend: Callable[[list[Tensor], Tensor, int], Tensor]) -> Attend:
    """Attends with `attend`, which takes packed documents: q, k and v [N, heads, head dim], where documents end, and
    the length of the longest. Padding is a document of its own."""
    padding = [batch.tokens - sum(batch.documents)] if batch.tokens > sum(batch.documents) else []
    lengths = torch.tensor([*batch.documents, *padding])
    ends = pad(lengths.cumsum(0), (1, 0)).to(q.device, torch.int32)
    longest = int(lengths.max())
    return lambda q, k, v: attend([q[0], k[0], v[0]], ends, longest)[None]


def varlen(batch: Batch, q: Tensor, k: Tensor) -> Attend:
    """torch's own FlashAttention, which is FlashAttention-2."""
    return of_documents(batch, q, of_torch(q.device))


def of_torch(device: torch.device) -> Callable[[list[Tensor], Tensor, int], Tensor]:
    """torch's causal attention of packed documents, as of_documents() takes it; raises Absent where there is none."""
    attention = _varlen_attention(device)
    grouped = {"enable_gqa": True} if _names_groups(attention) else {}

    def attend(flat: list[Tensor], ends: Tensor, longest: int) -> Tensor:
        o: Tensor = attention(*flat, ends, ends, longest, longest, window_size=(-1, 0), **grouped)
        return o

    return attend


def newer_varlen(module: str, install: str, batch: Batch, q: Tensor, k: Tensor) -> Attend:
    """FlashAttention-3 or 4, from the module that provides it."""
    package = _flash_attention(module, install, q.device)

    def attend(flat: list[Tensor], ends: Tensor, longest: int) -> Tensor:
        where = {"cu_seqlens_q": ends, "cu_seqlens_k": ends, "max_seqlen_q": longest, "max_seqlen_k": longest}
        given = package.flash_attn_varlen_func(*flat, causal=True, **where)
        o: Tensor = given[0] if isinstance(given, tuple) else given
        return o

    return of_documents(batch, q, attend)


def _flash_attention(module: str, install: str, device: torch.device) -> Any:
    try:
        package = importlib.import_module(module)
    except ImportError as error:
        raise Absent(f"not installed: {error}; {install}") from error
    if device.type != "cuda":
        raise Absent(f"{module} runs on a GPU alone")
    return package


def _varlen_attention(device: torch.device) -> Any:
    if device.type != "cuda":
        raise Absent("torch has no FlashAttention for sequences of different lengths on a CPU")
    try:
        return importlib.import_module("torch.nn.attention.varlen").varlen_attn
    except ImportError as error:
        raise Absent(f"torch {torch.__version__} has no torch.nn.attention.varlen") from error


def _names_groups(attention: Any) -> bool:
    """Whether this torch must be told that there are fewer key heads; older versions detect it."""
    import inspect

    return "enable_gqa" in inspect.signature(attention).parameters


def dense_bytes(shape: Shape, tokens: int) -> int:
    """Bytes of the booleans, of what SDPA makes of them in the dtype of q, and of keys and values for every query
    head."""
    return 3 * tokens**2 + 6 * 2 * tokens * shape.heads * shape.head_dim


def eager_bytes(shape: Shape, tokens: int) -> int:
    """Bytes of scores, probabilities in float32 and in the dtype of q, and their gradients."""
    return 14 * tokens**2 * shape.heads + 6 * 2 * tokens * shape.heads * shape.head_dim


def every_tile_bytes(shape: Shape, tokens: int) -> int:
    """Bytes of the mask, and one byte per tile of 128 x 128 scores."""
    return 80 * tokens + tokens**2 // 16384


def varlen_bytes(shape: Shape, tokens: int) -> int:
    """Bytes of the gradients of keys and values for every query head, which are then summed over heads that share
    them."""
    return 2 * 2 * tokens * shape.heads * shape.head_dim


def newer_varlen_bytes(shape: Shape, tokens: int) -> int:
    """Bytes of float32 sums for the gradients of q, k and v."""
    return 4 * tokens * (shape.heads + 2 * shape.kv_heads) * shape.head_dim


def transposed_bytes(shape: Shape, tokens: int) -> int:
    """Bytes of second copies, heads before tokens, of o, its gradient and that of q."""
    return 3 * 2 * tokens * shape.heads * shape.head_dim + 16 * (tokens // 128) ** 2


def newer_flash(number: int, module: str, install: str) -> Contestant:
    """FlashAttention-`number` over documents, from `module`."""
    return Contestant(
        f"FlashAttention-{number}, varlen",
        partial(newer_varlen, module, install),
        repeats=True,
        extra=newer_varlen_bytes,
        rate=550e12,
    )


CONTESTANTS = {
    "flashmask": Contestant("FlashMask", skipping, repeats_bits=True, extra=lambda shape, tokens: 80 * tokens),
    "every-tile": Contestant(
        "FlashMask, every tile", every_tile, everywhere=True, repeats_bits=True, extra=every_tile_bytes
    ),
    "varlen": Contestant("FlashAttention-2, varlen", varlen, repeats=True, extra=varlen_bytes, rate=300e12),
    "varlen3": newer_flash(3, "flash_attn_interface", "it is built from the folder hopper of FlashAttention's sources"),
    "varlen4": newer_flash(4, "flash_attn.cute", "pip install flash-attn-4"),
    "flex": Contestant("FlexAttention", flex, extra=transposed_bytes, rate=360e12),
    "dense": Contestant("SDPA, dense mask", dense, everywhere=True, extra=dense_bytes, rate=280e12),
    "eager": Contestant("eager", eager, everywhere=True, extra=eager_bytes, rate=50e12),
}
