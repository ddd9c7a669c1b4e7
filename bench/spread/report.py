# SPDX-License-Identifier: Apache-2.0
"""Formats a row of numbers as a line, and summarises several rows."""

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean
from typing import Any

Row = dict[str, Any]
K = 1 << 10
WAYS = ("ours", "kernels", "by ", "owner", "all keys", "torch")


def speed_up(row: Row, name: str) -> float:
    return sum(row["one"]) / sum(row[name])


def wire_share(row: Row) -> float:
    """Share of the time of a forward and a backward that exchanges and copies add to the kernels."""
    return 1 - sum(row["kernels"]) / sum(row["ours"])


def said(row: Row) -> str:
    """A row as a line."""
    parts = [f"{row['mask']} {row['tokens']} {row['heads']}", f"shard {row['shard, ms']:.1f} ms"]
    if "error" in row:
        worst = max(row["error"], key=row["error"].get)
        parts.append(f"{row['scheme']}, visible {row['visible']:.3f}, fetched {row['fetched']:.3f}")
        parts.append(f"{len(row['error'])} ways, at most {row['error'][worst]:.1e} from one device ({worst})")
    if "one" in row:
        parts.append("one {:.2f} + {:.2f}".format(*row["one"]))
        for name in row:
            if name.startswith(WAYS):
                forward, backward = row[name]
                parts.append(f"{name} {forward:.2f} + {backward:.2f} = {speed_up(row, name):.2f}x")
        parts.append(f"{row['TFLOP/s']:.0f} TFLOP/s a rank")
    if "host, us" in row:
        parts.append("host {:.0f} and {:.0f} us".format(*row["host, us"]))
    if "kernels" in row:
        parts.append(f"wire and copies {100 * wire_share(row):.1f} %")
    if "extra, bytes" in row:
        measured, formula = row["extra, bytes"]
        parts.append(f"memory {measured / 1e6:.0f} MB beside {formula / 1e6:.0f} of fetched keys")
    return "; ".join(parts)


def summary(rows: Sequence[Row]) -> list[str]:
    """Means over packs, and the rates of sequences beyond 128K relative to that of 128K."""
    groups: dict[tuple[str, str, int], list[Row]] = defaultdict(list)
    for row in rows:
        if "one" in row:
            groups[row["mask"], row["heads"], row["tokens"]].append(row)
    lines = []
    for (mask, heads, tokens), packs in groups.items():
        ways = sorted({name for row in packs for name in row if name.startswith(WAYS)})
        if len(packs) > 1:
            means = ", ".join(
                f"{name} {fmean(speed_up(row, name) for row in packs if name in row):.2f}x" for name in ways
            )
            lines.append(f"{mask} {tokens} {heads}, mean of {len(packs)} packs: {means}")
        base = groups.get((mask, heads, 128 * K))
        if base and tokens > 128 * K:
            ratio = fmean(row["TFLOP/s"] for row in packs) / fmean(row["TFLOP/s"] for row in base)
            lines.append(f"{mask} {tokens} {heads}: {ratio:.2f} of the rate of {128 * K} tokens")
    return lines
