# SPDX-License-Identifier: Apache-2.0
"""FlashMask beside PyTorch's own attention, on the CPU or, with --device cuda, on a GPU.

python bench/compare.py [--help]
python bench/compare.py --device cuda [--help]
"""

from __future__ import annotations

import sys


def main() -> None:
    given = sys.argv[1:]
    device = "cpu"
    if given[:1] == ["--device"] and len(given) > 1:
        device = given[1]
        given = given[2:]
    if device == "cpu":
        from comparison import cpu

        cpu.main(given)
    elif device == "cuda":
        from comparison import cuda

        cuda.main(given)
    else:
        sys.exit(f"compare.py: --device is {device}; expected cpu or cuda, before other options")


if __name__ == "__main__":
    main()
