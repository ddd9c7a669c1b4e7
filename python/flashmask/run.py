# SPDX-License-Identifier: Apache-2.0
"""Runs a program with FlashMask registered in Transformers, in it and in every Python that it starts.

usage: python -m flashmask.run script.py [argument ...]
       python -m flashmask.run -m module [argument ...]
       python -m flashmask.run command [argument ...]

The program replaces this one: its arguments, output, exit status and exceptions are the same as without
`python -m flashmask.run`. If it imports Transformers, it can use attn_implementation="flashmask".
A command, such as trl or accelerate, is searched for beside this Python first, then on PATH.

  python -m flashmask.run train.py --learning-rate 1e-5
  python -m flashmask.run trl sft --attn_implementation flashmask ...
  python -m flashmask.run -m torch.distributed.run --nproc-per-node 8 train.py
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

_STARTUP = Path(__file__).parent / "_startup"


def main(arguments: Sequence[str]) -> int:
    """Starts the program and does not return; otherwise returns the exit status: 0 for --help, 2 on an error."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(__doc__.strip() if __doc__ else "", file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else 2
    try:
        program = _program(arguments)
        os.execve(program[0], program, {**os.environ, "PYTHONPATH": _python_path()})
    except (OSError, ValueError) as error:
        print(f"python -m flashmask.run: {error}", file=sys.stderr)
        return 2


def _program(arguments: Sequence[str]) -> list[str]:
    """Returns the command line to execute: the path of the program, then its arguments."""
    word = arguments[0]
    if word == "-m" or word.endswith(".py"):
        return [sys.executable, *_python_options(), *arguments]
    if word.startswith("-"):
        raise ValueError(f"{word} is no option of it; options of Python go before -m flashmask.run")
    found = shutil.which(word, path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
    if found is None:
        raise ValueError(f"there is no command {word!r} beside {sys.executable} or on PATH, and it is no script.py")
    return [found, *arguments[1:]]


def _python_options() -> list[str]:
    """Returns the options that this Python was given before `-m flashmask.run`, such as -u or -X dev."""
    if sys.flags.ignore_environment or sys.flags.no_site:
        raise ValueError("Python's options -I, -E and -S keep it from registering in what it starts; leave them out")
    options = sys.orig_argv[1 : len(sys.orig_argv) - len(sys.argv)]
    if options and options[-1].startswith("-"):
        options[-1] = options[-1].removesuffix("m")  # -m itself, or options that end in it, such as -um
    return [option for option in options if option != "-"]


def _python_path() -> str:
    """Returns PYTHONPATH with the folder whose sitecustomize.py registers in front of it."""
    given = os.environ.get("PYTHONPATH")
    return os.pathsep.join([str(_STARTUP), given]) if given else str(_STARTUP)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
