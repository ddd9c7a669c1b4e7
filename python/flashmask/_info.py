# SPDX-License-Identifier: Apache-2.0
"""Reports what this build can do on this machine."""

from __future__ import annotations

import ctypes
import importlib.metadata
import platform
from typing import Any

from flashmask._abi import structs as s
from flashmask._abi.library import call, library_path, version
from flashmask._explain import FORMS

_DIRECTIONS = ("forward", "backward")
_DTYPES = ("f32", "bf16", "f16")
_DEVICES = ("cpu", "cuda")


def info() -> dict[str, Any]:
    """Returns versions, instruction sets and the kernel table, with why a kernel cannot run; ready for JSON."""
    sets = ctypes.c_char_p()
    call("instruction_sets", ctypes.byref(sets))
    table = kernels()
    return {
        "version": version(),
        "library": library_path(),
        "python": platform.python_version(),
        **{name: _installed(name) for name in ("numpy", "torch", "transformers")},
        "devices": sorted({kernel["device"] for kernel in table}),
        "instruction_sets": (sets.value or b"").decode().split(),
        "kernels": table,
    }


def kernels() -> list[dict[str, Any]]:
    """Returns the kernel table, best first for each direction, dtype and form."""
    count = ctypes.c_int64()
    call("kernel_count", ctypes.byref(count))
    return [_kernel(index) for index in range(count.value)]


def _kernel(index: int) -> dict[str, Any]:
    given = s.KernelInfo()
    call("kernel_get", index, ctypes.byref(given))
    return {
        "name": given.name.decode(),
        "arch": given.arch.decode(),
        "direction": _DIRECTIONS[given.direction],
        "dtype": _DTYPES[given.dtype],
        "device": _DEVICES[given.device_type],
        "tile": [given.tile_rows, given.tile_columns],
        "head_dim": given.head_dim,
        "value_dim": given.value_dim,
        "features": [name for at, name in enumerate(s.FEATURES) if given.features >> at & 1],
        "compute_capability": f"{given.compute_capability_major}.{given.compute_capability_minor}"
        if given.compute_capability_major
        else None,
        "predicate": FORMS[given.form],
        "runs": not given.why_not,
        "why_not": given.why_not.decode(),
    }


def _installed(name: str) -> str | None:
    """Returns the version of a package without importing it."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def as_text(facts: dict[str, Any], every_kernel: bool = False) -> str:
    """Formats info(), with the library's own text about kernels: an overview, or every kernel by name."""
    lines = [f"{name.replace('_', ' '):<18}{_cell(value)}" for name, value in facts.items() if name != "kernels"]
    described = ctypes.c_char_p()
    call("describe_kernels", int(every_kernel), ctypes.byref(described))
    lines += ["", (described.value or b"").decode().rstrip()]
    if not every_kernel:
        lines += ["", "every kernel by name: python -m flashmask info --all"]
    return "\n".join(lines)


def _cell(value: object) -> str:
    if value is None:
        return "not installed"
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
