"""Tables and pictures of results."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from training.contestants import CONTESTANTS
from training.memory import GIB
from training.results import PARTS, Results, RowResult
from training.rows import short
from training.shapes import SHAPES

PEAK = 989e12
"""bfloat16 FLOP/s that NVIDIA states of an H100 or H200."""
TITLES = {"sft": "SFT", "lora": "LoRA", "dpo": "DPO", "rm": "RM"}
COLOURS = {
    "flashmask": "#1f5fa8",
    "every-tile": "#7fb0de",
    "varlen": "#8e5aa5",
    "flex": "#d97a1a",
    "dense": "#7a7a7a",
    "eager": "#b33b3b",
}
FURTHEST = {"loss": 0.02, "gradient_norm": 0.05}
"""Two contestants may be from each other, relative, in bfloat16 after a step that warmed up."""
COLUMNS = (
    "tokens",
    "contestant",
    "s a step",
    "tokens/s",
    "beside FlashMask",
    "of it linear, attention forward, backward, loss, copies, s",
    "attention, TFLOP/s",
    "its time, of alone",
    "model and hardware, TFLOP/s",
    "model, of 989",
    "card, GiB",
    "host, GiB",
    "mask",
)
Table = dict[int, dict[str, RowResult]]


def label(contestant: str, task: str) -> str:
    repeated = CONTESTANTS[contestant].repeats and task in ("dpo", "rm")
    return CONTESTANTS[contestant].label + (", question repeated" if repeated else "")


# ---- tables ----


def tables(results: Results) -> str:
    """All of it in Markdown."""
    lines = list(dict.fromkeys(run_text(row) for row in results.rows.values()))
    found = results.tables()
    for name, table in found.items():
        lines += converged(name, table) if name.startswith("convergence") else measured(name, table)
    for name, table in found.items():
        lines += by_layers(name, table, found.get("record/" + name.rsplit("-x", 1)[0], {}))
    return "\n".join(lines) + "\n"


def run_text(row: RowResult) -> str:
    run = row.run
    versions = f"torch {run['torch']}, Transformers {run['transformers']}, flashmask {run['flashmask']}"
    return f"- {run['date']}, {run['device']}, {versions}: `{run['command']}`"


def measured(name: str, table: Table) -> Iterator[str]:
    yield f"\n### {name}\n"
    yield f"| {' | '.join(COLUMNS)} |"
    yield "|---" * len(COLUMNS) + "|"
    for tokens, row in table.items():
        for contestant, result in row.items():
            named = label(contestant, result.row["task"])
            if result.absent:
                yield f"| {short(tokens)} | {named} | {result.absent} |" + " |" * (len(COLUMNS) - 3)
            else:
                yield f"| {short(tokens)} | {named} | " + " | ".join(cells(result, row.get("flashmask"))) + " |"


def cells(result: RowResult, ours: RowResult | None) -> Iterator[str]:
    yield f"{result.seconds:.3g}"
    yield f"{result.tokens_per_second:,.0f}"
    yield (
        f"{result.seconds / ours.seconds:.2f} times"
        if ours is not None and ours is not result and ours.measured
        else ""
    )
    yield ", ".join(f"{result.part(name):.2f}" for name in PARTS)
    yield f"{result.attention_rate / 1e12:.0f}"
    yield f"{result.beside_alone:.2f}"
    yield f"{result.rate('model_flops') / 1e12:.0f}, {result.rate('hardware_flops') / 1e12:.0f}"
    yield f"{100 * result.rate('model_flops') / PEAK:.1f} %"
    yield f"{result.peak_card / GIB:.1f}"
    yield f"{result.peak_host / GIB:.1f}"
    mask_bytes = max(each.mask_bytes for each in result.measured)
    mask_seconds = max(each.mask_seconds for each in result.measured)
    yield f"{mask_bytes / 2**20:,.1f} MiB, {1e3 * mask_seconds:.1f} ms"


def by_layers(name: str, table: Table, whole: Table) -> Iterator[str]:
    """What all layers would take by the time of a few, and what FlashMask's took."""
    rows = [result for row in table.values() for result in row.values() if result.measured]
    if (
        not rows
        or rows[0].row["layers"] == SHAPES[rows[0].row["shape"]].layers
        or rows[0].row["lengths"] != "synthetic"
    ):
        return
    layers = SHAPES[rows[0].row["shape"]].layers
    yield f"\n### {name}, scaled to {layers} layers\n"
    yield "All but the loss, times the layers. *Measured* ran all of them.\n"
    yield "| tokens | contestant | s a step | tokens/s | beside FlashMask | measured, s |"
    yield "|---|---|---|---|---|---|"
    for result in rows:
        row = result.row
        ours = table[row["tokens"]].get("flashmask")
        own = whole.get(row["tokens"], {}).get(row["contestant"])
        seconds = scaled_seconds(result, layers)
        beside = (
            f"{seconds / scaled_seconds(ours, layers):.2f} times"
            if ours and ours.measured and ours is not result
            else ""
        )
        yield (
            f"| {short(row['tokens'])} | {label(row['contestant'], row['task'])} | {seconds:.3g} | "
            f"{row['tokens'] / seconds:,.0f} | {beside} | {f'{own.seconds:.3g}' if own and own.measured else ''} |"
        )


