# SPDX-License-Identifier: Apache-2.0
"""Partition: which of the ranks that work on one sequence holds which tokens."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from flashmask._abi import structs as s
from flashmask._abi.library import call, create, library
from flashmask._arguments import IntArray, boolean, choice, copied, described, integer, integers, items, pointer
from flashmask._graph_break import breaks_graph
from flashmask._mask import Mask

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flashmask._arguments import Integers

DIVISIONS = ("balanced", "contiguous", "zigzag")


class Prices(NamedTuple):
    """Prices of a tile and a column, in whole numbers, so that all ranks come to the same partition."""

    query_heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    element_bytes: int = 2
    """Bytes of one number in k and v."""
    flops_per_ns: int = 600_000
    """Speed of one rank: 600 TFLOP/s."""
    bytes_per_ns: int = 260
    """Rate at which one rank sends, and receives: 260 GB/s."""
    exchange_ns: int = 80_000
    """Cost of an exchange, however little it carries."""
    node_bytes_per_ns: int = 45
    """Rate at which one rank sends to, and receives from, other nodes, where ranks are on several nodes."""


class PredictedTime(NamedTuple):
    """Predicted time of an attention call, forward and backward, in nanoseconds."""

    attention: int
    """Time that attention takes on the busiest rank."""
    wire: int
    """Time that the rank that sends or receives most spends on it."""
    ideal: int
    """Time of attention if it were shared out evenly and without communication."""


class Partition:
    """Which rank holds which tokens, as query rows and as key columns. Immutable."""

    tokens: int
    ranks: int
    tile: int
    """Side of the square tiles in which work and traffic are counted."""
    aligned: bool
    """Whether all runs begin at multiples of the tile; results are then bit-identical to those of one device."""
    runs: IntArray
    """Runs of all ranks, [count, 3], ascending: begin, end, rank."""
    why: str

    def __init__(self, handle: int) -> None:
        """Takes over a handle of the C ABI; partition() and from_runs() call this, users do not."""
        self._handle = handle
        view = s.PartitionView()
        call("partition_get", handle, ctypes.byref(view))
        self.tokens, self.ranks, self.tile = view.tokens, view.ranks, view.tile
        self.aligned = bool(view.aligned)
        self.runs = copied(view.runs, view.run_count, 3)
        self.why = view.why.decode()

    def __del__(self, destroy: Any = library.flashmask_partition_destroy) -> None:
        if hasattr(self, "_handle"):
            destroy(self._handle)

    @classmethod
    def from_runs(cls, tokens: int, ranks: int, runs: Integers, tile: int = 128) -> Partition:
        """Makes a partition from `runs` [count, 3], (begin, end, rank) in any order, that hold every token once."""
        given = integers("runs", runs, ndim=2)
        if given.shape[1] != 3:
            raise ValueError(f"runs has shape {list(given.shape)}; expected [count, 3]: begin, end, rank")
        return cls(
            create(
                "partition_from_runs",
                integer("tokens", tokens),
                integer("ranks", ranks),
                integer("tile", tile, minimum=1),
                pointer(given),
                len(given),
            )
        )

    def spans(self, rank: int) -> IntArray:
        """Returns the spans of tokens that a rank holds, [count, 2], ascending, as Mask.slice takes them."""
        return self.runs[self.runs[:, 2] == self._rank(rank), :2]

    def length(self, rank: int) -> int:
        """Returns how many tokens a rank holds."""
        begin, end = self.spans(rank).T
        return int((end - begin).sum())

    def needs(self, mask: Mask) -> IntArray:
        """Returns the columns that ranks must fetch, [count, 4] of rank, owner, begin, end, by rank and then by column.

        The sequence is cut at multiples of the tile and at the ends of runs; a piece is fetched whole if any of its
        scores is visible in any batch entry or head of the mask. Neighbouring pieces of one owner are one need.
        """
        handle = create("partition_needs", self._handle, mask._handle)
        try:
            values, count = ctypes.POINTER(ctypes.c_int64)(), ctypes.c_int64()
            call("needs_get", handle, ctypes.byref(values), ctypes.byref(count))
            return copied(values, count.value, 4)
        finally:
            library.flashmask_needs_destroy(handle)

    def local_columns(self, needs: IntArray, rank: int) -> IntArray:
        """Returns the columns that a rank attends to, own and fetched, [count, 2], ascending, for Mask.slice.

        `needs` are those of all ranks, as needs() orders them.
        """
        begin, end = np.searchsorted(needs[:, 0], [self._rank(rank), rank + 1])
        fetched = needs[begin:end, 2:]
        spans = np.concatenate([self.spans(rank), fetched])
        spans = spans[np.argsort(spans[:, 0])]
        if len(spans) == 0:
            return spans
        apart = spans[1:, 0] != spans[:-1, 1]
        return np.stack([spans[np.append(True, apart), 0], spans[np.append(apart, True), 1]], axis=1)

    def loads(self, mask: Mask) -> IntArray:
        """Counts what each rank has to do under a mask, [ranks, 6].

        The columns are: tokens; tiles that the rank's rows visit; row tiles; tiles that visit its columns; columns
        received; columns sent, counted once each time they are sent. Tiles are summed over the mask's batch entries and
        heads.
        """
        loads = np.empty((self.ranks, 6), np.int64)
        call("partition_loads", self._handle, mask._handle, pointer(loads))
        return loads

    def predict(self, mask: Mask, prices: Prices | None = None) -> PredictedTime:
        """Predicts how long an attention call takes under a mask."""
        nanoseconds = np.empty(3, np.int64)
        options = _options("balanced", False, self.tile, prices)
        call("partition_predict", self._handle, mask._handle, ctypes.byref(options), pointer(nanoseconds))
        return PredictedTime(*map(int, nanoseconds))

    def _rank(self, rank: int) -> int:
        return integer("rank", rank, minimum=0, maximum=self.ranks - 1)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Partition):
            return NotImplemented
        ours, theirs = (self.tokens, self.ranks, self.tile), (other.tokens, other.ranks, other.tile)
        return ours == theirs and np.array_equal(self.runs, other.runs)

    def __hash__(self) -> int:
        return hash((self.tokens, self.ranks, self.tile, self.runs.tobytes()))

    def __repr__(self) -> str:
        return (
            f"<flashmask Partition of {self.tokens:,} tokens over {self.ranks:,} ranks, {len(self.runs):,} runs: "
            f"{self.why}>"
        )


@breaks_graph
def partition(
    mask: Mask | Mapping[Mask, int] | Sequence[tuple[Mask, int]],
    ranks: int | Sequence[int],
    division: str = "balanced",
    *,
    aligned: bool = False,
    tile: int = 128,
    prices: Prices | None = None,
) -> Partition:
    """Shares out the tokens of a sequence over ranks: balances tokens and work, with little traffic.

    `mask`: one mask, or pairs (mask, number of layers that have it). `ranks`: how many, or [nodes, ranks per node];
    then rank = node * (ranks per node) + number in the node. `division`: "balanced": the mask decides; "contiguous":
    one run per rank; "zigzag": two runs per rank, one from either end. `aligned`: cut only at tile boundaries, for the
    bits of one device; otherwise also at free cuts, which no column crosses. The result is the same on every machine.
    """
    weighted = _weighted(mask)
    handles = (ctypes.c_void_p * len(weighted))(*(one._handle for one, _ in weighted))
    weights = integers("weights", [layers for _, layers in weighted])
    sizes = list(ranks) if isinstance(ranks, Iterable) else [ranks]
    of_levels = integers("ranks", [integer("ranks", each, minimum=1) for each in sizes])
    options = _options(division, aligned, tile, prices)
    return Partition(
        create(
            "partition_create",
            handles,
            pointer(weights),
            len(weighted),
            pointer(of_levels),
            len(of_levels),
            ctypes.byref(options),
        )
    )


def _weighted(mask: Any) -> list[tuple[Mask, int]]:
    """Returns masks, each with the number of layers that have it."""
    if isinstance(mask, Mask):
        return [(mask, 1)]
    expected = "a Mask, or pairs of a mask and its layers"
    found = items("mask", getattr(mask, "items", lambda: mask)(), expected)
    for pair in found:
        if not (isinstance(pair, (tuple, list)) and len(pair) == 2 and isinstance(pair[0], Mask)):
            raise TypeError(f"mask holds {described(pair)}; expected {expected}")
    return found


def _options(division: str, aligned: bool, tile: int, prices: Prices | None) -> s.PartitionOptions:
    numbers = (integer(name, value, minimum=1) for name, value in (prices or Prices())._asdict().items())
    return s.PartitionOptions(
        choice("division", division, DIVISIONS),
        int(boolean("aligned", aligned)),
        integer("tile", tile, minimum=1),
        *numbers,
    )
