# SPDX-License-Identifier: Apache-2.0
"""Reads what callers pass: integers, arrays of integers and pairs, each refused by the argument's name."""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

import numpy as np

if TYPE_CHECKING:
    import torch

    Integers: TypeAlias = Sequence[int] | Sequence[Sequence[int]] | np.ndarray[Any, Any] | "torch.Tensor"
    Pairs: TypeAlias = Iterable[tuple[int, int]] | np.ndarray[Any, Any] | "torch.Tensor"

IntArray: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"
AnyArray: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"

Kind = TypeVar("Kind", "torch.Tensor", AnyArray)
"""Torch tensors, or NumPy arrays: whoever gives one gets the same back."""

_LISTED = (list, tuple, range)


class SparseRows(Protocol):
    """Compressed sparse rows, as scipy.sparse.csr_matrix and csr_array hold them."""

    indptr: Any
    indices: Any
    shape: tuple[int, ...]


def described(value: object) -> str:
    """The type of a value, with dtype and shape where it has them."""
    name = type(value).__name__
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"{name} of {value.dtype} {list(value.shape)}"
    text = repr(value)
    return f"{name} {text if len(text) <= 40 else text[:37] + '...'}"


def is_tensor(value: object) -> bool:
    """Whether a value is a torch tensor; does not import torch, and torch.compile can trace it."""
    return hasattr(type(value), "__torch_function__")


def check_dense(name: str, tensor: Any) -> None:
    """Refuses a torch tensor whose numbers do not lie at strides: nested and sparse ones."""
    import torch

    if tensor.is_nested:
        raise TypeError(
            f"{name} is a nested tensor; expected a dense one: hand sequences of different lengths to "
            f"flashmask.varlen_attention(), of a jagged tensor {name}.values() and {name}.offsets()"
        )
    if tensor.layout is not torch.strided:
        raise TypeError(f"{name} is a tensor of layout {tensor.layout}; expected a dense one: pass {name}.to_dense()")


def sink_dtypes(float32: str, of_q: str) -> str:
    """The dtypes that sinks may have, float32 and that of q, as messages name them: one where they are the same."""
    return " or ".join(dict.fromkeys((float32, of_q)))


def is_autocast(device: str) -> bool:
    """Whether torch, which is imported, casts tensors on such devices; for "meta" torch itself raises an error."""
    import torch

    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)


def integer(name: str, value: object, *, minimum: int = -(2**63), maximum: int = 2**63 - 1) -> int:
    """An int in a range, of 64 bits by default; bool, float and str are refused."""
    # torch.compile traces lengths as integers that it cannot look into.
    number = value if isinstance(value, int) and not isinstance(value, bool) else _index(name, value)
    if number < minimum:
        raise ValueError(f"{name} is {number}; expected at least {minimum}")
    if number > maximum:
        raise ValueError(f"{name} is {number}; expected at most {maximum}")
    return number


def _index(name: str, value: object) -> int:
    dtype = getattr(value, "dtype", None)
    if isinstance(value, (bool, np.bool_)) or (dtype is not None and "int" not in str(dtype)):
        raise TypeError(f"{name} is {described(value)}; expected an integer")
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise TypeError(f"{name} is {described(value)}; expected an integer") from None


def length(name: str, value: object) -> int:
    """A number of tokens."""
    return integer(name, value, minimum=0)


