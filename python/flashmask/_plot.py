# SPDX-License-Identifier: Apache-2.0
"""Pictures of masks, with matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from flashmask._arguments import AnyArray, described
from flashmask._explain import percent, tile_shape

if TYPE_CHECKING:
    from os import PathLike

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from flashmask._mask import Mask

FULL, PARTIAL, HIDDEN, SKIPPED = "#1f6f8b", "#e8893b", "#fbe3cb", "#eef0f2"
"""Colours of a full tile, of the visible and the masked scores of a partial tile, and of a skipped tile."""
LINE, TEXT = "#ffffff", "#30363d"

_LARGEST_OF_SCORES = 2048
_BLOCKS = 1024
_LINES = 64
_LONGEST_SIDE = 6.0


class _Picture(NamedTuple):
    """Colours [rows, columns, 3] of scores, or of blocks of them, and what the colours mean."""

    colours: AnyArray
    cell: tuple[int, int]
    """Scores (rows, columns) that share one colour."""
    tile: tuple[int, int]
    """Shape (rows, columns) of the tiles whose kind the colours show."""
    of_scores: bool
    active: int
    """Tiles that hold visible scores."""
    density: float | None
    """Share of visible scores, where it was counted."""


def plot(
    mask: Mask,
    path: str | PathLike[str] | None,
    batch: int,
    head: int,
    tile: tuple[int, int] | None,
    title: str | None,
    ax: Axes | None,
) -> Figure:
    """See Mask.plot."""
    figure_of, rgb = _matplotlib()
    shape = mask.shape
    if tile is not None:
        tile = tile_shape(tile)
    if title is not None and not isinstance(title, str):
        raise TypeError(f"title is {described(title)}; expected a text")
    if 0 in shape:
        raise ValueError(f"the mask has shape {list(shape)}; expected at least one score to plot")
    picture = _picture(mask, batch, head, tile, rgb)
    if ax is None:
        ax = figure_of(_figure_size(shape.rows, shape.columns))
        _legend(ax, picture)
    _paint(ax, picture, shape.rows, shape.columns)
    ax.set_title(
        _title(mask, picture, batch, head) if title is None else title, fontsize=10, color=TEXT, loc="left", pad=8
    )
    figure: Figure = ax.figure  # type: ignore[assignment]
    if path is not None:
        figure.savefig(path, dpi=150)
    return figure


def _matplotlib() -> tuple[Any, Any]:
    """Returns functions that make axes in a figure of a size, and RGB from a colour; neither touches pyplot's state."""
    try:
        from matplotlib.colors import to_rgb
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError(
            "Mask.plot draws with matplotlib, which is not installed: pip install 'flashmask[plot]'; print(mask) draws "
            "with characters"
        ) from None

    def axes(size: tuple[float, float]) -> Axes:
        return Figure(figsize=size, layout="constrained").subplots()

    return axes, to_rgb


def _kinds(mask: Mask, batch: int, head: int, width: int) -> AnyArray:
    """Returns what draw() shows, uint8 [rows, columns]: 2 all visible, 1 some, 0 none."""
    lines = mask.draw(batch, head, width).encode().split()
    symbols = np.frombuffer(b"".join(lines), np.uint8).reshape(len(lines), -1)
    return np.where(symbols == ord("#"), 2, np.where(symbols == ord("+"), 1, 0)).astype(np.uint8)


