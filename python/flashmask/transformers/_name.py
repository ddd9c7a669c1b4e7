# SPDX-License-Identifier: Apache-2.0
"""Stops Transformers from taking registered names for FlashAttention, as it takes every name that contains "flash".

Three of its functions are wrapped for that, a fourth to reach the layers of hybrid models that carry a state, a fifth
to note what positions a model is called with; these act on registered names only. A sixth makes other attention
functions refuse row indices. All read arguments by name. Where a version of Transformers lacks such a function or
parameter, it is left as it is, and a warning says once, when a model is made, what is uncertain then.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any, NamedTuple

import torch
import transformers
from transformers import AttentionInterface, PreTrainedModel, masking_utils, modeling_utils

from flashmask.transformers._calls import entered, is_read, left, read_forward
from flashmask.transformers._ignored import refusing_row_indices
from flashmask.transformers._models import modules_of, refuse_model
from flashmask.transformers._once import warn_once
from flashmask.transformers._ours import is_ours, keep_name
from flashmask.transformers._stateful import serve_states
from flashmask.transformers._tables import serve_tables

#: The oldest and the newest version of Transformers that the tests ran with.
TESTED = ("5.5", "5.24")
#: Names of the argument that holds a cache of keys and values: from Transformers 5.24 on, and before.
CACHE = ("cache", "past_key_values")

_COMPATIBLE = "_compatible_flash_implementations"
_CHECK = "_check_and_adjust_attn_implementation"
_uncertain: list[str] = []


class _Wrapped(NamedTuple):
    """A function of Transformers that is wrapped."""

    owner: Any
    name: str
    wrapper: Callable[..., Callable[..., Any]]
    #: The parameters that the wrapper reads, each under the names that it has or had.
    parameters: tuple[tuple[str, ...], ...]
    #: What is uncertain in a version that lacks one of them.
    otherwise: str


def keep(name: str) -> None:
    """Records a name as ours, and wraps the functions that have to know."""
    keep_name(name)
    for each in _TABLE:
        _wrap(each)
    if not hasattr(getattr(PreTrainedModel, _CHECK, None), "__flashmask_original__"):
        say_what_is_uncertain()  # otherwise _checking_a_model() does, when a model is made


def say_what_is_uncertain() -> None:
    """Warns once for each thing that a wrapper reads and this version of Transformers lacks."""
    for said in _uncertain:
        warn_once(
            f"flashmask is tested with Transformers {TESTED[0]} to {TESTED[1]}, and {transformers.__version__} is "
            f"installed, where {said}"
        )


def _wrap(wrapped: _Wrapped) -> None:
    original = getattr(wrapped.owner, wrapped.name, None)
    if hasattr(original, "__flashmask_original__"):
        return
    if original is None:
        _note(f"{wrapped.name} is gone: {wrapped.otherwise}")
        return
    held = signature(original).parameters
    missing = ["/".join(names) for names in wrapped.parameters if not any(each in held for each in names)]
    if missing:
        _note(f"{wrapped.name} has no parameter {', '.join(missing)}: {wrapped.otherwise}")
        return
    made = wrapped.wrapper(original)
    made.__flashmask_original__ = original  # type: ignore[attr-defined]
    setattr(wrapped.owner, wrapped.name, made)


def _note(said: str) -> None:
    if said not in _uncertain:
        _uncertain.append(said)


def _by_name(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that finds an argument by name, positional or not; it returns None if the call lacks it."""
    places = {name: place for place, name in enumerate(signature(function).parameters)}

    def given(arguments: tuple[Any, ...], options: dict[str, Any], *names: str) -> Any:
        for name in names:
            if name in options:
                return options[name]
            if places.get(name, len(arguments)) < len(arguments):
                return arguments[places[name]]
        return None

    return given


def _preloading(preload: Callable[..., Any]) -> Callable[..., Any]:
    """Skips loading a FlashAttention package, which Transformers does while it makes a model, for our names."""
    given = _by_name(preload)

    def preload_others(*arguments: Any, **options: Any) -> Any:
        return None if is_ours(given(arguments, options, "implementation")) else preload(*arguments, **options)

    return preload_others


