# SPDX-License-Identifier: Apache-2.0
"""Reports about a sharding: a table of its ranks, and a picture."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flashmask._arguments import IntArray
from flashmask._mask import Mask
from flashmask._partition import Partition, PredictedTime, Prices
from flashmask._plot import TEXT

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FEW = 8192
"""Tokens per rank below which it is better to spread batches."""
_NAMED = 10
"""The most ranks that a picture's legend names, including the first and the last."""


@dataclass(frozen=True)
class ShardingExplanation:
    """Each rank's work in a call under each mask, and how long it takes on H200s, forward and backward."""

    scheme: str
    why: str
    """Why the partition was chosen."""
    tokens: int
    loads: Mapping[str, IntArray]
    """Partition.loads() by the name of the mask, [ranks, 6]."""
    bytes_moved: Mapping[str, int]
    """Bytes that the busiest rank sends or receives in a forward of 16-bit tensors, by the name of the mask."""
    times: Mapping[str, PredictedTime]
    """Predicted times of the scheme "rows", by the name of the mask."""

    def __str__(self) -> str:
        lines = [f'scheme "{self.scheme}"; {self.why}']
        for name, loads in self.loads.items():
            time = self.times[name]
            lines.append(
                f"{name}: a rank sends or receives at most {self.bytes_moved[name] / 1e6:,.1f} MB in a forward; "
                f"by rows, predicted for H200s: {time.attention / 1e6:.2f} ms and {time.wire / 1e6:.2f} ms of wire, "
                f"{time.ideal / 1e6:.2f} ms ideal"
            )
            lines.append(f"{'rank':>6}{'tokens':>10}{'tiles':>12}{'work':>8}{'fetched':>10}{'sent':>10}")
            work = loads[:, 1] + 2 * loads[:, 2]
            mean = max(1.0, float(work.mean()))
            for rank, (tokens, tiles, _, _, received, sent) in enumerate(loads.tolist()):
                lines.append(f"{rank:>6}{tokens:>10,}{tiles:>12,}{work[rank] / mean:>8.3f}{received:>10,}{sent:>10,}")
        ranks = len(next(iter(self.loads.values())))
        if ranks > 1 and self.tokens < _FEW * ranks:
            lines.append(f"Fewer than {_FEW:,} tokens a rank: spread batches rather than sequences over the ranks.")
        return "\n".join(lines)


def explain(scheme: str, partition: Partition, masks: Mapping[str, Mask], prices: Prices) -> ShardingExplanation:
    """See Sharding.explain()."""
    loads = {name: partition.loads(mask) for name, mask in masks.items()}
    per_column = 2 * prices.element_bytes * prices.kv_heads * prices.head_dim
    of_all_heads = per_column * (prices.query_heads + prices.kv_heads) // prices.kv_heads
    by_heads = of_all_heads * partition.tokens * (partition.ranks - 1) // partition.ranks**2
    return ShardingExplanation(
        scheme=scheme,
        why=partition.why,
        tokens=partition.tokens,
        loads=loads,
        bytes_moved={
            name: by_heads if scheme == "heads" else int(each[:, 4:].max(initial=0)) * per_column
            for name, each in loads.items()
        },
        times={name: partition.predict(mask, prices) for name, mask in masks.items()},
    )


def plot(mask: Mask, partition: Partition, path: str | os.PathLike[str] | None) -> Figure:
    """See Sharding.plot()."""
    from matplotlib import colormaps
    from matplotlib.patches import Patch

    figure = mask.plot(title=f"{partition.tokens:,} tokens over {partition.ranks} ranks: {partition.why}")
    (ax,) = figure.axes
    colour = colormaps["tab10"] if partition.ranks <= _NAMED else colormaps["turbo"].resampled(partition.ranks)
    for begin, end, rank in partition.runs.tolist():
        # Beside the mask, whose own colours show the kinds of its tiles.
        ax.axhspan(begin, end, 1.015, 1.055, facecolor=colour(rank), edgecolor="none", clip_on=False)
    named = sorted({round(place * (partition.ranks - 1) / (_NAMED - 1)) for place in range(_NAMED)})
    shown = [Patch(facecolor=colour(rank), label=f"rank {rank}") for rank in named]
    figure.legend(handles=shown, loc="outside right upper", frameon=False, fontsize=8, labelcolor=TEXT)
    if path is not None:
        figure.savefig(path, dpi=150)
    return figure
