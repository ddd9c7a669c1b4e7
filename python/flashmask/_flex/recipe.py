# SPDX-License-Identifier: Apache-2.0
"""The arguments of attention() that compute a score_mod."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor

from flashmask._flex.scores import Unrecognised, changed, depends_on_score, hidden_by, product
from flashmask._flex.symbols import BOTH, LEAD, B, H, K, Q, Space, Symbol, evaluate, lift, trace
from flashmask.scores import ScoreChange

LARGEST = 1 << 30
"""Bytes of a bias of each pair that is computed rather than passed."""
_WHOLE = torch.int32, torch.int64
_COMPARISONS = "lt", "le", "gt", "ge", "eq", "ne"
_FLOATS = torch.float32, torch.bfloat16, torch.float16


class TooLarge(Exception):
    """A bias that takes too much memory; the message names it."""


class Alibi(NamedTuple):
    """-slopes · |query position - key position|; None: a token's position is its number. `term` is the whole bias."""

    term: Symbol
    slopes: Any
    query_positions: Symbol | None
    key_positions: Symbol | None


@dataclass
class Recipe:
    """What computes a score_mod: numbers, and symbols of the indices named. Lists of biases are added up."""

    scale: float = 1.0
    query_factor: Any = None  # of b, h, q
    key_factor: Any = None  # of b, kv, and of h where each query head has its own keys
    softcap: float | None = None
    rows: list[Any] = field(default_factory=list)  # biases of b, h, q
    keys: list[Symbol] = field(default_factory=list)  # biases of b, h, kv
    distances: list[Symbol] = field(default_factory=list)  # biases of b, h, q - kv
    pairs: list[Symbol] = field(default_factory=list)  # other biases
    alibi: list[Alibi] = field(default_factory=list)
    masks: list[Any] = field(default_factory=list)  # booleans, all of which hold where a score is visible
    change: ScoreChange | None = None  # of scores, in place of all other fields but masks

    def parts(self) -> list[str]:
        """Names what it asks for, in the order of the fields."""
        named = {name: getattr(self, name) for name in self.__dataclass_fields__}
        asked = {n: bool(part) if isinstance(part, list) else part is not None for n, part in named.items()}
        return [name for name in named if asked[name] and (name != "scale" or self.scale != 1.0)]


def recognise(score_mod: Callable[..., Any], space: Space, dtype: torch.dtype, grouped: bool) -> Recipe:
    """Reads a score_mod for scores of `dtype`; `grouped`: query heads share keys.

    Raises Unrecognised where no argument computes it, and what trace() raises.
    """
    result = trace(score_mod, space, dtype)
    if not depends_on_score(result):
        raise Unrecognised("scores that do not depend on the product of q and k")
    found = changed(result)
    recipe = Recipe(masks=found.masks)
    factors = found.factors
    if found.inner is not None:
        outer = product([_number(each) for each in factors])
        if outer == 0 or not math.isfinite(outer):
            raise Unrecognised(f"tanh() of the score times {outer}")
        recipe.softcap = abs(outer)
        factors = [*found.inner, outer]
    for each in factors:
        _add_factor(recipe, each, grouped)
    for each in found.biases:
        _add_bias(recipe, each, dtype)
    return recipe


def _number(factor: Any) -> float:
    if isinstance(factor, (int, float)):
        return float(factor)
    if not factor.mixed and factor.value.numel() == 1 and not factor.value.requires_grad:
        return float(factor.value)
    raise Unrecognised("tanh() of the score times a factor that is not one number, or learns")


def _add_factor(recipe: Recipe, factor: Any, grouped: bool) -> None:
    if not isinstance(factor, Symbol):
        recipe.scale *= factor
    elif factor.rank:
        raise Unrecognised("a vector for each score")
    elif not factor.deps & K:
        _scale_queries(recipe, factor)
    elif not factor.deps & Q and not (factor.deps & H and grouped):
        recipe.key_factor = factor if recipe.key_factor is None else recipe.key_factor * factor
    elif factor.op == "mul":
        for part in factor.args:
            _add_factor(recipe, part, grouped)
    elif factor.op == "div" and not factor.kwargs:
        _add_factor(recipe, factor.args[0], grouped)
        _add_factor(recipe, 1.0 / factor.args[1], grouped)
    elif factor.deps & Q:
        raise Unrecognised("the score times a factor of both tokens")
    else:
        raise Unrecognised("the score times a factor of a key and a query head, where query heads share keys")


def _scale_queries(recipe: Recipe, factor: Symbol) -> None:
    value = value_of(factor)
    if value.is_cpu and value.numel() == 1 and not value.requires_grad:
        recipe.scale *= float(value)
    else:
        recipe.query_factor = factor if recipe.query_factor is None else recipe.query_factor * factor


