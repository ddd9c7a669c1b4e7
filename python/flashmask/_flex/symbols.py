# SPDX-License-Identifier: Apache-2.0
"""Runs a mask_mod or score_mod once, on symbols in place of indices.

A symbol stands for one number per (b, h, q, kv). What depends on q alone, on kv alone or on neither is computed at
once, by the torch function that was called, as a tensor [B or 1, H or 1, Q or 1, KV or 1, *vector dims]. What depends
on both tokens, or on the score, stays an expression. So any torch function of one token is exact: gathers, divisions,
bit tricks.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from flashmask._arguments import described

# What a symbol depends on, as bits.
B, H, Q, K, SCORE = 1, 2, 4, 8, 16
BOTH = Q | K
LEAD = 4  # dims of a value before its vector dims: b, h, q, kv
_BITS = {"b": B, "h": H, "q": Q, "k": K, "score": SCORE}
_LARGEST_GATHER = 1 << 26  # elements of gathered vectors; above, the gather stays an expression


class Untraceable(Exception):
    """The function does something that symbols do not follow; its message says what."""


class Space:
    """The sizes (B, H, Q, KV) of one trace, and its index tensors, int64 on one device."""

    def __init__(self, sizes: tuple[int, int, int, int], device: torch.device | str | int) -> None:
        self.sizes = sizes
        longest = torch.arange(max(sizes), device=device)
        self.device = longest.device  # "cuda" becomes cuda:0, as tensors there say
        self.index = [
            longest.as_strided([size if axis == at else 1 for at in range(LEAD)], [1] * LEAD)
            for axis, size in enumerate(sizes)
        ]

    def symbols(self) -> list[Symbol]:
        """Returns b, h, q_idx and kv_idx."""
        return [Symbol(self, 1 << axis, value=self.index[axis], name="bhqk"[axis]) for axis in range(LEAD)]


class Symbol:
    """A number per (b, h, q, kv): `value` where it is known, else the operation `op` on `args` and `kwargs`.

    `deps` are bits of B, H, Q, K and SCORE. `rank` counts vector dims, which a gather of whole rows leaves. `like` has
    the dtype and vector dims of what has no value. `name` is b, h, q, k or score of an index, "captured" of a tensor.
    """

    __slots__ = ("args", "deps", "func", "kwargs", "like", "name", "op", "rank", "space", "value")

    def __init__(
        self,
        space: Space,
        deps: int,
        *,
        value: Any = None,
        op: str = "leaf",
        func: Any = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        like: Any = None,
        rank: int = 0,
        name: str | None = None,
    ) -> None:
        self.space, self.deps, self.value, self.op, self.func = space, deps, value, op, func
        self.args, self.kwargs, self.like, self.rank, self.name = args, kwargs or {}, like, rank, name

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return call(func, args, kwargs or {})

    @property
    def mixed(self) -> bool:
        """Whether it has no value: it depends on both tokens or on the score."""
        return self.value is None

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = (self.like if self.value is None else self.value).dtype
        return dtype

    @property
    def device(self) -> torch.device:
        return self.space.device

    @property
    def shape(self) -> torch.Size:
        shape: torch.Size = self.like.shape if self.value is None else self.value.shape[LEAD:]
        return shape

    @property
    def ndim(self) -> int:
        return self.rank

    @property
    def requires_grad(self) -> bool:
        return self.value is not None and bool(self.value.requires_grad)

    def dim(self) -> int:
        return self.rank

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    def numel(self) -> int:
        return self.shape.numel()

    def __len__(self) -> int:
        if not self.rank:
            raise TypeError("len() of a 0-d tensor")
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        if not self.rank:
            raise Untraceable("the function iterates over an index")
        return (self[i] for i in range(self.shape[0]))

    def __bool__(self) -> bool:
        raise Untraceable("the function branches on an index")

    def item(self, *_: Any) -> Any:
        raise Untraceable("the function reads the value of an index")

    __index__ = __int__ = __float__ = tolist = numpy = item
    __hash__ = object.__hash__

    def __pos__(self) -> Symbol:
        return self

    def __getitem__(self, index: Any) -> Any:
        return get_item(self, index)

    def to(self, *args: Any, **kwargs: Any) -> Any:
        """Converts to a dtype or to that of a tensor; symbols ignore devices and other options."""
        dtype = kwargs.get("dtype")
        for each in args:
            dtype = each if isinstance(each, torch.dtype) else getattr(each, "dtype", dtype)
        return self if dtype in (None, self.dtype) else call(torch.Tensor.to, (self, dtype), {})

    def type_as(self, other: Any) -> Any:
        return self.to(other.dtype)

    def new_zeros(self, *size: Any, **options: Any) -> Tensor:
        return torch.zeros(*size, **self._options(options))

    def new_ones(self, *size: Any, **options: Any) -> Tensor:
        return torch.ones(*size, **self._options(options))

    def new_full(self, size: Any, fill_value: Any, **options: Any) -> Tensor:
        return torch.full(size, fill_value, **self._options(options))

    def new_tensor(self, data: Any, **options: Any) -> Tensor:
        return torch.tensor(data, **self._options(options))

    def _options(self, options: dict[str, Any]) -> dict[str, Any]:
        return {"dtype": options.get("dtype") or self.dtype, "device": options.get("device") or self.device}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or not hasattr(torch.Tensor, name):
            raise AttributeError(name)
        func = getattr(torch.Tensor, name)
        if not callable(func):
            raise Untraceable(f"the function reads .{name} of an index")
        return lambda *args, **kwargs: call(func, (self, *args), kwargs)


def _define_operators() -> None:
    """Gives Symbol Python's operators: q - kv is call(operator.sub, (q, kv), {})."""

    def binary(func: Callable[..., Any], swapped: bool) -> Callable[..., Any]:
        return lambda self, other: call(func, (other, self) if swapped else (self, other), {})

    def unary(func: Callable[..., Any]) -> Callable[..., Any]:
        return lambda self: call(func, (self,), {})

    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "and_", "or_", "xor", "lshift", "rshift", "pow"):
        func, plain = getattr(operator, name), name.rstrip("_")
        setattr(Symbol, f"__{plain}__", binary(func, False))
        setattr(Symbol, f"__r{plain}__", binary(func, True))
    for name in ("lt", "le", "gt", "ge", "eq", "ne"):
        setattr(Symbol, f"__{name}__", binary(getattr(operator, name), False))
    for name in ("neg", "abs", "invert"):
        setattr(Symbol, f"__{name}__", unary(getattr(operator, name)))


