# SPDX-License-Identifier: Apache-2.0
"""Tables of results."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from training.contestants import CONTESTANTS
from training.memory import GIB
from training.results import PARTS, Results, RowResult
from training.rows import short
from training.shapes import SHAPES

PEAK = 989e12
"""bfloat16 FLOP/s that NVIDIA states of an H100 or H200."""
FURTHEST = {"loss": 0.02, "gradient_norm": 0.05}
"""How far two contestants may be apart, relative, in bfloat16 after a step that warmed up."""
FURTHEST_OF_DPO = FURTHEST | {"loss": 0.05}
"""DPO's loss compares sums of log-probabilities over answers of thousands of tokens, and so their rounding too."""
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


def tables(results: Results) -> str:
    """All tables in Markdown."""
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
    versions += "".join(f", {package} {version}" for package, version in run.get("peers", {}).items())
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
    """Yields the time of all layers as scaled from a few, beside what FlashMask's run of all layers took."""
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
    """Contestants whose loss or gradient differs from FlashMask's on the same samples by more than rounding, and "every
    tile" where its bits differ."""
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
    allowed = FURTHEST_OF_DPO if ours.row["task"] == "dpo" else FURTHEST
    for wanted, given in zip(ours.measured, other.measured, strict=True):
        for name, furthest in allowed.items():
            found, expected = getattr(given, name), getattr(wanted, name)
            if not abs(found - expected) <= furthest * abs(expected):  # true for NaN too
                yield f"{other.name}: {name} is {found:.6g}, FlashMask's {expected:.6g}"


def converged(name: str, table: Table) -> Iterator[str]:
    """Yields whether skipping changed a bit, and how far dense attention is from FlashMask."""
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
