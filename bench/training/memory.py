# SPDX-License-Identifier: Apache-2.0
"""The card's and the host's memory that a row takes, known before it starts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flashmask.training import long_context

GIB = 2**30
CHUNK = 8192
"""Tokens that everything but attention takes at once."""
OPTIMIZER = 12
"""Bytes per weight that learns: a copy in float32 and two moments."""
SPARE = 2 * GIB
"""Bytes left free: on the card for gaps between allocations and for libraries, on the host for the program itself."""


class TooLarge(Exception):
    """Says, in a sentence, what memory a row needs and how much is free."""


@dataclass(frozen=True)
class Need:
    """Bytes on the card and page-locked on the host, and where the inputs of layers are kept."""

    card: int
    host: int
    keep: int
    """One layer in so many keeps its input."""
    offload: int
    """How many of these inputs wait on the host."""
    hold: bool = False
    """Whether results of attention are kept too."""

    @property
    def options(self) -> dict[str, Any]:
        """Options of long_context()."""
        return {"keep": self.keep, "offload": self.offload, "hold_attention": self.hold}

    def __str__(self) -> str:
        kept = "every layer" if self.keep == 1 else f"one layer in {self.keep}"
        return (
            f"{self.card / GIB:.1f} GiB on the card and {self.host / GIB:.1f} GiB page-locked on the host, which keep "
            f"the input of {kept}, {self.offload} on the host{', and results of attention' if self.hold else ''}"
        )


def least(model: Any, tokens: int, extra: int, card: int, host: int, *, hold: bool, ranks: int = 1) -> Need:
    """Where to keep inputs of layers, so that a sequence of `tokens` tokens fits into `card` and `host` free bytes.

    Inputs are kept on the card as long as they fit, else on the host; with `hold`, so are the results of attention,
    unless they do not fit; and where the host is full too, only the inputs of every second layer are kept. `extra`:
    bytes that the contestant takes. The model may be on "meta"; `ranks` share its weights. Raises TooLarge.
    """
    tried = None
    for tried in choices(model, tokens, extra, hold, ranks):
        if tried.card + SPARE <= card and (tried.host == 0 or tried.host + SPARE <= host):
            return tried
    raise TooLarge(f"it takes {tried}; {card / GIB:.1f} GiB and {host / GIB:.1f} GiB are free")


def choices(model: Any, tokens: int, extra: int, hold: bool, ranks: int = 1) -> Iterator[Need]:
    """Ways to keep inputs, with the memory that they need; faster ones first."""
    weights = sum(each.numel() * each.element_size() for each in model.parameters())
    learning = sum(each.numel() for each in model.parameters() if each.requires_grad)
    held = (weights + OPTIMIZER * learning) // ranks + extra
    for options in ways_to_keep(model.config.num_hidden_layers, hold):
        with long_context(model, chunk=CHUNK, **options) as context:
            taken = context.memory(tokens)
        yield Need(held + taken.card, taken.host, options["keep"], options["offload"], options["hold_attention"])


def ways_to_keep(layers: int, hold: bool) -> Iterator[dict[str, Any]]:
    """Options of long_context()."""
    for keep, held in [(1, True)] * hold + [(1, False), (2, False)]:
        for offload in range(-(-layers // keep)):
            yield {"keep": keep, "offload": offload, "hold_attention": held}


def host_peak() -> int:
    """The most bytes that this process has held in the host's memory since restart_host_peak()."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * int(lines["VmHWM"].split()[0])


def restart_host_peak() -> None:
    """Restarts the peak of host_peak(). Where the system does not allow that, the peak is that of the process's whole
    life."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
