# SPDX-License-Identifier: Apache-2.0
"""Draws the picture of docs/several_gpus.md with the package itself: python docs/draw_partition.py [FOLDER]."""

from __future__ import annotations

import sys
from pathlib import Path

from flashmask import masks
from flashmask.distributed import partition
from flashmask.distributed._report import plot

TOKENS, RANKS = 8192, 4
DOCUMENTS = [900, 3100, 400, 250, 1700, 600, 1242]


def main() -> None:
    """Draws it."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    mask = masks.causal_document(DOCUMENTS, TOKENS)
    plot(mask, partition(mask, RANKS), folder / "several_gpus.png")


if __name__ == "__main__":
    main()
