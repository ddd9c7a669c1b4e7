# SPDX-License-Identifier: Apache-2.0
"""Reports what this build can do on this machine."""

from __future__ import annotations

import ctypes
import importlib.metadata
import itertools
import platform
from collections.abc import Sequence
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
    """Formats info() as tables, with one line of kernels per device, direction and dtype, or every kernel by name."""
    lines = [f"{name.replace('_', ' '):<18}{_cell(value)}" for name, value in facts.items() if name != "kernels"]
    if every_kernel:
        for form in FORMS:
            lines += ["", *_by_name(form, facts["kernels"])]
    else:
        lines += ["", *_overview(facts["kernels"]), "", "every kernel by name: python -m flashmask info --all"]
    return "\n".join(lines)


def _by_name(form: str, table: list[dict[str, Any]]) -> list[str]:
    lines = [(f"kernels for masks as {form}", "tile", "runs here")]
    lines += [
        (kernel["name"], "{} x {}".format(*kernel["tile"]), _runs(kernel))
        for kernel in table
        if kernel["predicate"] == form
    ]
    return _aligned(lines)


def _overview(table: list[dict[str, Any]]) -> list[str]:
    """Lists for each device, direction and dtype the kernels that run, best first, or the reason why none does.

    On a CPU only the best family, on a GPU one line per family: each has its own head dims.
    """
    lines = [("device", "direction", "dtype", "kernels", "head dims up to", "runs here")]
    for key in itertools.product(_DEVICES, _DIRECTIONS, _DTYPES):
        group = [kernel for kernel in table if (kernel["device"], kernel["direction"], kernel["dtype"]) == key]
        if not group:
            continue
        shown = [kernel for kernel in group if kernel["runs"]] or group
        families = list(dict.fromkeys(kernel["arch"] for kernel in shown))
        if key[0] == "cpu" or not shown[0]["runs"]:
            del families[1:]
        for arch in families:
            alike = [kernel for kernel in shown if kernel["arch"] == arch]
            dims = ", ".join(dict.fromkeys(map(_head_dims, alike)))
            lines.append((*key, arch, dims, _runs(alike[0])))
    return _aligned(lines)


def _head_dims(kernel: dict[str, Any]) -> str:
    """Formats the largest head dims that a kernel takes: "64", or "192v128" where values have another one."""
    head, value = kernel["head_dim"], kernel["value_dim"]
    return str(head) if head == value else f"{head}v{value}"


def _runs(kernel: dict[str, Any]) -> str:
    return "yes" if kernel["runs"] else f"no: {kernel['why_not']}"


def _aligned(lines: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]


def _cell(value: object) -> str:
    if value is None:
        return "not installed"
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