def _deciding_masks(is_flash: Callable[..., bool]) -> Callable[..., bool]:
    """Lets our names have masks that FlashAttention lacks, such as chunks. Vision towers still call the original."""
    given = _by_name(is_flash)

    def is_another_flash(*arguments: Any, **options: Any) -> bool:
        ours = is_ours(getattr(given(arguments, options, "config"), "_attn_implementation", None))
        return not ours and is_flash(*arguments, **options)

    return is_another_flash


def _checking_a_model(check: Callable[..., str]) -> Callable[..., str]:
    """Keeps our name in models that list the builds of FlashAttention they work with; one of those would replace it."""
    given = _by_name(check)

    def check_others(self: PreTrainedModel, *arguments: Any, **options: Any) -> str:
        name = given((self, *arguments), options, "attn_implementation")
        if not is_ours(name):
            return check(self, *arguments, **options)
        say_what_is_uncertain()
        refuse_model(self, name)
        _serve(self)
        vars(self)[_COMPATIBLE] = None  # hides the list in the class
        try:
            return check(self, *arguments, **options)
        finally:
            del vars(self)[_COMPATIBLE]

    return check_others


def _reaching_states(post_init: Callable[..., Any]) -> Callable[..., Any]:
    """Reaches the layers that carry a state, in a model of ours that has just been made."""

    def post_init_others(self: PreTrainedModel, *arguments: Any, **options: Any) -> Any:
        found = post_init(self, *arguments, **options)
        if is_ours(getattr(self.config, "_attn_implementation", None)):
            _serve(self)
        return found

    return post_init_others


def _telling_positions(call: Callable[..., Any]) -> Callable[..., Any]:
    """Notes what positions a model is called with.

    The first call of a model that got our name by its configuration alone does what others go through when they are
    made.
    """

    def call_told(self: PreTrainedModel, *arguments: Any, **options: Any) -> Any:
        if is_ours(getattr(self.config, "_attn_implementation", None)) and not is_read(self):
            _serve_late(self)
        arguments, options = entered(self, arguments, options)
        try:
            return call(self, *arguments, **options)
        finally:
            left(self)

    return call_told


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _serve_late(model: PreTrainedModel) -> None:
    refuse_model(model, model.config._attn_implementation)
    _serve(model)


def _serve(model: PreTrainedModel) -> None:
    """Prepares a model that exists for our attention, with all models in it."""
    for each in model.modules():
        if isinstance(each, PreTrainedModel):
            serve_tables(modules_of(type(each)))
            read_forward(each)
    serve_states(model)


_TABLE = (
    _Wrapped(
        modeling_utils,
        "lazy_import_flash_attention",
        _preloading,
        (("implementation",),),
        "Transformers may look for a package of this name while it makes a model",
    ),
    _Wrapped(
        masking_utils,
        "is_flash_attention_requested",
        _deciding_masks,
        (("config",),),
        "models whose layers attend in chunks may be refused",
    ),
    _Wrapped(
        PreTrainedModel,
        _CHECK,
        _checking_a_model,
        (("attn_implementation",),),
        "models that flashmask cannot serve are not refused when they are made: compare a step with "
        'attn_implementation="eager"',
    ),
    _Wrapped(
        PreTrainedModel,
        "post_init",
        _reaching_states,
        (("self",),),
        "layers that carry a state, in hybrid models, go on from one document to the next",
    ),
    _Wrapped(
        AttentionInterface,
        "get_interface",
        refusing_row_indices,
        (("attn_implementation",), ("default",)),
        "other attention implementations ignore startend_row_indices rather than refuse them",
    ),
    _Wrapped(
        PreTrainedModel,
        "__call__",
        _telling_positions,
        (("self",),),
        "documents packed by position_ids may not be found in models that do not hand these on to their layers",
    ),
)
