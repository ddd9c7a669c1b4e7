# SPDX-License-Identifier: Apache-2.0
"""The rows of the tables: which mask, on tensors of which size, and who takes part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch

from comparison.masks import TWELVE

TOKENS = 131072
HIDDEN = 4096
LENGTHS = (8192, 32768, 131072)
PEERS = ("flash3", "xformers3", "flash4", "flex4", "cudnnflex", "flashmask3")
REPEATABLE = ("repeatable",)
"""Take part in the backward alone: a forward is always deterministic."""
DENSITIES = [32768 >> n for n in range(9)]
SHARES = [1, 2, 4, 8, 16, 32, 64]
PAPER_LENGTHS = {4096: 7, 16384: 8}
"""Lengths that Binary Block Masking was evaluated at, with the levels of the largest tree that fits: three candidates
per level."""


@dataclass(frozen=True)
class Workload:
    """One row. The other contestants are compared with the first."""

    table: str
    name: str
    mask: str
    tokens: int
    batch: int
    heads: int
    kv_heads: int
    head_dim: int
    contestants: tuple[str, ...]
    parameter: int = 0

    @property
    def id(self) -> str:
        return f"{self.table}/{self.name}"

    def contestants_of(self, direction: str) -> list[str]:
        return [name for name in self.contestants if direction == "backward" or name not in REPEATABLE]


def short(tokens: int) -> str:
    return f"{tokens // 1024}K" if tokens < 1024**2 else f"{tokens // 1024**2}M"


def row(
    table: str,
    mask: str,
    tokens: int,
    contestants: tuple[str, ...],
    *,
    all_tokens: int = TOKENS,
    head_dim: int = 128,
    heads: int = 0,
    kv_heads: int = 0,
    parameter: int = 0,
    note: str = "",
) -> Workload:
    heads = heads or HIDDEN // head_dim
    name = "/".join(filter(None, (mask, short(tokens), note)))
    batch = all_tokens // tokens
    return Workload(
        table, name, mask, tokens, batch, heads, kv_heads or heads, head_dim, contestants, parameter=parameter
    )


def of_papers() -> Iterator[Workload]:
    """Binary Block Masking's masks on its 4 × 32 heads of 64, and block-sparse FlashAttention's on 4 × 32 heads of
    128."""
    for tokens, levels in reversed(PAPER_LENGTHS.items()):
        for mask in (
            "alpaca_short",
            "alpaca_prefix",
            "medusa",
            "medusa_parent",
            "windowed",
            "dilated",
            "global_tokens",
        ):
            tree = mask.startswith("medusa")  # padding sees nothing, for which SDPA has no result
            yield row(
                "papers",
                mask,
                tokens,
                ("ours", "flex") if tree else ("ours", "flex", "dense"),
                all_tokens=4 * tokens,
                head_dim=64,
                heads=32,
                parameter=levels if tree else 0,
            )
    for mask in ("butterfly", "kept_blocks"):
        for share in SHARES[1:]:
            contestants = ("ours", "flex", "dense")
            yield row("papers", mask, 16384, contestants, all_tokens=65536, parameter=share, note=f"1 in {share}")


def peers_of(mask: str, tokens: int) -> tuple[str, ...]:
    if mask in ("full", "causal"):
        return ("ours", "flex", "cudnn", *(("flash2",) if tokens == LENGTHS[0] else ()), *PEERS, *REPEATABLE)
    return ("ours", "flex", *(("dense",) if tokens == LENGTHS[0] else ()), *PEERS, *REPEATABLE)


def all_workloads() -> list[Workload]:
    """All workloads, in the order in which a call measures them until its minutes are over."""
    square = ("ours", "cudnn", *PEERS)
    packed = ("ours", "flex", "dense", "varlen", *PEERS)
    rows = [row("twelve", mask, tokens, peers_of(mask, tokens)) for tokens in LENGTHS for mask in TWELVE]
    for head_dim in (64, 256):
        for mask in ("full", "causal"):
            rows += [row(f"d{head_dim}", mask, tokens, (*square, "flash2"), head_dim=head_dim) for tokens in LENGTHS]
    for mask in ("full", "causal"):  # for heads of 512 PyTorch has no other kernel
        rows += [row("d512", mask, tokens, ("ours", "efficient"), head_dim=512) for tokens in LENGTHS[:2]]
    rows += [
        row("packed", "alpaca", TOKENS, ("ours", "flex", "varlen", *PEERS)),
        row("packed", "alpaca_short", 16384, packed),
        row("packed", "alpaca_prefix", 16384, packed),
    ]
    rows += [row("grouped", "causal", tokens, square, heads=32, kv_heads=8) for tokens in LENGTHS]
    rows += [
        row("long", "equal_documents", tokens, ("ours",), all_tokens=tokens, heads=8, parameter=4096)
        for tokens in (131072, 1048576)
    ]
    rows += [row("bits", mask, tokens, ("ours", "bits")) for tokens in LENGTHS[:2] for mask in TWELVE[:-1]]
    rows += [
        row("dense", mask, 16384, ("ours", "bits"), all_tokens=65536, head_dim=64, heads=32)
        for mask in ("full", "alpaca_prefix")
    ]
    rows += [
        row("documents", "equal_documents", 32768, ("ours",), parameter=length, note=str(length))
        for length in DENSITIES
    ]
    rows += [row("blocks", "kept_blocks", 32768, ("ours",), parameter=share, note=f"1 in {share}") for share in SHARES]
    return [*rows, *of_papers()]


def chosen(patterns: list[str]) -> list[Workload]:
    """The workloads whose name or table fits a pattern with wildcards. Throws ValueError for a pattern that fits
    none."""
    found = all_workloads()
    for pattern in patterns:
        if not any(fits(workload, pattern) for workload in found):
            tables = sorted({workload.table for workload in found})
            raise ValueError(f"no row fits {pattern!r}; tables are {', '.join(tables)}, rows such as {found[0].id}")
    return [workload for workload in found if not patterns or any(fits(workload, p) for p in patterns)]


def fits(workload: Workload, pattern: str) -> bool:
    return fnmatch(workload.id, pattern) or workload.table == pattern


def among(workload: Workload, names: Sequence[str]) -> Workload:
    """The workload with only the contestants of these names; without names, with all of them."""
    return replace(workload, contestants=tuple(c for c in workload.contestants if c in names or not names))