_define_operators()


# An operation's names in torch and operator, and the one name that it has here; __name__ is tried as name.
_SAME = {
    "add": "radd",
    "sub": "subtract",
    "rsub": "rsub",
    "mul": "multiply rmul",
    "div": "truediv true_divide divide",
    "rdiv": "rtruediv rdiv",
    "floordiv": "floor_divide",
    "mod": "remainder",
    "neg": "negative",
    "abs": "absolute",
    "and": "and_ logical_and bitwise_and rand iand",
    "or": "or_ logical_or bitwise_or ror ior",
    "xor": "logical_xor bitwise_xor rxor ixor",
    "not": "invert logical_not bitwise_not inv",
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
    "ne": "not_equal",
    "atan": "arctan",
}
_NAMES = {other: name for name, others in _SAME.items() for other in others.split()}
_ELEMENTWISE = """
    add sub rsub mul div rdiv floordiv mod fmod neg abs and or xor not lt le gt ge eq ne lshift rshift pow where
    clamp clip clamp_min clamp_max minimum maximum exp exp2 expm1 log log2 log1p log10 sin cos tan asin acos atan
    atan2 sinh cosh tanh sigmoid relu silu gelu softplus elu leaky_relu mish hardtanh sqrt rsqrt square reciprocal
    sign floor ceil round trunc erf erfc to bool int long float double half bfloat16 isclose lerp addcmul sgn hypot
    masked_fill logaddexp softsign zeros_like ones_like full_like nan_to_num detach clone contiguous logit
    tanhshrink isinf isnan
"""
ELEMENTWISE = frozenset(_ELEMENTWISE.split())
_UNCHANGED = frozenset(("detach", "clone", "contiguous"))
_REDUCTIONS = frozenset(("sum", "mean", "any", "all", "amax", "amin"))
VECTOR = _REDUCTIONS | {"dot"}


