# SPDX-License-Identifier: Apache-2.0
"""Attention under a BlockMask and with a function of scores, which are read on the host."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import reduce
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from flashmask._arguments import described
from flashmask._attention import attention
from flashmask._flex.captured import made_once
from flashmask._flex.checks import is_of_any_size
from flashmask._flex.expression import change_of_function, recipe_of_function
from flashmask._flex.recipe import Recipe, TooLarge, bias_arguments, lines, recognise, value_of, view_of
from flashmask._flex.repeatable import RepeatableIndexing
from flashmask._flex.scores import Unrecognised
from flashmask._flex.symbols import Space, Symbol, Untraceable, call
from flashmask._graph_break import breaks_graph
from flashmask._mask import Mask
from flashmask._rows import RowIndices
from flashmask.scores import UNCHANGED, ScoreChange, from_function, from_keywords, multiply

if TYPE_CHECKING:
    from flashmask._flex.attention import ScoreMod

_LARGEST_KEPT = 1 << 22  # elements of a bias
_WIDEST_COMPILED = 256  # dims of the widest heads whose kernels are compiled
_AS_STEPS = {"scale", "softcap", "keys", "distances", "pairs", "alibi"}
"""Parts of a recipe that steps of a ScoreChange compute."""


@breaks_graph
def with_functions(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    score_mod: ScoreMod | None,
    block_mask: Any,
    scale: float | None,
    with_lse: bool,
    with_max_scores: bool,
    argument: str = "score_mod",
    **others: Any,
) -> tuple[Tensor, ...]:
    """Returns o, lse and perhaps the largest scores of rows of tensors (batch, heads, tokens, dim).

    lse lacks biases of rows unless `with_lse`. `argument` is what messages call score_mod; `others` are options of
    attention().
    """
    wanted: dict[str, Any] = {"layout": "bhsd", "return_lse": True, "return_max_scores": with_max_scores} | others
    mask = _mask_of_blocks(block_mask, (q.shape[0], q.shape[1], q.shape[2], k.shape[2]))
    if score_mod is None:
        o, lse, *max_scores = attention(q, k, v, mask, scale=scale, **wanted)
        return o, lse, *max_scores
    compiles = _may_compile(q.device, q.shape[3]) and not others.get("invariant")
    said = (score_mod, q.shape[0], q.shape[1], q.shape[2], k.shape[1], k.shape[2], q.device, q.dtype, compiles)
    recipe, space, arguments = made_once(
        "arguments", score_mod, said, lambda: _read(argument, score_mod, q, k, compiles), _may_be_kept
    )
    if recipe.masks and 0 not in space.sizes:
        mask = _both(mask, made_once("mask", score_mod, said, lambda: _visible(recipe)))
    if recipe.query_factor is not None:
        q = (q * lines(recipe.query_factor, 2)).to(q.dtype)
    if recipe.key_factor is not None:
        k = (k * lines(recipe.key_factor, 3)).to(k.dtype)
    scale = (1.0 / math.sqrt(q.shape[3]) if scale is None else scale) * recipe.scale
    if scale == 0:
        q, scale = q * 0.0, 1.0
    arguments = (
        {"scale": scale} | wanted | (arguments if "score" in arguments else {"softcap": recipe.softcap} | arguments)
    )
    o, lse, *max_scores = attention(q, k, v, mask, **arguments)
    for bias in recipe.rows:
        o, lse = _with_bias_of_rows(o, lse, bias, with_lse)
        max_scores = [_biased(each, bias).detach() for each in max_scores]
    return o, lse, *max_scores


def _read(
    argument: str, score_mod: ScoreMod, q: Tensor, k: Tensor, compiles: bool
) -> tuple[Recipe, Space, dict[str, Any]]:
    """Returns what computes a score_mod, and the arguments of its biases. `compiles`: a kernel may be made for it."""
    space = Space((q.shape[0], q.shape[1], q.shape[2], k.shape[2]), q.device)
    dtype = torch.float64 if q.dtype is torch.float64 else torch.float32
    with RepeatableIndexing(), _refusing(argument, score_mod):
        recipe = _recipe(score_mod, space, dtype, q.shape[1] != k.shape[1])
        if compiles and _computes_pairs(recipe, space):
            with suppress(Unrecognised):
                inside = recipe_of_function(score_mod, space, dtype)
                recipe = recipe if _learns(inside.change) else inside
        return recipe, space, {"score": recipe.change} if recipe.change else bias_arguments(recipe, space, q.dtype)


def dtype_of(q: Any) -> torch.dtype:
    """Returns the dtype of a tensor; of an array, float64 or float32."""
    if isinstance(q, Tensor):
        return q.dtype
    return torch.float64 if "float64" in str(q.dtype) else torch.float32


@breaks_graph
def change_of(
    function: ScoreMod,
    sizes: tuple[int, int, int, int],
    key_heads: int,
    head_dim: int,
    device: torch.device | str,
    dtype: torch.dtype,
) -> ScoreChange:
    """Writes a function of scores as a ScoreChange for (batch, query heads, queries, keys) and q of `dtype`."""
    compiles = _may_compile(device, head_dim)
    return made_once(  # type: ignore[no-any-return]
        "change",
        function,
        (function, *sizes, key_heads, str(device), dtype, compiles),
        lambda: _change(function, Space(sizes, device), dtype, sizes[1] != key_heads, compiles),
        lambda change: _are_small([*change.operands, *change.reads]),
    )


def _change(function: ScoreMod, space: Space, of_q: torch.dtype, grouped: bool, compiles: bool) -> ScoreChange:
    dtype = torch.float64 if of_q is torch.float64 else torch.float32
    with RepeatableIndexing(), _refusing("score", function):
        recipe = _recipe(function, space, dtype, grouped)
        if recipe.scale == 0 or not set(recipe.parts()) <= _AS_STEPS:
            return change_of_function(function, space, dtype)
        if compiles and _computes_pairs(recipe, space):
            with suppress(Unrecognised):
                inside = change_of_function(function, space, dtype)
                if not _learns(inside):
                    return inside
        scaled = UNCHANGED if recipe.scale == 1 else multiply(recipe.scale)
        return scaled | from_keywords(softcap=recipe.softcap, **bias_arguments(recipe, space, of_q))


def _may_be_kept(read: tuple[Recipe, Space, dict[str, Any]]) -> bool:
    """Whether nothing read from a score_mod learns or is large."""
    recipe, _, arguments = read
    symbols = [recipe.query_factor, recipe.key_factor, *recipe.rows]
    values = [value_of(each) for each in symbols if isinstance(each, Symbol)]
    values += arguments.values()
    if recipe.change is not None:
        values += [*recipe.change.operands, *recipe.change.reads]
    return _are_small(values)


def _are_small(values: Iterable[Any]) -> bool:
    """Whether no tensor among values learns or is large."""
    tensors = [each for each in values if isinstance(each, Tensor)]
    return not any(each.requires_grad or each.numel() > _LARGEST_KEPT for each in tensors)


def _recipe(score_mod: ScoreMod, space: Space, dtype: torch.dtype, grouped: bool) -> Recipe:
    try:
        return recognise(score_mod, space, dtype, grouped)
    except Unrecognised:
        return recipe_of_function(score_mod, space, dtype)


def _may_compile(device: torch.device | str, head_dim: int) -> bool:
    """Whether kernels for such heads are compiled for any change of scores."""
    return torch.device(device).type == "cuda" and head_dim <= _WIDEST_COMPILED


def _computes_pairs(recipe: Recipe, space: Space) -> bool:
    """Whether torch would compute a bias of pairs of tokens; a compiled kernel computes it score by score instead."""
    return any(view_of(each, space) is None for each in recipe.pairs)


def _learns(change: ScoreChange | None) -> bool:
    """Whether a tensor that a change reads requires a gradient."""
    return change is not None and any(each.requires_grad for each in (*change.operands, *change.reads))


@contextmanager
def _refusing(argument: str, function: ScoreMod) -> Iterator[None]:
    """Refuses what cannot be read of a function of scores, an argument of this name."""
    name = getattr(function, "__qualname__", type(function).__qualname__)
    try:
        yield
    except TooLarge as error:
        raise NotImplementedError(
            f"{argument} adds {error}; pass it as a tensor, indexed by b, h, q_idx and kv_idx themselves, or write it "
            f"as a function of q_idx - kv_idx ({name})"
        ) from error
    except (Untraceable, Unrecognised) as error:
        what = f"what cannot be read, as {error}" if isinstance(error, Untraceable) else error
        elsewhere = ", or call torch.nn.attention.flex_attention here" if argument == "score_mod" else ""
        raise NotImplementedError(
            f"{argument} computes {what} ({name}): flashmask computes a factor of either token, a softcap, a bias "
            "without the score, -inf, and functions of one score; write it as these, or pass a sink as sinks= of "
            f"flashmask.attention(){elsewhere}"
        ) from error


def attention_with_function(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Any,
    plan: Any,
    options: Mapping[str, Any],
    return_lse: bool,
    return_max_scores: bool,
) -> Any:
    """Does what attention() does where score= is a function."""
    score, others = options["score"], {name: each for name, each in options.items() if name not in ("score", "scale")}
    name = getattr(score, "__qualname__", type(score).__qualname__)
    for each in ("softcap", "alibi_slopes", "bias", "distance_bias", "query_positions", "key_positions"):
        if others.get(each) is not None:
            raise ValueError(f"{each} is given beside score={name}; write it into the function")
    for given, tensor in (("q", q), ("k", k), ("v", v)):
        if not isinstance(tensor, Tensor) or tensor.ndim != 4:
            raise TypeError(
                f"{given} is {described(tensor)}; expected a torch tensor of 4 dimensions beside score={name}"
            )
    if plan is not None:
        change = from_function(score, q, k, layout=others.get("layout", "bshd"))
        others |= {"scale": options.get("scale"), "score": change}
        return attention(q, k, v, mask, plan=plan, return_lse=return_lse, return_max_scores=return_max_scores, **others)
    heads_first = others.pop("layout", "bshd") == "bhsd"
    if not heads_first:
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    o, lse, *largest = with_functions(
        q, k, v, score, mask, options.get("scale"), return_lse, return_max_scores, "score", **others
    )
    o = o if heads_first else o.transpose(1, 2)
    chosen = (o, *((lse,) if return_lse else ()), *largest)
    return chosen if len(chosen) > 1 else o


def _with_bias_of_rows(o: Tensor, lse: Tensor, bias: Any, with_lse: bool) -> tuple[Tensor, Tensor]:
    """Adds a bias of whole rows, which changes no probability: to lse. -inf hides its rows."""
    if isinstance(bias, Symbol):
        row = lines(bias, 2)
        if row.is_floating_point():
            o = o.masked_fill(row == -math.inf, 0.0)
    return o, _biased(lse, bias) if with_lse else lse


def _biased(of_rows: Tensor, bias: Any) -> Tensor:
    """Adds a bias of whole rows to lse or the largest scores."""
    return of_rows + (lines(bias, 2)[..., 0].to(of_rows.dtype) if isinstance(bias, Symbol) else bias)


def _mask_of_blocks(block_mask: Any, sizes: tuple[int, int, int, int]) -> Any:
    """Returns the mask of a BlockMask; whatever else was given, as it is."""
    if not hasattr(block_mask, "mask_mod"):
        return block_mask
    from flashmask.masks import from_mask_mod

    if is_of_any_size(block_mask):
        mask_mod = block_mask.mask_mod
        return from_mask_mod(mask_mod, *sizes, device=block_mask.kv_num_blocks.device)
    return mask_of_blocks(block_mask, sizes[:2])


def mask_of_blocks(block_mask: Any, call: tuple[int, int] = (1, 1)) -> Mask | RowIndices:
    """Returns the mask of a BlockMask, made once while it lives and no tensor of it or in it changes.

    `call` is the batch and heads of the call, which lists of one entry or head serve.
    """
    from flashmask.masks._block_mask import made_from_block_mask

    lists = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices", "BLOCK_SIZE", "seq_lengths")
    said = block_mask.mask_mod, *call, *(getattr(block_mask, name) for name in lists)
    made: Mask | RowIndices = made_once("mask", block_mask, said, lambda: made_from_block_mask(block_mask, call).mask)
    return made


def _both(mask: Any, other: Mask | RowIndices) -> Any:
    if mask is None:
        return other
    from flashmask.masks import from_dense

    if not isinstance(mask, (Mask, RowIndices)):
        mask = from_dense(mask.cpu() if isinstance(mask, Tensor) else mask)
    return reduce(operator.and_, (each.to_mask() if isinstance(each, RowIndices) else each for each in (mask, other)))


@torch.no_grad()
def _visible(recipe: Recipe) -> Mask | RowIndices:
    """Returns the mask of what a score_mod does not hide by -inf."""
    from flashmask.masks._mask_mod import from_symbol

    return from_symbol(reduce(lambda a, b: call(operator.and_, (a, b), {}), recipe.masks))