def _picture(mask: Mask, batch: int, head: int, tile: tuple[int, int] | None, rgb: Any) -> _Picture:
    """Colours single scores where they fit the picture, else blocks, without rows * columns booleans."""
    _, _, rows, columns = mask.shape
    longest = max(rows, columns)
    if longest > _LARGEST_OF_SCORES:
        blocks = _kinds(mask, batch, head, _BLOCKS)
        cell = (-(-rows // _BLOCKS), -(-columns // _BLOCKS))
        if tile is not None:
            raise ValueError(
                f"tile is {tile}, but a mask of {longest:,} tokens is painted in blocks of {cell}; drop it"
            )
        palette = _palette(rgb, SKIPPED, PARTIAL, FULL)
        return _Picture(palette[blocks], cell, cell, False, int(np.count_nonzero(blocks)), None)
    seen = _kinds(mask, batch, head, longest) == 2
    tile = tile or (min(128, -(-rows // 8)), min(128, -(-columns // 8)))
    tiles = _tile_kinds(seen, tile)
    kinds = np.repeat(np.repeat(tiles, tile[0], axis=0), tile[1], axis=1)[:rows, :columns]
    palette = _palette(rgb, SKIPPED, HIDDEN, FULL, PARTIAL)
    colours = palette[np.where((kinds == 1) & seen, 3, kinds)]
    return _Picture(colours, (1, 1), tile, True, int(np.count_nonzero(tiles)), float(seen.mean()))


def _palette(rgb: Any, *colours: str) -> AnyArray:
    """Returns colours as uint8 [colours, 3]."""
    palette: AnyArray = np.rint(np.array([rgb(colour) for colour in colours]) * 255).astype(np.uint8)
    return palette


def _tile_kinds(seen: AnyArray, tile: tuple[int, int]) -> AnyArray:
    """Classifies the tiles of booleans [rows, columns]: 2 full, 1 partial, 0 skipped, [row tiles, column tiles]."""
    starts = [np.arange(0, size, side) for size, side in zip(seen.shape, tile, strict=True)]
    any_seen = np.logical_or.reduceat(np.logical_or.reduceat(seen, starts[0], axis=0), starts[1], axis=1)
    all_seen = np.logical_and.reduceat(np.logical_and.reduceat(seen, starts[0], axis=0), starts[1], axis=1)
    return any_seen.astype(np.uint8) + all_seen


def _figure_size(rows: int, columns: int) -> tuple[float, float]:
    """Returns inches; a narrow mask keeps a readable side, and there is room for title and legend."""
    longest = max(rows, columns)
    width, height = (max(_LONGEST_SIDE * size / longest, _LONGEST_SIDE / 4) for size in (columns, rows))
    return max(width, 4.5) + 0.6, height + 1.1


def _paint(ax: Axes, picture: _Picture, rows: int, columns: int) -> None:
    narrow = max(rows, columns) > 4 * min(rows, columns)
    height, width = picture.colours.shape[:2]
    edges = (0, width * picture.cell[1], height * picture.cell[0], 0)
    ax.imshow(picture.colours, extent=edges, interpolation="nearest", aspect="auto" if narrow else "equal")
    ax.set_xlim(0, columns)
    ax.set_ylim(rows, 0)
    tile_rows, tile_columns = picture.tile
    if picture.of_scores and max(rows / tile_rows, columns / tile_columns) <= _LINES:
        ax.vlines(np.arange(tile_columns, columns, tile_columns), 0, rows, color=LINE, linewidth=0.8)
        ax.hlines(np.arange(tile_rows, rows, tile_rows), 0, columns, color=LINE, linewidth=0.8)
    ax.set_xlabel("key", color=TEXT)
    ax.set_ylabel("query", color=TEXT)
    ax.tick_params(colors=TEXT, length=3, labelsize=8)
    ax.locator_params(integer=True)
    for spine in ax.spines.values():
        spine.set_visible(False)


def _legend(ax: Axes, picture: _Picture) -> None:
    from matplotlib.patches import Patch

    kind = "tile" if picture.of_scores else "block"
    patches = [Patch(color=FULL, label=f"full {kind}"), Patch(color=PARTIAL, label=f"partial {kind}")]
    if picture.of_scores:
        patches[1].set_label("visible in a partial tile")
        patches.append(Patch(color=HIDDEN, label="masked in it"))
    patches.append(Patch(facecolor=SKIPPED, edgecolor="#d0d4d8", linewidth=0.5, label=f"skipped {kind}"))
    ax.figure.legend(
        handles=patches,
        loc="outside lower center",
        ncols=len(patches),
        frameon=False,
        fontsize=8,
        labelcolor=TEXT,
        handlelength=1,
        handleheight=1,
        columnspacing=1.2,
    )


def _title(mask: Mask, picture: _Picture, batch: int, head: int) -> str:
    shape = mask.shape
    density = picture.density
    if density is None and shape.batch * shape.heads == 1:
        density = mask.explain(picture.tile).density
    which = "" if shape.batch * shape.heads == 1 else f"batch entry {batch}, head {head}: "
    visible = "" if density is None else f", {percent(density)} visible"
    kind = "tiles" if picture.of_scores else "blocks"
    tiles = -(-shape.rows // picture.tile[0]) * -(-shape.columns // picture.tile[1])
    return (
        f"{which}{shape.rows:,} queries, {shape.columns:,} keys{visible}\n"
        f"{picture.active:,} of {tiles:,} {kind} of {picture.tile[0]} x {picture.tile[1]} active"
    )
