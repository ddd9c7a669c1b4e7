# SPDX-License-Identifier: Apache-2.0
"""Functions of scores: reads a function of jax.numpy as the expression that flashmask.scores.function() takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from flashmask.scores import MOST_READS, ScoreChange, function

_PLACES = "b", "h", "q", "k"
_EXACT = 1 << 24  # float32 holds every whole number below


def change_of(score: Callable[..., Any], dtype: str) -> ScoreChange:
    """Reads score(score, b, h, q_idx, kv_idx), which is traced once; arrays that it captures become operands."""
    kind = jnp.float64 if dtype == "float64" else jnp.float32
    place = jax.ShapeDtypeStruct((), jnp.int32)
    traced = jax.make_jaxpr(score)(jax.ShapeDtypeStruct((), kind), *[place] * 4)
    if len(traced.out_avals) != 1 or traced.out_avals[0].shape != ():
        raise TypeError(f"score returned {', '.join(map(str, traced.out_avals))}; expected one number")
    reader = _Reader(getattr(score, "__qualname__", type(score).__qualname__))
    (value,) = reader.outputs(traced, ["score", *_PLACES])
    return reader.change(value, traced.out_avals[0].dtype == jnp.bool_)


class _Captured:
    """An array that the function reads."""

    def __init__(self, array: Any) -> None:
        self.array = array


class _Reader:
    """Writes each equation as a named value of the text, and collects the arrays that are read."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lines: list[str] = []
        self._reads: list[Any] = []
        self._given: list[Any] = []

    def change(self, value: str, is_condition: bool) -> ScoreChange:
        value = self.call("where", value, "1", "0") if is_condition else value
        return function("; ".join([*self._lines, value]), *self._reads)

    def call(self, name: str, *args: str) -> str:
        """Names a call of the language."""
        self._lines.append(f"${len(self._lines)} = {name}({', '.join(args)})")
        return f"${len(self._lines) - 1}"

    def is_written(self, value: str, name: str, *args: str) -> bool:
        """Whether a value is this call."""
        return f"{value} = {name}({', '.join(args)})" in self._lines

    def refuse(self, what: str) -> NotImplementedError:
        return NotImplementedError(
            f"score computes {what} ({self._name}), which is no function of one score and its place: docs/scores.md"
        )

    def outputs(self, closed: ClosedJaxpr, args: Sequence[Any]) -> list[Any]:
        """Returns what a jaxpr computes of values: text, or arrays that were captured."""
        jaxpr: Jaxpr = closed.jaxpr
        known: dict[Any, Any] = dict(zip(jaxpr.invars, args, strict=True))
        known |= {var: _Captured(array) for var, array in zip(jaxpr.constvars, closed.consts, strict=True)}

        def value(var: Any) -> Any:
            found = _literal(var.val) if isinstance(var, Literal) else known[var]
            return self._scalar(found) if isinstance(found, _Captured) and var.aval.shape == () else found

        for equation in jaxpr.eqns:
            found = self._equation(equation, [value(var) for var in equation.invars])
            known |= dict(zip(equation.outvars, found, strict=True))
        return [value(var) for var in jaxpr.outvars]

    def _equation(self, equation: Any, args: list[Any]) -> list[Any]:
        name = equation.primitive.name
        inner = equation.params.get("jaxpr") or equation.params.get("call_jaxpr")
        if inner is not None and name in ("pjit", "jit", "closed_call", "custom_jvp_call", "custom_vjp_call"):
            return self.outputs(inner, args)
        if name == "dynamic_slice" and set(equation.params["slice_sizes"]) == {1} and isinstance(args[0], _Captured):
            return [self._read(args[0].array, args[1:])]
        if name in ("device_put", "copy", "copy_p"):
            return args
        if name == "convert_element_type" and isinstance(args[0], _Captured):
            return [_Captured(jnp.asarray(args[0].array).astype(equation.params["new_dtype"]))]
        write = _WRITERS.get(name)
        if write is None or any(isinstance(each, _Captured) for each in args):
            raise self.refuse(f"{name}() of an array" if write else f"{name}()")
        return [write(self, equation, *args)]

    def _scalar(self, captured: _Captured) -> str:
        """A captured number."""
        if not isinstance(captured.array, jax.core.Tracer):
            return _literal(captured.array)
        return self._read(captured.array.reshape(1), ["0"])

    def _read(self, array: Any, index: Sequence[str]) -> str:
        found = [i for i, each in enumerate(self._given) if each is array]
        if not found:
            if len(self._reads) == MOST_READS:
                raise self.refuse(f"with more than {MOST_READS} captured arrays")
            if array.ndim > 4:
                raise self.refuse(f"an entry of an array of {array.ndim} dimensions")
            self._given.append(array)
            self._reads.append(self._operand(jnp.asarray(array)))
        text = self.call("at", str(found[0] if found else len(self._reads) - 1), *index)
        return self.call("lt", "0.5", text) if array.dtype == jnp.bool_ else text

    def _operand(self, array: Any) -> Any:
        if jnp.issubdtype(array.dtype, jnp.floating):
            return array
        if not isinstance(array, jax.core.Tracer) and array.size and int(abs(array.astype(jnp.int32)).max()) >= _EXACT:
            raise self.refuse(f"with whole numbers from {_EXACT:,} on, of which float32 does not hold every one")
        return array.astype(jnp.float32)