def scaled_seconds(result: RowResult, layers: int) -> float:
    loss = result.part("loss")
    return (result.seconds - loss) * layers / int(result.row["layers"]) + loss


def disagreements(results: Results) -> Iterator[str]:
    """Contestants that have another loss or gradient than FlashMask on the same samples, beyond rounding, and every
    tile where it has other bits."""
    for table in results.tables().values():
        for row in table.values():
            if "flashmask" in row:
                yield from chain.from_iterable(differences(row["flashmask"], result) for result in row.values())


def differences(ours: RowResult, other: RowResult) -> Iterator[str]:
    if ours.losses and other.losses and other.row["contestant"] == "every-tile":
        if ours.losses != other.losses:
            yield f"{other.name}: losses are other bits than FlashMask's"
        elif ours.checksum != other.checksum:
            yield f"{other.name}: what was learned is other bits than FlashMask's"
    if [sample.documents for sample in ours.measured] != [sample.documents for sample in other.measured]:
        return
    for wanted, given in zip(ours.measured, other.measured, strict=True):
        for name, furthest in FURTHEST.items():
            found, expected = getattr(given, name), getattr(wanted, name)
            if not abs(found - expected) <= furthest * abs(expected):  # NaN is no number near another
                yield f"{other.name}: {name} is {found:.6g}, FlashMask's {expected:.6g}"


def converged(name: str, table: Table) -> Iterator[str]:
    """Whether skipping changed a bit, and how far dense attention is away."""
    yield f"\n### {name}\n"
    yield "| contestant | first loss | last loss | furthest from FlashMask's | what was learned |"
    yield "|---|---|---|---|---|"
    for row in table.values():
        ours = row.get("flashmask")
        for contestant, result in row.items():
            if not result.losses or ours is None or not ours.losses:
                continue
            away = max(abs(a - b) for a, b in zip(result.losses, ours.losses, strict=True))
            same = "the same bits" if result.checksum == ours.checksum else "other bits"
            yield (
                f"| {label(contestant, result.row['task'])} | {result.losses[0]:.5f} | {result.losses[-1]:.5f} | "
                f"{away:.1e} | {same} |"
            )


# ---- pictures ----


def pictures(results: Results, folder: Path) -> list[Path]:
    """Throughput and memory over length by task, attention over sparsity, losses: of what the file has."""
    folder.mkdir(parents=True, exist_ok=True)
    found = results.tables()
    compared = {name: table for name, table in found.items() if is_compared(name)}
    converging = {name: table for name, table in found.items() if name.startswith("convergence")}
    drawn = []
    if compared:
        drawn.append(over_length(compared, folder / "train-long-throughput.png", "tokens/s", tokens_per_second))
        drawn.append(over_length(compared, folder / "train-long-memory.png", "peak on the card, GiB", card))
        drawn.append(over_sparsity(compared, folder / "train-long-sparsity.png"))
    if converging:
        drawn.append(losses(converging, folder / "train-long-losses.png"))
    return drawn


