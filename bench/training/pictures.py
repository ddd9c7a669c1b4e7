# SPDX-License-Identifier: Apache-2.0
"""Pictures of results."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from training.contestants import CONTESTANTS
from training.memory import GIB
from training.report import Table
from training.results import Measured, Results, RowResult
from training.rows import short

TITLES = {"sft": "SFT", "lora": "LoRA", "dpo": "DPO", "rm": "RM"}
COLOURS = {
    "flashmask": "#1f5fa8",
    "every-tile": "#7fb0de",
    "varlen": "#8e5aa5",
    "varlen3": "#c288c9",
    "varlen4": "#4f2d63",
    "flex": "#d97a1a",
    "dense": "#7a7a7a",
    "eager": "#b33b3b",
}


def pictures(results: Results, folder: Path) -> list[Path]:
    """Draws throughput and memory over length by task, attention over sparsity, and losses, as far as the file has
    them."""
    folder.mkdir(parents=True, exist_ok=True)
    found = dict(sorted(results.tables().items(), key=task_of))
    compared = {name: table for name, table in found.items() if is_compared(name)}
    converging = {name: table for name, table in found.items() if name.startswith("convergence")}
    drawn = []
    if compared:
        throughput, memory, sparsity = (folder / f"train-long-{of}.png" for of in ("throughput", "memory", "sparsity"))
        drawn.append(over_length(compared, throughput, "tokens/s, and times SDPA's", tokens_per_second, ratios=True))
        drawn.append(over_length(compared, memory, "peak on the card, GiB", card))
        drawn.append(over_sparsity(compared, sparsity))
    if converging:
        drawn.append(losses(converging, folder / "train-long-losses.png"))
    return drawn


def task_of(named: tuple[str, Table]) -> int:
    """The position of a table's task among the tasks."""
    row = next(iter(next(iter(named[1].values())).values())).row
    return list(TITLES).index(row["task"])


def is_compared(table: str) -> bool:
    """Whether contestants stand side by side in a table of synthetic samples."""
    return not table.startswith(("record", "convergence")) and not table.endswith("-alpaca")


def tokens_per_second(row: RowResult) -> float:
    return row.tokens_per_second


def card(row: RowResult) -> float:
    return row.peak_card / GIB


