# SPDX-License-Identifier: Apache-2.0
"""CallOptions: the options of a call of any function, beside its tensors and its mask, checked in one place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from inspect import signature
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn, TypeAlias, TypedDict

from flashmask._abi.problem import check_dropout, check_scale
from flashmask._arguments import boolean, choice, described
from flashmask._backends import AUTOMATIC, BY_NAME, OURS, Backend, cudnn_of
from flashmask.scores import UNCHANGED, ScoreChange, from_keywords, step_of

if TYPE_CHECKING:
    from flashmask._plans.plan import Plan

LAYOUTS = ("bshd", "bhsd")
Layout: TypeAlias = Literal["bshd", "bhsd"]


class ScoreArguments(TypedDict, total=False):
    """A change of scores, or in its place the keywords that each make a part of one."""

    score: ScoreChange | Callable[..., Any]
    softcap: float | None
    alibi_slopes: Any
    query_positions: Any
    key_positions: Any
    bias: Any
    distance_bias: Any
    distance_origin: int


class SharedArguments(ScoreArguments, total=False):
    """What attention(), varlen_attention() and flashmask_attention() take by the same names."""

    sinks: Any
    invariant: bool
    backend: Backend


class AttentionArguments(SharedArguments, total=False):
    """Options of attention()."""

    scale: float | None
    layout: Layout
    deterministic: bool
    dropout: float


class DecodeArguments(ScoreArguments, total=False):
    """Options of decode_attention()."""

    scale: float | None
    layout: Layout
    sinks: Any


class PlanArguments(TypedDict, total=False):
    """Options of plan(), whose calls pass the operands of a change of scores."""

    scale: float | None
    layout: Layout
    deterministic: bool
    invariant: bool
    score: ScoreChange | Callable[..., Any] | None
    softcap: float | None
    alibi: bool
    bias: bool
    distance_bias: bool


_MASK = "pass mask=flashmask.masks.causal(query length, key length)"
# Arguments of similar functions elsewhere, and what to pass to attention() instead.
_ELSEWHERE = {
    "causal": _MASK,
    "is_causal": _MASK,
    "attn_mask": "pass it as mask: a Mask, RowIndices, or booleans, True = visible",
    "block_mask": "pass mask=flashmask.masks.from_block_mask(block_mask), or call flashmask.flex_attention",
    "score_mod": "pass it as score",
    "enable_gqa": "leave it out: query heads may be any multiple of those of k",
    "startend_row_indices": "pass mask=flashmask.RowIndices(startend_row_indices, causal)",
    "window_size": "pass mask=flashmask.masks.sliding_window(...) or flashmask.masks.window(...)",
}
# Names for one thing in several libraries.
_SAME = ({"dropout", "dropout_p"}, {"scale", "softmax_scale", "scaling"}, {"sinks", "s_aux"}, {"softcap", "logit_cap"})


_WITH_FUNCTIONS = ("flashmask._attention", "flashmask._plans.plan", "flashmask._varlen", "flashmask.jax._attention")
"""Modules whose functions take changes of scores that are functions."""


class CallOptions(NamedTuple):
    """The options of a call, checked, whatever its arguments were called."""

    scale: float = 0.0
    """0: 1 / sqrt(head dim)."""
    heads_first: bool = False
    deterministic: bool = False
    invariant: bool = False
    dropout: float = 0.0
    sinks: Any = None
    score: ScoreChange = UNCHANGED
    cudnn: int = AUTOMATIC
    """Whose kernels compute, as _backends names them."""


DEFAULTS = CallOptions()
OF_A_PLAN = CallOptions(cudnn=OURS)


def options_of(
    function: Callable[..., Any],
    given: Mapping[str, Any],
    takes: Any,
    names: Mapping[str, str] | None = None,
    **bound: Any,
) -> CallOptions:
    """Returns the options that a function was given by keyword; refuses those that the TypedDict `takes` does not name.

    `bound`: options that are parameters of the function; `names`: what it calls those that have another name there.
    """
    for name, value in given.items():
        if name not in takes.__optional_keys__:
            refuse_keyword(function, name, value, takes.__annotations__)
    options = _checked(names or {}, **given, **bound)
    if "function(" in options.score.text and function.__module__ not in _WITH_FUNCTIONS:
        raise NotImplementedError(
            f"{function.__module__}.{function.__name__}() was given {options.score!r}; functions of scores, whose "
            "places are those of one call on one device, are flashmask.attention's and varlen_attention's"
        )
    return options


def _checked(
    names: Mapping[str, str],
    *,
    scale: Any = None,
    layout: Any = "bshd",
    deterministic: Any = False,
    invariant: Any = False,
    dropout: Any = 0.0,
    sinks: Any = None,
    backend: Any = None,
    score: Any = None,
    **keywords: Any,
) -> CallOptions:
    return CallOptions(
        0.0 if scale is None else check_scale(names.get("scale", "scale"), scale),
        layout != "bshd" and choice("layout", layout, LAYOUTS) == 1,
        deterministic is not False and boolean("deterministic", deterministic),
        invariant is not False and boolean("invariant", invariant),
        0.0 if dropout == 0 else check_dropout(names.get("dropout", "dropout"), dropout),
        sinks,
        _score(score, keywords) if keywords or score is not None else UNCHANGED,
        cudnn_of(backend),
    )


def _score(score: object, keywords: Mapping[str, Any]) -> ScoreChange:
    """Returns the change that score= is, or that the keywords for its parts say; refuses both together."""
    said = from_keywords(**keywords) if keywords else UNCHANGED
    if score is None:
        return said
    if not isinstance(score, ScoreChange):
        raise TypeError(
            f"score is {described(score)}; expected a change of scores, such as flashmask.scores.softcap(50.0) | "
            "flashmask.scores.alibi(slopes); a function is taken by flashmask.attention, plan and varlen_attention"
        )
    if said is not UNCHANGED:
        raise ValueError(
            f"score and keywords for a change of scores ({said!r}) are both given; join them by | in score"
        )
    return score


def refuse_keyword(function: Callable[..., Any], name: str, value: object, others: Iterable[str] = ()) -> NoReturn:
    """Raises TypeError for a keyword that a function takes neither as a parameter nor by **, as `others`."""
    parameters = signature(function).parameters.values()
    takes = [*(each.name for each in parameters if each.kind is not each.VAR_KEYWORD), *others]
    same = [other for names in _SAME if name in names for other in takes if other in names]
    if same:
        hint = f"pass it as {same[0]}"
    elif "plan" in takes and name in _ELSEWHERE:
        hint = _ELSEWHERE[name]
    else:
        near = get_close_matches(name, takes, 1)
        hint = (f"did you mean {near[0]}? " if near else "") + f"its arguments are {', '.join(takes)}"
    raise TypeError(f"{function.__name__}() does not take {name}, which is {described(value)}; {hint}")


def options_with_plan(options: CallOptions, plan: Plan, mask: object) -> CallOptions:
    """Returns the options of a call with a plan, which says the scale and the cap; refuses others."""
    if mask is not None and mask is not plan.mask:
        raise ValueError("mask and plan are both given, and the plan was made for another mask; pass one of them")
    if options.cudnn == BY_NAME:
        raise ValueError('backend="cudnn" came beside a plan, which is of our kernels; pass the mask instead')
    problem, score = plan.problem, options.score
    scale, change, kind = problem.scale or 0.0, problem.change, problem.bias_kind
    if options.cudnn == OURS and not (scale or change or options.scale or score.text):
        return options
    if options.scale not in (0.0, scale):
        raise ValueError(f"scale is {options.scale}; the plan was made for {problem.scale}: leave it out")
    if (score.kind == "alibi") != (kind == "alibi"):
        given, made = ("given", "without") if score.kind == "alibi" else ("not given", "with")
        raise ValueError(f"alibi_slopes is {given}, and the plan was made {made} alibi=True")
    if score.kind != kind:
        names = (f"{each}=True" if each else "no bias" for each in (score.kind, kind))
        raise ValueError("the call's bias fits a plan with {}; the plan was made with {}".format(*names))
    if score.text not in (change, step_of(kind)):
        raise ValueError(f"score is {score!r}; the plan was made for {change!r}: leave out what is no bias")
    return options._replace(
        scale=scale, score=ScoreChange(change, score.operands, score.origin, score.reads), cudnn=OURS
    )