def is_compared(table: str) -> bool:
    """Whether contestants stand side by side in a table of synthetic samples."""
    return not table.startswith(("record", "convergence")) and not table.endswith("-alpaca")


def tokens_per_second(row: RowResult) -> float:
    return row.tokens_per_second


def card(row: RowResult) -> float:
    return row.peak_card / GIB


def panels(tables: dict[str, Table]):
    """A figure with a panel a table, titled."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.2 * len(tables), 4.0), layout="constrained")
    (axes,) = figure.subplots(1, len(tables), squeeze=False)
    for each, (name, table) in zip(axes, tables.items(), strict=True):
        row = next(iter(next(iter(table.values())).values()))
        each.set_title(f"{TITLES[row.row['task']]}, {name.split('/')[-1].split('-', 1)[1]}", loc="left", fontsize=10)
        each.grid(alpha=0.3)
    run = row.run
    figure.suptitle(f"{run['device']}, {run['date']}, torch {run['torch']}", x=0.01, ha="left", fontsize=10)
    return figure, axes


def legend(figure, axes) -> None:
    """Of what any panel has, below them."""
    found = {}
    for each in axes:
        found |= {label: handle for handle, label in zip(*each.get_legend_handles_labels(), strict=True)}
    columns = len(found) if len(axes) > 1 else 2
    figure.legend(found.values(), found.keys(), loc="outside lower center", ncols=columns, frameon=False, fontsize=8)


def over_length(tables: dict[str, Table], path: Path, unit: str, value) -> Path:
    """The paper's Figures 2 and 7."""
    figure, axes = panels(tables)
    for each, table in zip(axes, tables.values(), strict=True):
        for contestant, colour in COLOURS.items():
            points = [
                (tokens, value(row[contestant]))
                for tokens, row in table.items()
                if contestant in row and row[contestant].measured
            ]
            if points:
                each.plot(
                    *zip(*points, strict=True), "o-", color=colour, markersize=4, label=CONTESTANTS[contestant].label
                )
        each.set_xscale("log", base=2)
        each.set_xticks(list(table), [short(tokens) for tokens in table])
        each.set_ylim(0, None)
        each.set_xlabel("tokens", fontsize=9)
    axes[0].set_ylabel(unit, fontsize=9)
    legend(figure, axes)
    figure.savefig(path, dpi=110)
    return path


def over_sparsity(tables: dict[str, Table], path: Path) -> Path:
    """FLOP/s of attention on visible pairs, a dot a sample of the longest sequence that has several."""
    figure, axes = panels(tables)
    for each, table in zip(axes, tables.values(), strict=True):
        several = [tokens for tokens, row in table.items() if any(len(result.measured) > 1 for result in row.values())]
        tokens = max(several or table)
        for contestant, result in table[tokens].items():
            if not result.absent:
                in_order = sorted(result.measured, key=lambda sample: sample.sparsity)
                rates = [
                    sample.attention_flops / (sample.parts["attention forward"] + sample.parts["attention backward"])
                    for sample in in_order
                ]
                x, y = [sample.sparsity for sample in in_order], [rate / 1e12 for rate in rates]
                each.plot(x, y, "o-", color=COLOURS[contestant], markersize=4, label=CONTESTANTS[contestant].label)
        each.set_ylim(0, None)
        each.set_xlabel(f"share of all pairs that nobody sees, {short(tokens)} tokens", fontsize=9)
    axes[0].set_ylabel("attention, TFLOP/s on visible pairs", fontsize=9)
    legend(figure, axes)
    figure.savefig(path, dpi=110)
    return path


def losses(tables: dict[str, Table], path: Path) -> Path:
    """The paper's Figure 3."""
    figure, axes = panels(tables)
    widths = {"dense": 5.0, "every-tile": 2.5, "flashmask": 1.0}  # equal curves lie on each other, and all are seen
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
    axes[0].set_ylabel("loss", fontsize=9)
    legend(figure, axes)
    figure.savefig(path, dpi=110)
    return path
