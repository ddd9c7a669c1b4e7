# SPDX-License-Identifier: Apache-2.0
"""Checks the structs that Python writes against those that the compiled library reads."""

from __future__ import annotations

import ctypes
from itertools import zip_longest
from typing import Any

from flashmask._abi import structs

STRUCTS: dict[str, type[ctypes.Structure]] = {
    "flashmask" + "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in kind.__name__): kind
    for kind in vars(structs).values()
    if isinstance(kind, type) and issubclass(kind, ctypes.Structure) and kind.__module__ == structs.__name__
    if kind is not structs.Sized
}
"""The struct classes by their names in C."""


def fields(kind: type[ctypes.Structure]) -> list[str]:
    """Returns the names of the fields, struct_size first where the struct has one."""
    own: Any = kind._fields_
    return ["struct_size"] * issubclass(kind, structs.Sized) + [name for name, *_ in own]


def layout(kind: type[ctypes.Structure]) -> str:
    """Returns the struct's line in flashmask_struct_layouts() without the name."""
    described = [(name, getattr(kind, name)) for name in fields(kind)]
    return " ".join([str(ctypes.sizeof(kind)), *(f"{name}:{at.offset}:{at.size}" for name, at in described)])


def check_layouts(layouts: str, path: str) -> None:
    """Raises ImportError for the first struct that differs from `layouts`, the layouts of the library at `path`."""
    found = dict(line.split(" ", 1) for line in layouts.splitlines())
    for name, kind in STRUCTS.items():
        expected = layout(kind)
        if found.get(name) != expected:
            raise ImportError(
                f"flashmask: {path} has {_difference(name, found.get(name), expected)}; library and package are of "
                "different versions: reinstall both with `pip install .`, or unset FLASHMASK_LIBRARY"
            )


def _difference(name: str, found: str | None, expected: str) -> str:
    if found is None:
        return f"no {name}, which this package expects"
    (size, *theirs), (our_size, *ours) = found.split(), expected.split()
    for there, here in zip_longest(theirs, ours):
        if there != here:
            return f"{_described(name, there)} where this package expects {_described(name, here)}"
    return f"{size} bytes in {name} where this package expects {our_size}"


def _described(struct: str, field: str | None) -> str:
    if field is None:
        return f"the end of {struct}"
    name, offset, size = field.split(":")
    return f"{struct}.{name} at byte {offset} with {size} bytes"
