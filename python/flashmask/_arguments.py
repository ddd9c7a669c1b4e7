# SPDX-License-Identifier: Apache-2.0
"""Checks and converts what callers pass: integers, arrays of integers and pairs; errors name the argument."""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

import numpy as np

if TYPE_CHECKING:
    import torch

    Integers: TypeAlias = Sequence[int] | Sequence[Sequence[int]] | np.ndarray[Any, Any] | "torch.Tensor"
    Pairs: TypeAlias = Iterable[tuple[int, int]] | np.ndarray[Any, Any] | "torch.Tensor"

IntArray: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"
AnyArray: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"

Kind = TypeVar("Kind", "torch.Tensor", AnyArray)
"""Torch tensors or NumPy arrays: functions return the kind that they are given."""

_LISTED = (list, tuple, range)


class SparseRows(Protocol):
    """Compressed sparse rows, as scipy.sparse.csr_matrix and csr_array hold them."""

    indptr: Any
    indices: Any
    shape: tuple[int, ...]


def described(value: object) -> str:
    """Describes a value in a message: its type, then dtype and shape where it has them, else its repr."""
    name = type(value).__name__
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"{name} of {value.dtype} {list(value.shape)}"
    text = repr(value)
    return f"{name} {text if len(text) <= 40 else text[:37] + '...'}"


def is_tensor(value: object) -> bool:
    """Whether a value is a torch tensor; does not import torch, and torch.compile can trace it."""
    return hasattr(type(value), "__torch_function__")


def check_dense(name: str, tensor: Any) -> None:
    """Refuses torch tensors that are not strided: nested and sparse ones."""
    import torch

    if tensor.is_nested:
        raise TypeError(
            f"{name} is a nested tensor; expected a dense one: hand sequences of different lengths to "
            f"flashmask.varlen_attention(), of a jagged tensor {name}.values() and {name}.offsets()"
        )
    if tensor.layout is not torch.strided:
        raise TypeError(f"{name} is a tensor of layout {tensor.layout}; expected a dense one: pass {name}.to_dense()")


def sink_dtypes(float32: str, of_q: str) -> str:
    """Names the dtypes that sinks may have, float32 and the dtype of q; once where they are the same."""
    return " or ".join(dict.fromkeys((float32, of_q)))


def is_autocast(device: str) -> bool:
    """Whether torch, which is imported, autocasts on a device type; False for "meta", where torch would raise."""
    import torch

    return device != "meta" and torch.is_autocast_enabled(device)  # PyTorch 2.11 cannot trace is_autocast_available()


def integer(name: str, value: object, *, minimum: int = -(2**63), maximum: int = 2**63 - 1) -> int:
    """Returns an int within a range, by default that of 64 bits; bool, float and str are refused."""
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
    """Returns a number of tokens."""
    return integer(name, value, minimum=0)


def traced_length(name: str, value: object) -> int:
    """Returns a number of tokens; a symbol that torch.export put in its place stays one, so that any number fits."""
    return value if type(value).__name__ == "SymInt" else length(name, value)  # type: ignore[return-value]


def boolean(name: str, value: object) -> bool:
    """Returns a bool; 0 and 1 are refused."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} is {described(value)}; expected True or False")
    return bool(value)


def check_document_options(causal: object, window: object, prefix: object, is_array: Callable[[object], bool]) -> None:
    """Checks the options of masks of documents; arrays of prefix lengths, one per document, are left to the caller."""
    boolean("causal", causal)
    if window is not None:
        integer("window", window, minimum=1)
    if prefix is None:
        return
    if not causal:
        raise ValueError("prefix is given with causal=False, where every row sees its whole document; drop either")
    if not is_array(prefix):
        length("prefix", prefix)


def choice(name: str, value: object, choices: Sequence[str]) -> int:
    """Returns the position of a word among the allowed ones."""
    if not isinstance(value, str):
        raise TypeError(f"{name} is {described(value)}; expected one of {', '.join(map(repr, choices))}")
    if value not in choices:
        raise ValueError(f"{name} is {value!r}; expected one of {', '.join(map(repr, choices))}")
    return choices.index(value)


def array(name: str, value: object) -> AnyArray:
    """Returns a NumPy view of an array or CPU tensor, or an array made of nested lists of numbers."""
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
    """Returns the items of an iterable as a list."""
    if not isinstance(values, Iterable) or isinstance(values, (str, bytes)):
        raise TypeError(f"{name} is {described(values)}; expected {expected}")
    return list(values)


def integers(name: str, value: object, *, ndim: int | tuple[int, ...] = 1) -> IntArray:
    """Returns contiguous int64 [...] of `ndim` dimensions; dtypes other than integers are refused."""
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
    """Returns numbers of tokens, int64 [count]."""
    numbers = integers(name, value)
    if numbers.size and numbers.min() < 0:
        first = int(np.argmax(numbers < 0))
        raise ValueError(f"{name}[{first}] is {int(numbers[first])}; a length is at least 0")
    return numbers


def pairs(name: str, value: object) -> IntArray:
    """Returns pairs of integers, int64 [count, 2]."""
    if not isinstance(value, (np.ndarray, list, tuple)) and not hasattr(value, "detach"):
        value = items(name, value, "pairs of integers")
    if isinstance(value, _LISTED) and len(value) == 0:
        return np.empty((0, 2), np.int64)
    numbers = integers(name, value, ndim=2)
    if numbers.shape[1] != 2:
        raise ValueError(f"{name} has shape {list(numbers.shape)}; expected pairs [count, 2]")
    return numbers


def pointer(numbers: AnyArray, kind: Any = ctypes.c_int64) -> Any:
    """Returns the C pointer to a contiguous array, which must outlive the call."""
    return numbers.ctypes.data_as(ctypes.POINTER(kind))


def copied(values: Any, *shape: int, dtype: type[np.generic] = np.int64) -> AnyArray:
    """Copies an array of the library, whose pointer may be null if it is empty."""
    return np.ctypeslib.as_array(values, shape).copy() if 0 not in shape else np.empty(shape, dtype)


def structs(rows: IntArray, kind: Any) -> Any:
    """Copies rows of integers [count, fields] into a C array of structs of 64-bit integers."""
    return (kind * len(rows)).from_buffer_copy(np.ascontiguousarray(rows).tobytes()) if len(rows) else (kind * 0)()