def _literal(value: Any) -> str:
    number = float(value)
    return repr(int(number)) if number.is_integer() and abs(number) < _EXACT else repr(number)


def _of(name: str, swapped: bool = False) -> Callable[..., str]:
    return lambda r, _, *args: r.call(name, *(args[::-1] if swapped else args))


def _number(r: _Reader, aval: Any, text: str) -> str:
    return r.call("where", text, "1", "0") if aval.dtype == jnp.bool_ else text


def _compare(name: str, swapped: bool = False, negated: bool = False) -> Callable[..., str]:
    def write(r: _Reader, e: Any, a: str, b: str) -> str:
        x, y = (_number(r, var.aval, text) for var, text in zip(e.invars, (a, b), strict=True))
        found = r.call(name, *((y, x) if swapped else (x, y)))
        return r.call("not", found) if negated else found

    return write


def _logical(name: str) -> Callable[..., str]:
    def write(r: _Reader, e: Any, *args: str) -> str:
        if e.outvars[0].aval.dtype != jnp.bool_:
            raise r.refuse("the bits of a number")
        return r.call(name, *args)

    return write


def _truncated(r: _Reader, x: str) -> str:
    below = r.call("neg", r.call("floor", r.call("neg", x)))
    return r.call("where", r.call("lt", x, "0"), below, r.call("floor", x))


def _divided(r: _Reader, e: Any, a: str, b: str) -> str:
    found = r.call("div", a, b)
    return found if jnp.issubdtype(e.outvars[0].aval.dtype, jnp.floating) else _truncated(r, found)


def _remainder(r: _Reader, _: Any, a: str, b: str) -> str:
    return r.call("sub", a, r.call("mul", b, _truncated(r, r.call("div", a, b))))


def _chosen(r: _Reader, e: Any, condition: str, otherwise: str, chosen: str) -> str:
    if e.invars[0].aval.dtype != jnp.bool_:
        raise r.refuse("a choice among more than two")
    if otherwise in _PLACES and r.is_written(condition, "lt", otherwise, "0"):  # an index below 0 counts from the end
        return otherwise
    return r.call("where", condition, chosen, otherwise)


def _converted(r: _Reader, e: Any, x: str) -> str:
    before, after = e.invars[0].aval.dtype, e.outvars[0].aval.dtype
    if after == jnp.bool_:
        return x if before == jnp.bool_ else r.call("not", r.call("eq", x, "0"))
    if before == jnp.bool_:
        return r.call("where", x, "1", "0")
    whole = jnp.issubdtype(before, jnp.floating) and not jnp.issubdtype(after, jnp.floating)
    return _truncated(r, x) if whole else x


def _power(r: _Reader, e: Any, x: str, exponent: str | None = None) -> str:
    if exponent is not None:
        return r.call("exp", r.call("mul", exponent, r.call("log", x)))
    y = e.params["y"]
    found = "1"
    for _ in range(abs(y)):
        found = r.call("mul", found, x)
    return found if y >= 0 else r.call("div", "1", found)


def _sign(r: _Reader, _: Any, x: str) -> str:
    return r.call("where", r.call("lt", "0", x), "1", r.call("where", r.call("lt", x, "0"), "-1", "0"))


_WRITERS: dict[str, Callable[..., Any]] = {
    **{name: _of(name) for name in ("add", "sub", "mul", "max", "min", "neg", "abs", "floor", "sqrt", "exp", "log")},
    **{name: _of(name) for name in ("tanh", "erf", "sin", "cos")},
    **{name: _compare(name) for name in ("lt", "le", "eq")},
    **{name: _logical(name) for name in ("and", "or", "not")},
    **dict.fromkeys(("squeeze", "stop_gradient", "reduce_precision"), lambda r, e, x: x),
    "gt": _compare("lt", swapped=True),
    "ge": _compare("le", swapped=True),
    "ne": _compare("eq", negated=True),
    "div": _divided,
    "rem": _remainder,
    "select_n": _chosen,
    "convert_element_type": _converted,
    "integer_pow": _power,
    "pow": _power,
    "sign": _sign,
    "square": lambda r, e, x: r.call("mul", x, x),
    "ceil": lambda r, e, x: r.call("neg", r.call("floor", r.call("neg", x))),
    "clamp": lambda r, e, low, x, high: r.call("min", r.call("max", x, low), high),
    "rsqrt": lambda r, e, x: r.call("div", "1", r.call("sqrt", x)),
    "exp2": lambda r, e, x: r.call("exp", r.call("mul", repr(math.log(2)), x)),
    "expm1": lambda r, e, x: r.call("sub", r.call("exp", x), "1"),
    "log1p": lambda r, e, x: r.call("log", r.call("add", "1", x)),
    "tan": lambda r, e, x: r.call("div", r.call("sin", x), r.call("cos", x)),
    "logistic": lambda r, e, x: r.call("add", "0.5", r.call("mul", "0.5", r.call("tanh", r.call("mul", "0.5", x)))),
}
