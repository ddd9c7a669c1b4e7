# SPDX-License-Identifier: Apache-2.0
"""What is made of a function, kept while the function lives and what it has captured does not change."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterator
from functools import partial
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter

_PLAIN = (int, float, str, bytes, type(None), torch.dtype, torch.device, BuiltinFunctionType)
_FIXED = ("torch", "math", "operator", "functools", "numpy", "builtins")
"""Packages whose modules, classes and globals are taken for unchanging."""

_COMPARED = 1 << 22
"""Bytes of a tensor on the CPU whose values are compared in each call."""

_EMPTY = CellType()  # of a variable that is not assigned yet


class _State(NamedTuple):
    """What is another after each change that could change a result: tensors, what they hold, and plain values."""

    tensors: tuple[weakref.ref[Tensor], ...]
    values: tuple[Any, ...]

    def holds(self, tensors: list[Tensor], values: tuple[Any, ...]) -> bool:
        if values != self.values or len(tensors) != len(self.tensors):
            return False
        return all(kept() is each for kept, each in zip(self.tensors, tensors, strict=True))


_kept: dict[tuple[int, str], tuple[weakref.ref[Any], _State, Any]] = {}


def made_once(
    kind: str, owner: Any, said: tuple[Any, ...], make: Callable[[], Any], keep: Callable[[Any], bool] = lambda _: True
) -> Any:
    """Returns make(), made once for each kind while `owner` lives and `said` does not change.

    `said` holds functions, tensors and plain values. Of functions, what they have captured counts: numbers by value,
    tensors by identity and version, and those on the CPU, which NumPy may write to, by what they hold unless they are
    large. Where they have captured other objects, the result is not kept, nor is it within a trace, or where
    keep(result) is False.
    """
    from flashmask._torch.shared import is_traced

    found: list[Any] = []
    key = id(owner), kind
    try:
        alive = weakref.ref(owner, lambda _: _kept.pop(key, None))
    except TypeError:
        return make()
    if is_traced() or not all(_walk(each, found, set()) for each in said):
        return make()
    tensors = [each for each in found if isinstance(each, Tensor)]
    held = [_held(each) for each in tensors]
    if None in held:
        return make()
    values = (
        *(each for each in found if not isinstance(each, Tensor)),
        *held,
        *(each.requires_grad for each in tensors),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
    )
    reference, state, result = _kept.get(key, (None, None, None))
    if reference is not None and reference() is owner and state is not None and state.holds(tensors, values):
        return result
    result = make()
    if keep(result):
        _kept[key] = alive, _State(tuple(map(weakref.ref, tensors)), values), result
    return result


def _held(tensor: Tensor) -> Hashable:
    """Returns what is another after a write to a tensor; None where nothing tells of one."""
    from flashmask._torch.shared import content_of

    plain = type(tensor) in (Tensor, Parameter) and tensor.layout is torch.strided and tensor.is_cpu
    if plain and tensor.nbytes <= _COMPARED:
        return content_of(tensor.detach())
    return None if tensor.is_inference() else tensor._version


def _walk(value: Any, found: list[Any], seen: set[int]) -> bool:
    """Appends all that a value consists of to `found`; False where it holds something of an unknown kind."""
    if isinstance(value, (Tensor, *_PLAIN)) or _is_fixed(value):
        found.append(value)
        return True
    if id(value) in seen:
        return True
    seen.add(id(value))
    parts = _parts(value)
    return parts is not None and all(_walk(each, found, seen) for each in parts)


def _is_fixed(value: Any) -> bool:
    name = value.__name__ if isinstance(value, ModuleType) else value.__module__ if isinstance(value, type) else ""
    return name.partition(".")[0] in _FIXED


def _parts(value: Any) -> list[Any] | None:
    if isinstance(value, FunctionType):
        return [value.__code__.co_code, *_captured(value)]
    if isinstance(value, partial):
        return [value.func, value.args, value.keywords]
    if type(value) in (tuple, list):
        return [len(value), *value]
    if type(value) is dict:
        return [len(value), *value.keys(), *value.values()]  # no new tuples, whose ids others had before
    inner = getattr(value, "fn", None)  # what a BlockMask wraps its mask_mod in where torch has taken it apart
    return [inner] if type(value).__module__.startswith("torch.") and callable(inner) else None


def _captured(function: FunctionType) -> Iterator[Any]:
    """Yields what a function encloses, its defaults, and the globals that it names."""
    for cell in function.__closure__ or ():
        if cell != _EMPTY:
            yield cell.cell_contents
    yield function.__defaults__
    yield function.__kwdefaults__
    if (function.__module__ or "").partition(".")[0] not in _FIXED:
        for name in _names(function.__code__):
            if name in function.__globals__:
                yield function.__globals__[name]


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _names(each)