@functools.lru_cache(maxsize=1024)
def _canonical(func: Any) -> str:
    name = str(getattr(func, "__name__", func)).rsplit(".", 1)[-1]
    if name.startswith("__") and name.endswith("__"):
        name = name[2:-2]
    return _NAMES.get(name, name)


class _SeesIndexing(TorchFunctionMode):
    """Sees captured tensors indexed by symbols, which torch does not offer to what an index is made of."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.__getitem__ and _holds_symbol(args[1]):
            return get_item(args[0], args[1])
        if any(map(_holds_symbol, args)) or any(map(_holds_symbol, kwargs.values())):
            return call(func, args, kwargs)
        return func(*args, **kwargs)


def _holds_symbol(value: Any) -> bool:
    return isinstance(value, Symbol) or (isinstance(value, (tuple, list)) and any(map(_holds_symbol, value)))


def lift(space: Space, value: Any) -> Any:
    """Returns a captured tensor as a symbol that depends on nothing; anything else as it is."""
    if not isinstance(value, Tensor):
        return value
    if value.ndim:  # torch takes tensors of one number from anywhere
        _check_device(value, space)
    lead = value.to(space.device).reshape((1,) * LEAD + tuple(value.shape))
    return Symbol(space, 0, value=lead, rank=value.ndim, name="captured")


def _check_device(tensor: Tensor, space: Space) -> None:
    if tensor.device != space.device:
        raise ElsewhereError(f"a captured tensor is on {tensor.device}, the mask on {space.device}; move it there")


class ElsewhereError(ValueError):
    """A captured tensor lies on another device."""


def call(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Applies a torch function or operator to symbols, tensors and numbers; at least one is a symbol."""
    with torch._C.DisableTorchFunction():  # operations on their values skip subclasses: half the time
        return _applied(func, args, kwargs)


