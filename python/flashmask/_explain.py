# SPDX-License-Identifier: Apache-2.0
"""Explanation: what a mask is and what it costs."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from flashmask._abi import structs as s
from flashmask._abi.library import call
from flashmask._arguments import described, integer

FORMS = ("intervals", "bits")


@dataclass(frozen=True)
class CompiledKernel:
    """A kernel that was compiled for a plan's change of scores."""

    direction: str
    """"forward" or "backward"."""
    name: str
    """Such as "sm80::column_kernel"."""
    origin: str
    """"compiler"; "disk" where an earlier process had compiled it; "memory" where an earlier plan had."""
    seconds: float
    """Until it could be launched: compiling or reading, and loading. 0 from memory."""
    spilled_bytes: int
    """Registers that a thread keeps in memory."""
    compiler: str
    """NVRTC's version and file."""

    def __str__(self) -> str:
        took = "" if self.origin == "memory" else f" in {self.seconds:.3g} s"
        return (
            f"{self.direction} {self.name} from {self.origin}{took}, {self.spilled_bytes} bytes spilled, "
            f"{self.compiler}"
        )


@dataclass(frozen=True)
class Explanation:
    """A mask's form and its costs. Counts are summed over batch entries and mask heads."""

    form: str
    """The lowered form, "intervals" or "bits"."""
    why: str
    """Reason for that form."""
    tile_rows: int
    tile_columns: int
    visible_pairs: int
    density: float
    """Ratio of visible pairs to all pairs."""
    skipped_tiles: int
    partial_tiles: int
    full_tiles: int
    waste: float
    """Ratio of scores in active tiles to visible pairs."""
    empty_rows: int
    """Rows that see nothing."""
    first_empty_rows: tuple[int, ...]
    """The first empty rows of batch entry 0 and mask head 0, at most eight."""
    mask_bytes: int
    schedule_bytes: int
    dense_bytes: int
    """Bytes of the boolean matrix that the mask replaces."""
    compiled: tuple[CompiledKernel, ...] = ()
    """The kernels that were compiled for the change of scores of a plan on a GPU while it was made."""

    @property
    def active_tiles(self) -> int:
        """Tiles that a kernel computes."""
        return self.partial_tiles + self.full_tiles

    @property
    def tiles(self) -> int:
        """All tiles."""
        return self.active_tiles + self.skipped_tiles

    def __str__(self) -> str:
        lines = [
            ("form", f"{self.form}: {self.why}"),
            ("visible", f"{self.visible_pairs:,} pairs, {percent(self.density)}"),
            (
                "tiles",
                f"{self.active_tiles:,} of {self.tiles:,} active ({self.full_tiles:,} full, "
                f"{self.partial_tiles:,} partial) at {self.tile_rows} x {self.tile_columns}",
            ),
            ("waste", f"{self.waste:.2f} scores in active tiles for each visible pair"),
            ("empty rows", self._empty_rows()),
            (
                "memory",
                f"mask {human_bytes(self.mask_bytes)}, schedule {human_bytes(self.schedule_bytes)}; "
                f"as booleans {human_bytes(self.dense_bytes)}",
            ),
            *(("compiled", str(kernel)) for kernel in self.compiled),
        ]
        return "\n".join(f"{name:<10}  {text}" for name, text in lines)

    def _empty_rows(self) -> str:
        if not self.first_empty_rows:
            return f"{self.empty_rows:,}"
        more = ", ..." if self.empty_rows > len(self.first_empty_rows) else ""
        return f"{self.empty_rows:,}: {', '.join(map(str, self.first_empty_rows))}{more}"


def percent(share: float) -> str:
    """Formats a share of 1 as a percentage with about three significant digits."""
    return f"{100 * share:.3g} %" if share < 0.1 else f"{100 * share:.1f} %"


def human_bytes(count: int) -> str:
    """Formats a number of bytes with a unit."""
    if count < 1024:
        return f"{count} bytes"
    value = float(count)
    units = ("KiB", "MiB", "GiB", "TiB", "PiB")
    for unit in units:
        value /= 1024
        if value < 1024 or unit == units[-1]:
            break
    return f"{value:.1f} {unit}"


def tile_shape(tile: object) -> tuple[int, int]:
    """Returns (rows, columns) of a tile, each from 1 to 2^31 - 1."""
    if not isinstance(tile, (tuple, list)) or len(tile) != 2:
        raise TypeError(f"tile is {described(tile)}; expected (rows, columns), such as (128, 128)")
    rows, columns = (integer(f"tile[{axis}]", size, minimum=1, maximum=2**31 - 1) for axis, size in enumerate(tile))
    return rows, columns


def explain(handle: int, why: str, tile: object) -> Explanation:
    """Explains the mask that a C handle holds."""
    rows, columns = tile_shape(tile)
    given = s.Explanation()
    call("mask_explain", handle, rows, columns, ctypes.byref(given))
    return Explanation(
        form=FORMS[given.form],
        why=why,
        tile_rows=given.tile_rows,
        tile_columns=given.tile_columns,
        visible_pairs=given.visible_pairs,
        density=given.density,
        skipped_tiles=given.skipped_tiles,
        partial_tiles=given.partial_tiles,
        full_tiles=given.full_tiles,
        waste=given.waste,
        empty_rows=given.empty_rows,
        first_empty_rows=tuple(given.first_empty_rows[: given.first_empty_row_count]),
        mask_bytes=given.mask_bytes,
        schedule_bytes=given.schedule_bytes,
        dense_bytes=given.dense_bytes,
    )
