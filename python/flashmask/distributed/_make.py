# SPDX-License-Identifier: Apache-2.0
"""Making a sharding, identically on every rank, from masks and options: who holds what, the scheme, the rank's part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from flashmask import masks as builders
from flashmask._abi import header
from flashmask._abi.library import version
from flashmask._abi.problem import make_problem
from flashmask._arguments import IntArray, described, integer, length
from flashmask._mask import Mask
from flashmask._partition import Partition, Prices
from flashmask._partition import partition as make_partition
from flashmask._plans.tile_sizes import TILES, tile_sizes
from flashmask._rows import RowIndices
from flashmask._torch.packing import check_ends
from flashmask.distributed._exchange import Exchange
from flashmask.distributed._group import Group, digest
from flashmask.distributed._local import Local
from flashmask.distributed._runs import Runs, union

MAIN = "mask"
"""The name of the mask that is the first argument of shard()."""
_MOST_TILES = 1024
"""Number of row tiles up to which _viewers() looks at each alone; for more it joins tiles into larger pieces."""


class Options(NamedTuple):
    """The arguments of shard() besides masks and the group, the same on all ranks."""

    query_heads: int
    kv_heads: int
    head_dim: int
    scheme: str
    partition: str | Partition
    aligned: bool
    deterministic: bool
    gradients: str
    keep_fetched: bool
    head_groups: int


# ---- masks ----


def masks_of(mask: Any, masks: Mapping[str, Any], tokens: int | None) -> dict[str, Mask]:
    """Returns all masks of a sharding by name, made from whatever shard() accepts as a mask."""
    if tokens is not None:
        length("tokens", tokens)
    _check_names("masks", masks)
    if MAIN in masks:
        raise ValueError(
            f"masks has one called {MAIN!r}, which is the name of the first argument; expected another name"
        )
    found = {MAIN: _mask_of(mask, tokens)}
    for name, each in masks.items():
        found[name] = _mask_of(each, found[MAIN].shape.rows)
    for name, each in found.items():
        if each.shape.rows != each.shape.columns or each.shape.rows != found[MAIN].shape.rows:
            raise ValueError(
                f"the mask {name!r} has {each.shape.rows} rows and {each.shape.columns} columns; expected as many of "
                "each, the tokens of one sequence, in all masks: attention across sequences is not sharded"
            )
    if tokens not in (None, found[MAIN].shape.rows):
        raise ValueError(f"tokens is {tokens}, but the mask has {found[MAIN].shape.rows} rows; leave tokens out")
    return found


def _check_names(name: str, given: object) -> None:
    if not isinstance(given, Mapping):
        raise TypeError(f"{name} is {described(given)}; expected a dict by the names of masks")


def _mask_of(given: Any, tokens: int | None) -> Mask:
    if isinstance(given, Mask):
        return given
    if isinstance(given, RowIndices):
        return given.to_mask()
    if callable(given):
        return _mask_of(given(), tokens)
    if given is None:
        if tokens is None:
            raise ValueError("mask is None and so is tokens; expected the number of tokens of the sequence")
        return builders.full(tokens, tokens)
    try:
        ends = torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError):
        ends = torch.empty(0)
    if ends.ndim != 1 or ends.is_floating_point() or ends.dtype is torch.bool or not ends.numel():
        raise TypeError(f"mask is {described(given)}; expected a Mask, RowIndices, cumulative lengths or None")
    ends = ends.cpu()
    tokens = int(ends[-1]) if tokens is None else tokens
    check_ends("mask", ends, tokens)
    return builders.from_cu_seqlens(ends, tokens).to_mask()


def weights_of(masks: Mapping[str, Mask], weights: Mapping[str, int]) -> list[int]:
    """Returns how many layers each mask has, in the order of the masks."""
    _check_names("weights", weights)
    for name in weights:
        if name not in masks:
            raise ValueError(f"weights has {name!r}; expected names of masks: {', '.join(masks)}")
    return [integer(f"weights[{name!r}]", weights.get(name, 1), minimum=1) for name in masks]


# ---- what every rank derives identically ----


class Made(NamedTuple):
    """A sharding without its group."""

    masks: dict[str, Mask]
    partition: Partition
    scheme: str
    runs: list[Runs]
    locals: dict[str, Local]
    fields: dict[str, bytes]
    """Digests of what must be the same on all ranks, by the name of what was digested."""


def make(masks: dict[str, Mask], weights: list[int], group: Group, options: Options) -> Made:
    """Makes a sharding: a pure function of masks and options, except for the rank in `group`."""
    _check_heads(masks, options)
    tokens, ranks = masks[MAIN].shape.rows, group.size
    tile = tile_of(group.device.type, options.head_dim)
    partition = _partition_of(masks, weights, ranks, tile, options)
    needs = {name: partition.needs(mask) for name, mask in masks.items()}
    scheme = _scheme_of(masks, ranks, options, _remote(list(needs.values()), weights, ranks, tokens))
    if scheme == "heads" and options.partition == "balanced":  # heads already divide the work
        partition = _partition_of(masks, weights, ranks, tile, options._replace(partition="contiguous"))
    runs = [runs_of(partition.spans(rank)) for rank in range(ranks)]
    fields = {
        "the versions of flashmask": digest(version().encode()),
        "the numbers of tokens": digest(str(tokens).encode()),
        "the names and weights of the masks": digest(f"{list(masks)} {weights}".encode()),
        "the masks": digest(*(mask.tensor[header.HEADER_BYTES :] for mask in masks.values())),
        "the options": digest(repr(options._replace(partition="")).encode()),
        "the partitions": digest(repr((scheme, runs)).encode()),
    }
    agreed = digest(*fields.values()).hex()
    locals_ = {}
    for name, mask in masks.items():
        whole = Local(
            scheme=scheme,
            rank=group.rank,
            ranks=ranks,
            tokens=tokens,
            runs=runs,
            heads=(options.query_heads, options.kv_heads),
            head_groups=options.head_groups,
            keeps=False,
            agreed=f"{agreed} {name}",
            mask=mask,
        )
        if scheme == "heads":
            locals_[name] = _by_heads(whole)
        else:
            tiles = _tiles(mask, group, options) if partition.aligned else (0, 0)
            locals_[name] = _by_rows(replace(whole, tiles=tiles), partition, needs[name], options)
    return Made(masks, partition, scheme, runs, locals_, fields)


def _check_heads(masks: Mapping[str, Mask], options: Options) -> None:
    heads, kv_heads = options.query_heads, options.kv_heads
    if heads % kv_heads:
        raise ValueError(f"query_heads is {heads} and kv_heads {kv_heads}; expected a multiple of kv_heads")
    if kv_heads % options.head_groups:
        raise ValueError(f"head_groups is {options.head_groups}; expected a divisor of {kv_heads}, kv_heads")
    if options.head_groups > 1 and options.keep_fetched:
        raise ValueError("head_groups saves the memory that keep_fetched takes; expected one of them")
    for name, mask in masks.items():
        if mask.shape.heads not in (1, kv_heads, heads):
            raise ValueError(
                f"the mask {name!r} has {mask.shape.heads} heads; expected 1, {kv_heads} or {heads}, those of k or q"
            )
        if options.head_groups > 1 and mask.shape.heads > 1:
            raise ValueError(
                f"head_groups is {options.head_groups}, and the mask {name!r} has heads of its own; leave it"
            )


def _partition_of(
    masks: Mapping[str, Mask], weights: Sequence[int], ranks: int, tile: int, options: Options
) -> Partition:
    given = options.partition
    if isinstance(given, str):
        weighted = list(zip(masks.values(), weights, strict=True))
        prices = Prices(options.query_heads, options.kv_heads, options.head_dim)
        return make_partition(weighted, ranks, given, aligned=options.aligned, tile=tile, prices=prices)
    tokens = masks[MAIN].shape.rows
    if (given.tokens, given.ranks) != (tokens, ranks):
        raise ValueError(
            f"partition is of {given.tokens} tokens over {given.ranks} ranks; expected {tokens} tokens over {ranks}"
        )
    return given


def _remote(needs: Sequence[IntArray], weights: Sequence[int], ranks: int, tokens: int) -> float:
    """Returns the most tokens that any rank receives or sends, divided by all tokens; a mean over layers."""
    moved = np.zeros((2, ranks))
    for each, weight in zip(needs, weights, strict=True):
        for side in (0, 1):
            np.add.at(moved[side], each[:, side], weight * (each[:, 3] - each[:, 2]))
    return float(moved.max()) / max(1, sum(weights) * tokens)


def _scheme_of(masks: Mapping[str, Mask], ranks: int, options: Options, remote: float) -> str:
    refusal = _why_not_heads(masks, ranks, options)
    if options.scheme == "heads" and refusal:
        raise ValueError(f'scheme="heads": {refusal}; use scheme="rows"')
    if options.scheme != "auto":
        return options.scheme
    heads, kv_heads = options.query_heads, options.kv_heads
    moved_by_heads = (heads + kv_heads) / (2 * kv_heads) * (ranks - 1) / ranks**2
    return "rows" if refusal or ranks == 1 or remote <= moved_by_heads else "heads"


def _why_not_heads(masks: Mapping[str, Mask], ranks: int, options: Options) -> str:
    if options.kv_heads % ranks:
        return f"{options.kv_heads} key heads cannot be shared out over {ranks} ranks evenly"
    for name, mask in masks.items():
        if mask.shape.heads > 1 and mask.form == "bits":
            return f"the mask {name!r} is held as bits and has heads of its own"
    if options.keep_fetched or options.head_groups > 1:
        return f"{'keep_fetched' if options.keep_fetched else 'head_groups'} is for fetched keys"
    return ""


# ---- a rank's part of a mask ----


def _by_rows(whole: Local, partition: Partition, needs: IntArray, options: Options) -> Local:
    if whole.ranks == 1:
        return whole
    rank, runs, mask = whole.rank, whole.runs, whole.mask
    wanted = [runs_of(partition.local_columns(needs, of)) for of in range(whole.ranks)]
    columns = Exchange.of(rank, runs, wanted)
    keeps = options.keep_fetched and not columns.silent
    local = replace(whole, mask=mask.slice(runs[rank], wanted[rank]), columns=columns, keeps=keeps)
    if options.gradients != "owner" or columns.silent:  # if silent, only a rank's own rows see its keys
        return local
    viewers = _viewers(partition, mask)
    owners_mask = mask.slice(viewers[rank], runs[rank])
    return replace(local, owners_mask=owners_mask, owners_rows=Exchange.of(rank, runs, viewers))


def _tiles(mask: Mask, group: Group, options: Options) -> tuple[int, int]:
    """Returns the tile sizes that one GPU would use for all rows, in kernels that have two."""
    if group.size == 1 or group.device.type == "cpu":
        return 0, 0
    batch, _, tokens, _ = mask.shape
    of_keys = batch, tokens, options.kv_heads, options.head_dim
    shapes = (batch, tokens, options.query_heads, options.head_dim), of_keys, of_keys
    problem = make_problem(shapes, "bfloat16", None, 0.0)._replace(device=str(group.device))
    forward, backward = tile_sizes(mask, problem, header.Options(deterministic=int(options.deterministic)))
    return TILES.index(forward), TILES.index(backward)


def runs_of(spans: IntArray) -> Runs:
    """Returns spans as a list of pairs."""
    return [(begin, end) for begin, end in spans.tolist()]


def _viewers(partition: Partition, mask: Mask) -> list[Runs]:
    """Returns the rows that see each rank's keys: asks what each piece of rows would need as a rank of its own."""
    unit = partition.tile * max(1, partition.tokens // (partition.tile * _MOST_TILES))
    pieces = [
        (at, min(at + unit, end), rank)
        for begin, end, rank in partition.runs.tolist()
        for at in range(begin, end, unit)
    ]
    alone = [(begin, end, number) for number, (begin, end, _) in enumerate(pieces)]
    needs = Partition.from_runs(partition.tokens, len(pieces), alone, partition.tile).needs(mask)
    holders = np.array([rank for *_, rank in pieces], np.int64)
    rows: list[list[tuple[int, int]]] = [[] for _ in range(partition.ranks)]
    for row, owner in np.unique(np.stack([needs[:, 0], holders[needs[:, 1]]], axis=1), axis=0).tolist():
        rows[owner].append(pieces[row][:2])
    return [union(runs_of(partition.spans(rank)), seen) for rank, seen in enumerate(rows)]


def _by_heads(whole: Local) -> Local:
    """Returns `whole` with the mask of the rank's share of the heads."""
    mask, heads = whole.mask, whole.mask.shape.heads
    if heads == 1 or whole.ranks == 1:
        return whole
    values, causal = mask.to_startend_row_indices()
    own = values[:, whole.rank * heads // whole.ranks : (whole.rank + 1) * heads // whole.ranks]
    return replace(whole, mask=builders.from_startend_row_indices(own, causal=causal, rows=mask.shape.rows))


def tile_of(device: str, head_dim: int) -> int:
    """Returns a multiple of all kernels' tile sides: at some head dims GPU kernels have 192 rows, or 96 columns."""
    return 384 if device == "cuda" and (head_dim <= 64 or 128 < head_dim <= 192) else 128