def _applied(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    if func is torch.Tensor.__getitem__:
        return get_item(args[0], args[1])
    name = _canonical(func)
    space = _space_of((*args, *kwargs.values()))
    args = tuple(lift(space, each) for each in args)
    kwargs = {key: lift(space, each) for key, each in kwargs.items()}
    symbols = [each for each in (*args, *kwargs.values()) if isinstance(each, Symbol)]
    deps = 0
    for each in symbols:
        deps |= each.deps
    if name in ("max", "min") and len(args) == 2 and len(symbols) == 2:
        name += "imum"
    if name not in ELEMENTWISE:
        return _on_vectors(func, name, space, deps, args, kwargs)
    if name in _UNCHANGED and args[0].mixed:
        return args[0]
    ranks = {each.rank for each in symbols}
    if len(ranks) > 1:
        _check_promotion(func, name, args, kwargs)
    if not _is_joint(deps) and not any(each.mixed for each in symbols):
        return _computed(func, name, space, deps, args, kwargs, max(ranks))
    return _expression(func, name, space, deps, args, kwargs)


def _space_of(values: Sequence[Any]) -> Space:
    for each in values:
        if isinstance(each, Symbol):
            return each.space
        if isinstance(each, (tuple, list)) and _holds_symbol(each):
            return _space_of(each)
    raise AssertionError("no argument is a symbol")


def _is_joint(deps: int) -> bool:
    return deps & BOTH == BOTH or bool(deps & SCORE)


def _computed(func: Any, name: str, space: Space, deps: int, args: Any, kwargs: Any, rank: int) -> Symbol:
    value = func(*(_wide(each, rank) for each in args), **{key: _wide(each, rank) for key, each in kwargs.items()})
    if not isinstance(value, Tensor):
        raise Untraceable(f"{name} returns {type(value).__name__}")
    return Symbol(space, deps, value=value, op=name, func=func, args=args, kwargs=kwargs, rank=rank)


def _check_promotion(func: Any, name: str, args: Any, kwargs: Any) -> None:
    """Refuses a number and a vector of dtypes that torch promotes in another way than two vectors."""
    dtypes = {
        func(*map(like, args), **{key: like(each) for key, each in kwargs.items()}).dtype
        for like in (_like, lambda each: _like(each).reshape(-1)[:1] if isinstance(each, Symbol) else each)
    }
    if len(dtypes) > 1:
        raise Untraceable(f"{name} of a number and a vector of different dtypes")


def _wide(each: Any, rank: int) -> Any:
    """The value of an argument, with vector dims that line up from the right."""
    return _widened(each.value, each.rank, rank) if isinstance(each, Symbol) else each


def _widened(value: Tensor, own: int, rank: int) -> Tensor:
    return value if own == rank else value.reshape(value.shape[:LEAD] + (1,) * (rank - own) + value.shape[LEAD:])


def _expression(func: Any, name: str, space: Space, deps: int, args: Any, kwargs: Any) -> Symbol:
    like = _like_result(func, args, kwargs)
    return Symbol(space, deps, op=name, func=func, args=args, kwargs=kwargs, like=like, rank=like.ndim)


def _like_result(func: Any, args: Any, kwargs: Any) -> Tensor:
    said = None if kwargs else tuple(map(_said, args))
    if said is None or None in said:
        return _computed_like(func, args, kwargs)
    key = func, said
    if key not in _LIKE:
        if len(_LIKE) >= _MOST_LIKE:
            _LIKE.clear()
        _LIKE[key] = _computed_like(func, args, kwargs)
    return _LIKE[key]


def _computed_like(func: Any, args: Any, kwargs: Any) -> Tensor:
    result: Tensor = func(*map(_like, args), **{key: _like(each) for key, each in kwargs.items()})
    return _ones(result.shape, result.dtype)


_LIKE: dict[Any, Tensor] = {}
_MOST_LIKE = 4096


def _said(each: Any) -> Any:
    """What decides the dtype and shape of a result, of one argument; None where more than this may."""
    if isinstance(each, Symbol):
        return each.dtype, tuple(each.shape)
    return type(each) if type(each) in (bool, int, float) else None


_ONES: dict[torch.dtype, Tensor] = {}


def _ones(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """What stands for a symbol where torch is asked for the dtype and shape of a result; on the CPU, of no memory."""
    if dtype not in _ONES:
        _ONES[dtype] = torch.ones((), dtype=dtype, device="cpu")
    return _ONES[dtype].expand(shape)


def _like(each: Any) -> Any:
    if not isinstance(each, Symbol):
        return each
    return _ones(each.shape, each.dtype) if each.like is None else each.like


def _on_vectors(func: Any, name: str, space: Space, deps: int, args: Any, kwargs: Any) -> Any:
    """Reductions of vectors, such as the sum of a gathered row."""
    vector = args[0]
    if not isinstance(vector, Symbol):
        raise Untraceable(f"the function calls {name}, which symbols do not follow")
    if name == "squeeze" and not vector.rank:
        return vector
    if name == "unbind" and vector.rank and not kwargs and len(args) == 1:
        return tuple(vector)
    if name not in VECTOR or not vector.rank or set(kwargs) - {"dim"} or len(args) > 2:
        raise Untraceable(f"the function calls {name}, which symbols do not follow")
    if _is_joint(deps) or any(isinstance(each, Symbol) and each.mixed for each in args):
        return _expression(func, name, space, deps, args, kwargs)
    value = _reduced(name, [each.value if isinstance(each, Symbol) else each for each in args], kwargs, vector.rank)
    return Symbol(space, deps, value=value, op=name, func=func, args=args, kwargs=kwargs, rank=value.ndim - LEAD)


def _reduced(name: str, args: Sequence[Any], kwargs: Mapping[str, Any], rank: int) -> Tensor:
    if name == "dot":
        product: Tensor = args[0] * args[1]
        return product.sum(-1)
    dims = kwargs.get("dim", args[1] if len(args) > 1 else None)
    dims = tuple(range(rank)) if dims is None else (dims,) if isinstance(dims, int) else tuple(dims)
    result: Tensor = getattr(torch, name)(args[0], dim=tuple(dim - rank if dim >= 0 else dim for dim in dims))
    return result


def get_item(tensor: Any, index: Any) -> Any:
    """Returns tensor[index] where either holds symbols; indices are numbers, one per leading dim."""
    index = index if isinstance(index, tuple) else (index,)
    if any(each is None or each is Ellipsis or isinstance(each, (slice, list)) for each in index):
        raise Untraceable("the function slices by an index")
    if isinstance(tensor, Symbol):
        if tensor.op == "gather" and tensor.rank:
            return get_item(tensor.args[0], (*tensor.args[1], *index))  # bias[b][q] is bias[b, q]
        return _entry(tensor, index)
    return _gather(tensor, index, _space_of(index))


def _gather(tensor: Tensor, index: tuple[Any, ...], space: Space) -> Symbol:
    _check_device(tensor, space)
    whole = tuple(lift(space, each) for each in index)
    deps, known = 0, True
    for each in whole:
        if isinstance(each, Symbol):
            if each.rank:
                raise Untraceable("the function indexes with a vector")
            if each.dtype == torch.bool or each.dtype.is_floating_point:
                raise Untraceable(f"the function indexes with {each.dtype}")
            deps |= each.deps
            known = known and not each.mixed
    rank = tensor.ndim - len(whole)
    if rank < 0:
        raise IndexError(f"too many indices for a captured tensor of {tensor.ndim} dimensions: {len(whole)}")
    _check_bounds(tensor, whole, space)
    dims = tensor.shape[len(whole) :]
    if not known or _is_joint(deps) or (rank and _cells(whole) * dims.numel() > _LARGEST_GATHER):
        return Symbol(space, deps, op="gather", args=(tensor, whole), like=_ones(dims, tensor.dtype), rank=rank)
    if all(isinstance(each, Symbol) and each.op == "leaf" and each.deps for each in whole) and not tensor.requires_grad:
        value = _viewed(tensor, whole, space)
    else:
        value = _gathered(tensor, [each.value if isinstance(each, Symbol) else each for each in whole], space)
    return Symbol(space, deps, value=value, op="gather", args=(tensor, whole), rank=rank)


def _viewed(tensor: Tensor, indices: Sequence[Symbol], space: Space) -> Tensor:
    """Gathers by b, h, q and kv themselves, in bounds: a view."""
    strides = [0] * LEAD
    for each, stride in zip(indices, tensor.stride(), strict=False):
        strides["bhqk".index(str(each.name))] += stride
    named = {each.name for each in indices}
    lead = [size if name in named else 1 for name, size in zip("bhqk", space.sizes, strict=True)]
    inner = len(indices)
    return tensor.as_strided((*lead, *tensor.shape[inner:]), (*strides, *tensor.stride()[inner:]))


def _check_bounds(tensor: Tensor, whole: Sequence[Any], space: Space) -> None:
    """Refuses plain indices that pass the end of a dim, which on a GPU would end the process's work there."""
    for dim, each in enumerate(whole):
        name = each.name if isinstance(each, Symbol) and each.op == "leaf" else None
        if name in ("b", "h", "q", "k") and space.sizes["bhqk".index(name)] > tensor.shape[dim]:
            last = space.sizes["bhqk".index(name)] - 1
            raise IndexError(f"index {last} is out of bounds for dimension {dim} with size {tensor.shape[dim]}")


def _cells(whole: Sequence[Any]) -> int:
    cells = 1
    for each in whole:
        cells *= each.value.numel() if isinstance(each, Symbol) else 1
    return cells


def _gathered(tensor: Tensor, values: Sequence[Any], space: Space) -> Tensor:
    """Gathers [lead dims, *vector dims]."""
    if not any(isinstance(each, Tensor) for each in values):
        picked = tensor[tuple(values)]
        return picked.reshape((1,) * LEAD + tuple(picked.shape))
    return tensor[
        tuple(
            each.long() if isinstance(each, Tensor) else torch.full((1,) * LEAD, each, device=space.device)
            for each in values
        )
    ]


def _entry(vector: Symbol, index: tuple[Any, ...]) -> Symbol:
    """vector[index] of a computed vector: entries by numbers, or by symbols of the same token."""
    if len(index) > vector.rank:
        raise Untraceable("the function indexes an index")
    whole = tuple(lift(vector.space, each) for each in index)
    deps = vector.deps
    for each in whole:
        deps |= each.deps if isinstance(each, Symbol) else 0
    if vector.mixed or _is_joint(deps):
        raise Untraceable("the function takes an entry of a vector that depends on both tokens")
    value = _entry_value(vector.value, [each.value if isinstance(each, Symbol) else each for each in whole])
    return Symbol(vector.space, deps, value=value, op="entry", args=(vector, whole), rank=value.ndim - LEAD)


def _entry_value(value: Tensor, index: Sequence[Any]) -> Tensor:
    for each in index:
        if isinstance(each, Tensor):
            at = each.long().reshape(each.shape[:LEAD] + (1,) * (value.ndim - LEAD))
            value = torch.take_along_dim(value, at, dim=LEAD).select(LEAD, 0)
        else:
            value = value.select(LEAD, each)
    return value


def trace(function: Callable[..., Any], space: Space, score_dtype: torch.dtype | None = None) -> Any:
    """Runs the function once on symbols: (b, h, q, kv), after a score of `score_dtype` if that is given.

    Returns a Symbol, or the plain number that a function returns which ignores its arguments. Raises Untraceable where
    symbols cannot follow, ElsewhereError for a captured tensor on another device, and IndexError as indexing does.
    """
    symbols = space.symbols()
    if score_dtype is not None:
        symbols.insert(0, Symbol(space, SCORE, op="score", like=_ones((), score_dtype), name="score"))
    try:
        with _SeesIndexing():
            result = function(*symbols)
    except (Untraceable, ElsewhereError, IndexError):
        raise
    except Exception as error:  # symbols are not all that tensors are
        raise Untraceable(f"{type(error).__name__}: {error}") from error
    return lift(space, result)


def trace_mask(mask_mod: Callable[..., Any], space: Space) -> Symbol:
    """Returns the boolean symbol that a mask_mod computes; raises TypeError where it returns no boolean."""
    result = trace(mask_mod, space)
    if not isinstance(result, Symbol) or result.dtype != torch.bool:
        found = result.dtype if isinstance(result, Symbol) else described(result)
        raise TypeError(f"mask_mod returned {found}; expected booleans")
    if result.rank:
        raise ValueError(f"mask_mod returned shape {list(result.shape)}; expected one boolean, of no dimension")
    return result


def evaluate(symbol: Any, env: Mapping[str, Tensor], space: Space, memo: dict[int, Any] | None = None) -> Any:
    """Computes an expression with other indices: `env` has tensors for some of b, h, q, k and score, by name.

    Values that depend on none of these are taken as they are.

    Returns a tensor [B or 1, H or 1, Q or 1, KV or 1, *vector dims], or the number that `symbol` is.
    """
    if not isinstance(symbol, Symbol):
        return symbol
    memo = {} if memo is None else memo
    if id(symbol) not in memo:
        memo[id(symbol)] = _evaluated(symbol, env, space, memo)
    return memo[id(symbol)]


def _evaluated(symbol: Symbol, env: Mapping[str, Tensor], space: Space, memo: dict[int, Any]) -> Any:
    def value(each: Any) -> Any:
        return evaluate(each, env, space, memo)

    if symbol.name is not None and symbol.name in env:
        return env[symbol.name]
    if symbol.value is not None and not any(symbol.deps & _BITS[name] for name in env):
        return symbol.value
    if symbol.op == "gather":
        return _gathered(symbol.args[0], [value(each) for each in symbol.args[1]], space)
    if symbol.op == "entry":
        return _entry_value(value(symbol.args[0]), [value(each) for each in symbol.args[1]])
    if symbol.op in VECTOR:
        kwargs = {key: value(each) for key, each in symbol.kwargs.items()}
        return _reduced(symbol.op, [value(each) for each in symbol.args], kwargs, symbol.args[0].rank)
    top = max(each.rank for each in (*symbol.args, *symbol.kwargs.values()) if isinstance(each, Symbol))

    def wide(each: Any) -> Any:
        return _widened(value(each), each.rank, top) if isinstance(each, Symbol) else each

    return symbol.func(*map(wide, symbol.args), **{key: wide(each) for key, each in symbol.kwargs.items()})