def _add_bias(recipe: Recipe, term: Any, dtype: torch.dtype) -> None:
    if not isinstance(term, Symbol):
        recipe.rows.append(term)
    elif term.rank:
        raise Unrecognised("a vector for each score")
    elif (hiding := hidden_by(term)) is not None:
        recipe.masks.append(hiding[0])
        _add_bias(recipe, hiding[1], dtype)
    elif not term.deps & K:
        recipe.rows.append(term)
    elif not term.deps & Q:
        recipe.keys.append(term)
    elif dtype is not torch.float64 and (found := _alibi(term)) is not None:
        recipe.alibi.append(found)
    elif is_by_distance(term):
        recipe.distances.append(term)
    elif term.op in ("add", "sub") and not term.kwargs:
        first, second = term.args
        _add_bias(recipe, first, dtype)
        _add_bias(recipe, second if term.op == "add" else -second, dtype)
    else:
        recipe.pairs.append(term)


def linear(number: Any) -> tuple[int, int] | None:
    """Returns (a, b) of a·q + b·kv + whole numbers of neither token, None for any other expression."""
    if not isinstance(number, Symbol) or not number.deps & BOTH:
        return 0, 0
    op, args = number.op, number.args
    if op == "leaf":
        return (1, 0) if number.name == "q" else (0, 1)
    if op in ("to", "int", "long", "float", "double"):
        return linear(args[0])
    if op == "neg":
        return _combined(0, (0, 0), -1, linear(args[0]))
    if op == "mul" and any(isinstance(each, int) for each in args):
        factor, of = args if isinstance(args[0], int) else args[::-1]
        return _combined(0, (0, 0), factor, linear(of))
    signs = {"add": (1, 1), "sub": (1, -1), "rsub": (-1, 1)}.get(op)
    return _combined(signs[0], linear(args[0]), signs[1], linear(args[1])) if signs and not number.kwargs else None


def _combined(a: int, x: tuple[int, int] | None, b: int, y: tuple[int, int] | None) -> tuple[int, int] | None:
    """Returns a·x + b·y."""
    return None if x is None or y is None else (a * x[0] + b * y[0], a * x[1] + b * y[1])


def is_by_distance(term: Any) -> bool:
    """Whether an expression depends on the two tokens through q - kv alone."""
    if not isinstance(term, Symbol) or not term.deps & BOTH:
        return True
    slopes = linear(term)
    if slopes is not None:
        return slopes[0] == -slopes[1]
    if term.op in ("leaf", "entry"):
        return False
    if term.op in _COMPARISONS:  # i > j is i - j > 0
        (a, b), (c, d) = (linear(each) or (math.nan, math.nan) for each in term.args)
        if a - c == d - b:
            return True
    args = term.args[1] if term.op == "gather" else (*term.args, *term.kwargs.values())
    return all(map(is_by_distance, args))


def _alibi(term: Symbol) -> Alibi | None:
    sign, slopes, inside = -1.0, None, term
    while inside.op in ("neg", "mul", "to", "float"):
        if inside.op == "neg":
            sign = -sign
        if inside.op != "mul":
            inside = inside.args[0]
            continue
        tokens = [isinstance(each, Symbol) and bool(each.deps & BOTH) for each in inside.args]
        if tokens not in ([True, False], [False, True]):
            return None
        factor, inside = inside.args if tokens[1] else inside.args[::-1]
        slopes = factor if slopes is None else slopes * factor
    if inside.op != "abs" or slopes is None or (isinstance(slopes, Symbol) and slopes.requires_grad):
        return None
    positions = _positions(inside.args[0])
    return None if positions is None else Alibi(term, slopes * sign, *positions)


def _positions(difference: Symbol) -> tuple[Symbol | None, Symbol | None] | None:
    """Reads a difference of a query's and a key's position, in either order; whole numbers, the same for all heads."""
    if difference.op != "sub" or difference.kwargs or not all(isinstance(each, Symbol) for each in difference.args):
        return None
    of_query, of_key = sorted(difference.args, key=lambda each: each.deps & K)
    if of_query.deps & BOTH != Q or of_key.deps & BOTH != K or (of_query.deps | of_key.deps) & H:
        return None
    if of_query.dtype not in _WHOLE or of_key.dtype not in _WHOLE:
        return None
    return (None if of_query.name == "q" else of_query), (None if of_key.name == "k" else of_key)


