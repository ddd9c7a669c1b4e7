# SPDX-License-Identifier: Apache-2.0
"""`python -m flashmask info` says what this build can do, `show` draws a mask, and `check` tests this machine.

`score` says what a change of scores computes and what serves it, `cache` lists the kernels that were compiled for them.
"""

from __future__ import annotations

import argparse
import ast
import ctypes
import inspect
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from flashmask import Mask, masks
from flashmask._abi.library import call
from flashmask._info import as_text, info

_NO_FAMILIES = (
    *("drop_queries", "interleaved_blocks", "medusa_parents", "reverse_cuthill_mckee", "stack_batch", "stack_heads"),
    *("dflash", "packed_block_diffusion"),  # these take tensors
)
_FAMILIES = [
    name
    for name in masks.__all__
    if inspect.isfunction(getattr(masks, name)) and not name.startswith("from_") and name not in _NO_FAMILIES
]
_EXAMPLES = """examples:
  python -m flashmask show causal_document 4,3,3
  python -m flashmask show shared_question "[(4, [3, 3])]" tokens=12
  python -m flashmask show sliding_window 131072 131072 window=4096 --plot window.png
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0; 1 where a check failed; 2 where the request could not be carried out."""
    options = _parser().parse_args(arguments)
    try:
        text = options.run(options)
        if isinstance(text, int):
            return text
        print(text)
    except (ValueError, TypeError, NotImplementedError, ImportError, OSError) as error:
        print(f"python -m flashmask: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m flashmask", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="command")
    info_parser = commands.add_parser("info", help="version, instruction sets and kernels")
    info_parser.add_argument("--all", action="store_true", help="print every kernel by name")
    info_parser.add_argument("--json", action="store_true", help="print JSON, with every kernel")
    info_parser.set_defaults(run=_info)
    show = commands.add_parser(
        "show",
        help="draw a mask and say what it costs",
        epilog=_EXAMPLES + "\nfamilies: " + ", ".join(_FAMILIES),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    show.add_argument("family", help="a builder of flashmask.masks, such as causal_document")
    show.add_argument("values", nargs="*", metavar="value", help="its arguments: Python literals, or name=literal")
    show.add_argument("--tile", type=int, nargs=2, default=(128, 128), metavar=("ROWS", "COLUMNS"))
    show.add_argument("--plot", metavar="FILE", help="write a picture (.png, .svg, .pdf); needs matplotlib")
    show.add_argument("--json", action="store_true", help="print JSON instead of a drawing")
    show.set_defaults(run=_show)
    check = commands.add_parser(
        "check", help="hold every kernel that runs here against attention by its formula; needs PyTorch"
    )
    check.add_argument("--device", choices=("cpu", "cuda"), help="all that are here, if not given")
    check.add_argument(
        "--report", metavar="FILE", help="check speed too, and write a JSON file to send: docs/machines.md"
    )
    check.set_defaults(run=_check)
    score = commands.add_parser("score", help="what a change of scores computes, and what serves it")
    score.add_argument("text", help='steps, such as "softcap(50) | alibi", or an expression, such as "mul(score, q)"')
    score.add_argument("--arch", help="kind of GPU, such as sm_90, here or not; the first one here, if not given")
    score.add_argument("--head-dim", type=int, default=64, metavar="N")
    score.add_argument("--no-compile", action="store_true", help="do not compile kernels to say what that takes")
    score.set_defaults(run=_score)
    cache = commands.add_parser("cache", help="the kernels on disk that were compiled for changes of scores")
    cache.add_argument("--clear", action="store_true", help="remove them")
    cache.set_defaults(run=_cache)
    return parser


def _info(options: argparse.Namespace) -> str:
    facts = info()
    return json.dumps(facts, indent=2) if options.json else as_text(facts, options.all)


def _show(options: argparse.Namespace) -> str:
    mask = _build(options.family, options.values)
    explained = mask.explain(tuple(options.tile))
    if options.plot:
        mask.plot(options.plot)
    if options.json:
        return json.dumps({"shape": list(mask.shape), **asdict(explained)}, indent=2)
    return f"{mask.draw()}\n{explained}"


def _check(options: argparse.Namespace) -> int:
    """Prints the verdicts, writes the report where one is asked for, and returns the exit status."""
    try:
        from flashmask import _report
    except ModuleNotFoundError as error:
        raise ImportError(
            f"check needs PyTorch ({error}): pip install torch; the command `flashmask check` runs without"
        ) from error
    if options.report:
        _report.check_writable(options.report)
    verdicts, promises = _report.check(options.device)
    print(_report.as_text(verdicts, promises))
    if options.report:
        _report.write(options.report, _report.report(verdicts, promises, options.device))
        print(_report.how_to_send(options.report))
    return 0 if _report.passes(verdicts, promises) else 1


def _score(options: argparse.Namespace) -> str:
    _find_nvrtc()
    arch = None if options.arch is None else options.arch.encode()
    told = ctypes.c_char_p()
    call("score_report", options.text.encode(), arch, options.head_dim, not options.no_compile, ctypes.byref(told))
    return (told.value or b"").decode().rstrip()


def _cache(options: argparse.Namespace) -> str:
    if options.clear:
        removed = ctypes.c_int64()
        call("clear_cached_kernels", ctypes.byref(removed))
        return f"removed {removed.value} kernel{'s' * (removed.value != 1)}"
    told = ctypes.c_char_p()
    call("describe_cached_kernels", ctypes.byref(told))
    return (told.value or b"").decode().rstrip()


def _find_nvrtc() -> None:
    """Names the NVRTC of PyTorch's wheels, which the library finds by itself where PyTorch is loaded."""
    for folder in sys.path:
        for found in sorted(Path(folder).glob("nvidia/c*/lib/libnvrtc.so.1[23]")):
            os.environ.setdefault("FLASHMASK_NVRTC", str(found.parent))


def _build(family: str, values: Sequence[str]) -> Mask:
    if family not in _FAMILIES:
        raise ValueError(f"there is no mask {family!r}; there are {', '.join(_FAMILIES)}")
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for value in values:
        name, equals, text = value.partition("=")
        if equals and name.isidentifier():
            named[name] = _literal(text)
        else:
            positional.append(_literal(value))
    mask: Mask = getattr(masks, family)(*positional, **named)
    return mask


def _literal(text: str) -> Any:
    """Evaluates a Python literal; any other text stays a string."""
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text


if __name__ == "__main__":
    sys.exit(main())