def boolean(name: str, value: object) -> bool:
    """A bool; 0 and 1 are not taken for one."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} is {described(value)}; expected True or False")
    return bool(value)


def choice(name: str, value: object, choices: Sequence[str]) -> int:
    """Position of a word among those that are allowed."""
    if not isinstance(value, str):
        raise TypeError(f"{name} is {described(value)}; expected one of {', '.join(map(repr, choices))}")
    if value not in choices:
        raise ValueError(f"{name} is {value!r}; expected one of {', '.join(map(repr, choices))}")
    return choices.index(value)


def array(name: str, value: object) -> AnyArray:
    """A NumPy view of an array, a CPU tensor or nested lists of numbers."""
    if isinstance(value, np.ndarray):
        return value
    if hasattr(value, "detach") and hasattr(value, "device"):
        return _tensor_array(name, value)
    if isinstance(value, _LISTED):
        return _listed_array(name, value)
    raise TypeError(f"{name} is {described(value)}; expected a list, a NumPy array or a CPU tensor")


def _tensor_array(name: str, tensor: Any) -> AnyArray:
    if tensor.device.type != "cpu":
        raise TypeError(
            f"{name} is a tensor on {tensor.device}; a mask is built on the CPU: pass {name}.cpu(), or see "
            "masks.from_cu_seqlens and its kin, which stay on the device"
        )
    check_dense(name, tensor)
    try:
        result: AnyArray = tensor.detach().numpy()
    except TypeError:  # a dtype that NumPy does not have
        raise TypeError(f"{name} holds {tensor.dtype} values; expected booleans or integers") from None
    return result


def _listed_array(name: str, values: Any) -> AnyArray:
    if _holds_bool(values):
        raise TypeError(f"{name} holds True or False; expected integers")
    try:
        result: AnyArray = np.asarray(values)
    except (ValueError, OverflowError):
        raise ValueError(f"{name} is ragged: its lists differ in length; expected lists of one length") from None
    if result.size == 0 and result.dtype.kind == "f":
        return result.astype(np.int64)
    return result


def _holds_bool(values: Any) -> bool:
    return any(
        isinstance(value, (bool, np.bool_)) or (isinstance(value, _LISTED) and _holds_bool(value)) for value in values
    )


def items(name: str, values: object, expected: str) -> list[Any]:
    """What an iterable holds."""
    if not isinstance(values, Iterable) or isinstance(values, (str, bytes)):
        raise TypeError(f"{name} is {described(values)}; expected {expected}")
    return list(values)


def integers(name: str, value: object, *, ndim: int | tuple[int, ...] = 1) -> IntArray:
    """Contiguous int64 [...] of `ndim` dimensions; other dtypes than integers are refused."""
    numbers = array(name, value)
    ranks = (ndim,) if isinstance(ndim, int) else ndim
    if numbers.dtype.kind not in "iu":
        raise TypeError(f"{name} holds {numbers.dtype} values; expected integers")
    if numbers.ndim not in ranks:
        expected = " or ".join(map(str, ranks))
        raise ValueError(f"{name} has {numbers.ndim} dimensions, shape {list(numbers.shape)}; expected {expected}")
    if numbers.dtype == np.uint64 and numbers.size and int(numbers.max()) >= 2**63:
        raise ValueError(f"{name} holds {int(numbers.max())}; expected integers of 64 bits")
    return np.ascontiguousarray(numbers, np.int64)


def lengths(name: str, value: object) -> IntArray:
    """Numbers of tokens, int64 [count]."""
    numbers = integers(name, value)
    if numbers.size and numbers.min() < 0:
        first = int(np.argmax(numbers < 0))
        raise ValueError(f"{name}[{first}] is {int(numbers[first])}; a length is at least 0")
    return numbers


def pairs(name: str, value: object) -> IntArray:
    """Pairs of integers, int64 [count, 2]."""
    if not isinstance(value, (np.ndarray, list, tuple)) and not hasattr(value, "detach"):
        value = items(name, value, "pairs of integers")
    if isinstance(value, _LISTED) and len(value) == 0:
        return np.empty((0, 2), np.int64)
    numbers = integers(name, value, ndim=2)
    if numbers.shape[1] != 2:
        raise ValueError(f"{name} has shape {list(numbers.shape)}; expected pairs [count, 2]")
    return numbers


def pointer(numbers: AnyArray, kind: Any = ctypes.c_int64) -> Any:
    """The C pointer to a contiguous array, which must outlive the call."""
    return numbers.ctypes.data_as(ctypes.POINTER(kind))


def structs(rows: IntArray, kind: Any) -> Any:
    """Rows of integers [count, fields] as a C array of structs of 64-bit integers."""
    return (kind * len(rows)).from_buffer_copy(np.ascontiguousarray(rows).tobytes()) if len(rows) else (kind * 0)()