def bias_arguments(recipe: Recipe, space: Space, dtype: torch.dtype) -> dict[str, Any]:
    """Returns alibi_slopes, distance_bias or bias of attention(), with what belongs to each, for q of `dtype`."""
    terms = [*recipe.keys, *recipe.distances, *recipe.pairs]
    if len(recipe.alibi) == 1 and not terms:
        return _alibi_arguments(recipe.alibi[0], space)
    terms += [each.term for each in recipe.alibi]
    if not terms:
        return {}
    if len(terms) == len(recipe.keys):
        return {"bias": as_bias(_sum(recipe.keys, {}, space, dtype), dtype).expand(-1, -1, 1, space.sizes[3])}
    if all(map(is_by_distance, terms)):
        table = as_bias(by_distance(terms, space, dtype), dtype)
        return {"distance_bias": table, "distance_origin": space.sizes[2] - 1}
    return {"bias": as_bias(of_pairs(terms, space, dtype), dtype).expand(-1, -1, *space.sizes[2:])}


def _alibi_arguments(alibi: Alibi, space: Space) -> dict[str, Any]:
    heads = space.sizes[1]
    slopes = alibi.slopes
    if not isinstance(slopes, Symbol):
        slopes = lift(space, torch.tensor(slopes, device=space.device))
    values = value_of(slopes).to(torch.float32)[:, :, 0, 0].expand(-1, heads).contiguous()
    arguments = {"alibi_slopes": values[0] if len(values) == 1 else values}
    if alibi.query_positions is None and alibi.key_positions is None and space.sizes[2] == space.sizes[3]:
        return arguments
    of_query = space.index[2] if alibi.query_positions is None else value_of(alibi.query_positions)
    of_key = space.index[3] if alibi.key_positions is None else value_of(alibi.key_positions)
    return arguments | {"query_positions": of_query[:, 0, :, 0], "key_positions": of_key[:, 0, 0, :]}


def by_distance(terms: list[Any], space: Space, dtype: torch.dtype) -> Tensor:
    """The sum of biases for q - kv from -(KV - 1) to Q - 1, [1 or B, 1 or H, 1, Q + KV - 1]."""
    rows, columns = space.sizes[2:]
    distance = torch.arange(1 - columns, rows, device=space.device).reshape(1, 1, 1, -1)
    table = _sum(terms, {"q": distance, "k": torch.zeros_like(distance[..., :1])}, space, dtype)
    return table.expand(-1, -1, 1, rows + columns - 1)


def of_pairs(terms: list[Any], space: Space, dtype: torch.dtype) -> Tensor:
    if len(terms) == 1 and (view := view_of(terms[0], space)) is not None:
        return view
    told_apart = 0
    for each in terms:
        told_apart |= each.deps
    size = 8 if dtype is torch.float64 else 4
    for bit, count in zip((B, H, Q, K), space.sizes, strict=True):
        size *= count if told_apart & bit else 1
    if size > LARGEST:
        raise TooLarge(f"a bias of each pair that it computes, {size / 2**30:.1f} GiB for these sizes")
    return _sum(terms, {}, space, dtype)


def view_of(term: Symbol, space: Space) -> Tensor | None:
    """Returns a captured tensor that is indexed by b, h, q_idx and kv_idx themselves, as a view of four dimensions."""
    if term.op != "gather":
        return None
    tensor, index = term.args
    names = "".join(each.name or "?" if isinstance(each, Symbol) and each.op == "leaf" else "?" for each in index)
    sizes = dict(zip("bhqk", space.sizes, strict=True))
    if set(names) - set(sizes) or len(set(names)) < len(names):
        return None
    if any(size < sizes[name] for name, size in zip(names, tensor.shape, strict=True)):
        return None
    cut = tensor[tuple(slice(sizes[name]) for name in names)].permute([names.index(n) for n in "bhqk" if n in names])
    view: Tensor = cut[tuple(slice(None) if name in names else None for name in "bhqk")]
    return view


def _sum(terms: list[Any], env: dict[str, Tensor], space: Space, dtype: torch.dtype) -> Tensor:
    """Evaluates biases; one alone keeps its dtype, several are added in that of the scores."""
    parts: list[Tensor] = [evaluate(each, env, space) for each in terms]
    if len(parts) == 1:
        return parts[0]
    sums = torch.float64 if dtype is torch.float64 else torch.float32
    return reduce(operator.add, (each.to(sums) for each in parts))


def as_bias(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Converts a bias to a dtype that attention() takes beside q of `dtype`."""
    if dtype is torch.float64:
        return values.double()
    return values if values.dtype in _FLOATS else values.float()


def lines(factor: Symbol, axis: int) -> Tensor:
    """Returns a factor of queries (axis 2) or keys (axis 3), or a bias of queries, as [1 or B, 1 or H, tokens, 1]."""
    value = value_of(factor)
    assert value.ndim == LEAD
    return value if axis == 2 else value.transpose(2, 3)


def value_of(symbol: Symbol) -> Tensor:
    """Returns the numbers of a symbol that depends on one token at most; a trace leaves out what gathers long rows."""
    value: Tensor = evaluate(symbol, {}, symbol.space) if symbol.value is None else symbol.value
    return value