def panels(tables: dict[str, Table], unit: str):
    """A figure with one titled panel per table; tasks in the order of the paper."""
    from matplotlib.figure import Figure

    columns = min(2, len(tables))
    rows = -(-len(tables) // columns)
    figure = Figure(figsize=(4.4 * columns, 3.2 * rows + 0.6), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    axes = list(grid.flat)
    for spare in axes[len(tables) :]:
        spare.set_axis_off()
    axes = axes[: len(tables)]
    results = [next(iter(next(iter(table.values())).values())) for table in tables.values()]
    for each, result in zip(axes, results, strict=True):
        row = result.row
        title = f"{TITLES[row['task']]}, {row['shape'].upper()}, {row['layers']} layers"
        each.set_title(title, loc="left", fontsize=10)
        each.grid(alpha=0.3)
    for each in axes[::columns]:
        each.set_ylabel(unit, fontsize=9)
    run = results[0].run
    figure.suptitle(f"{run['device']}, {run['date']}, torch {run['torch']}", x=0.01, ha="left", fontsize=10)
    return figure, axes


def legend(figure, axes) -> None:
    """Draws one legend for all panels, below them."""
    found = {}
    for each in axes:
        found |= {label: handle for handle, label in zip(*each.get_legend_handles_labels(), strict=True)}
    columns = 3 if len(axes) > 1 else 2
    figure.legend(found.values(), found.keys(), loc="outside lower center", ncols=columns, frameon=False, fontsize=8)


def over_length(tables: dict[str, Table], path: Path, unit: str, value, ratios: bool = False) -> Path:
    """The paper's Figures 2 and 7; with `ratios`, FlashMask's points are labelled with how many times SDPA's they
    are."""
    figure, axes = panels(tables, unit)
    for each, table in zip(axes, tables.values(), strict=True):
        for contestant, colour in COLOURS.items():
            points = [
                (tokens, value(row[contestant]))
                for tokens, row in table.items()
                if contestant in row and row[contestant].measured
            ]
            if points:
                each.plot(*zip(*points, strict=True), "o-", color=colour, **of_line(contestant))
        for place, text in beside_dense(table, value) if ratios else ():
            each.annotate(text, place, (0, 6), textcoords="offset points", ha="center", fontsize=8)
        each.set_xscale("log", base=2)
        each.set_xticks(list(table), [short(tokens) for tokens in table])
        each.margins(x=0.08)
        each.set_ylim(0, 1.12 * each.get_ylim()[1])
        each.yaxis.set_major_formatter("{x:,.0f}")
        each.set_xlabel("tokens", fontsize=9)
    legend(figure, axes)
    figure.savefig(path, dpi=110)
    return path


def of_line(contestant: str) -> dict[str, Any]:
    """Line style: FlashMask's line is thin and on top, so that equal lines are all seen."""
    width, size, order = (1.5, 3.5, 3) if contestant == "flashmask" else (2.4, 5, 2)
    return {"linewidth": width, "markersize": size, "zorder": order, "label": CONTESTANTS[contestant].label}


def beside_dense(table: Table, value) -> Iterator[tuple[tuple[int, float], str]]:
    """FlashMask's points, and how many times SDPA's they are."""
    for tokens, row in table.items():
        ours, dense = (row.get(name) for name in ("flashmask", "dense"))
        if ours and dense and ours.measured and dense.measured:
            yield (tokens, value(ours)), f"{value(ours) / value(dense):.1f} ×"


def several(table: Table) -> list[int]:
    """Lengths that have several samples."""
    return [tokens for tokens, row in table.items() if any(len(result.measured) > 1 for result in row.values())]


def over_sparsity(tables: dict[str, Table], path: Path) -> Path:
    """FLOP/s of attention on visible pairs, one dot per sample of the longest sequence that has several."""
    tables = {name: table for name, table in tables.items() if several(table)} or tables
    figure, axes = panels(tables, "attention, TFLOP/s on visible pairs")
    for each, table in zip(axes, tables.values(), strict=True):
        tokens = max(several(table) or table)
        for contestant, result in table[tokens].items():
            if not result.absent:
                x, y = zip(*sorted(map(rate_at_sparsity, result.measured)), strict=True)
                each.plot(x, y, "o-", color=COLOURS[contestant], **of_line(contestant))
        each.set_ylim(0, None)
        each.set_xlabel(f"share of all pairs that nobody sees, {short(tokens)} tokens", fontsize=9)
    legend(figure, axes)
    figure.savefig(path, dpi=110)
    return path


def rate_at_sparsity(sample: Measured) -> tuple[float, float]:
    """Share of pairs that are masked, and TFLOP/s on the others."""
    taken = sample.parts["attention forward"] + sample.parts["attention backward"]
    return sample.sparsity, sample.attention_flops / taken / 1e12


def losses(tables: dict[str, Table], path: Path) -> Path:
    """The paper's Figure 3."""
    figure, axes = panels(tables, "loss")
    widths = {"dense": 5.0, "every-tile": 2.5, "flashmask": 1.0}  # equal curves overlap, and all are seen
    for each, table in zip(axes, tables.values(), strict=True):
        for row in table.values():
            for contestant, width in widths.items():
                given = row[contestant].losses if contestant in row else []
                if given:
                    line = "--" if contestant == "flashmask" else "-"
                    named = {"color": COLOURS[contestant], "label": CONTESTANTS[contestant].label}
                    each.plot(range(1, len(given) + 1), given, line, linewidth=width, **named)
        each.locator_params(axis="x", integer=True)
        each.set_xlabel("step", fontsize=9)
    legend(figure, axes)
    figure.savefig(path, dpi=110)
    return path
