# SPDX-License-Identifier: Apache-2.0
"""Inkling's bias of scores, a number for each query, head and distance: as the table that it is, not for each score.

Its layers have a module that makes the table, (batch, heads, queries, extent), and spreads it over all keys. With our
attention that module returns the table. Where there are other keys than those of the queries, behind a cache, it
spreads the table as before: a few queries have few scores. Nor is the tensor of distances made then, tokens × tokens,
of which these modules read no more than the shape; where there is a cache it is made as before.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from functools import wraps
from inspect import signature
from typing import Any

import torch
from torch import Tensor

from flashmask.transformers._ours import is_ours
from flashmask.transformers._running import Running

_ASKED = "flashmask_asked_for_the_table"
_DISTANCES = "get_relative_distance"
_texts: Running[bool] = Running()
"""Text models that run, and whether their layers ask for the table."""


def _of_states(module: Any, states: Tensor, query_positions: Tensor, key_positions: Tensor) -> Tensor:
    return torch.matmul(states, module.proj).transpose(1, 2)


def _of_hidden(module: Any, hidden_states: Tensor, relative_distance: Tensor, position_ids: Tensor) -> Tensor:
    states = module.linear(hidden_states).unflatten(-1, (module.num_heads, -1))
    return torch.matmul(module.norm(states, position_ids), module.proj).transpose(1, 2)


#: By the end of a class's name: its parameters, the table of a call, and whether queries and keys are the same tokens.
_MAKERS: dict[str, tuple[tuple[str, ...], Callable[..., Tensor], Callable[..., bool]]] = {
    "RelativeLogits": (
        ("relative_states", "query_positions", "key_positions"),
        _of_states,
        lambda states, queries, keys: bool(len(queries) == len(keys)),
    ),
    "RelativePositionBias": (
        ("hidden_states", "relative_distance", "position_ids"),
        _of_hidden,
        lambda hidden, distance, positions: bool(distance.shape[0] == distance.shape[1]),
    ),
}
_NAMES = ("rel_logits_proj", "relative_position_bias")
"""What attention layers call the module that makes the table."""
_PACKAGE = "transformers.models.inkling"


def serve_tables(modules: Iterable[str]) -> None:
    """Wraps the classes of Inkling's modules, of those named; calling it again changes nothing."""
    for name in modules:
        if not name.startswith(_PACKAGE):
            continue
        classes: list[Any] = [each for each in vars(sys.modules[name]).values() if isinstance(each, type)]
        makers = [(each, made) for each in classes for end, made in _MAKERS.items() if each.__name__.endswith(end)]
        for maker, (parameters, table, of_same_tokens) in makers:
            if _wrapped(maker) or tuple(signature(maker.forward).parameters)[1:] != parameters:
                continue  # of another version, whose dense bias is served as it comes
            _set(maker, _making(maker.forward, table, of_same_tokens))
            for each in classes:
                if each.__name__.endswith("Attention") and each.__module__ == name:
                    _set(each, _asking(each.forward))
                if each.__name__.endswith("TextModel") and each.__module__ == name:
                    _set(each, _running(each.forward))
            module = vars(sys.modules[name])
            if _DISTANCES in module:
                module[_DISTANCES] = _standing_in(module[_DISTANCES])


def makers_in(model: torch.nn.Module) -> set[type[torch.nn.Module]]:
    """Returns the classes of a model's layers that make such tables."""
    return {type(each) for each in model.modules() if _makes(each)}


def is_table(layer: torch.nn.Module, query: Tensor, key: Tensor) -> bool:
    """Whether the position_bias with which a layer calls attention is a table by distance."""
    maker = _maker_of(layer)
    return bool(getattr(maker, _ASKED, False)) and query.shape[2] == key.shape[2]


def _maker_of(layer: torch.nn.Module) -> torch.nn.Module | None:
    """Returns the module that makes a layer's table, also where FSDP or a compiler has wrapped it."""
    held = next((getattr(layer, name) for name in _NAMES if hasattr(layer, name)), None)
    return None if held is None else next(filter(_makes, held.modules()), None)


def _makes(module: torch.nn.Module) -> bool:
    return type(module).__name__.endswith(tuple(_MAKERS))


def _wrapped(kind: Any) -> bool:
    return hasattr(kind.forward, "__flashmask_original__")


def _set(kind: Any, forward: Any) -> None:
    forward.__flashmask_original__ = kind.forward
    kind.forward = forward


def _asking(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Has a layer ask for the table if its attention is ours."""

    @wraps(forward)
    def attend(self: Any, *arguments: Any, **options: Any) -> Any:
        maker = _maker_of(self)
        if maker is not None:
            setattr(maker, _ASKED, is_ours(self.config._attn_implementation))
        return forward(self, *arguments, **options)

    return attend


def _running(forward: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(forward)
    def run(self: Any, *arguments: Any, **options: Any) -> Any:
        _texts.enter(self, is_ours(self.config._attn_implementation))
        try:
            return forward(self, *arguments, **options)
        finally:
            _texts.leave(self)

    return run


def _standing_in(distances: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Returns a tensor of the same shape that takes no memory, where all layers ask for the table."""

    @wraps(distances)
    def get(inputs_embeds: Tensor, cache: Any, is_sliding: bool) -> Tensor:
        if cache is not None or not _texts.told:
            return distances(inputs_embeds, cache, is_sliding)
        length = inputs_embeds.shape[1]
        return torch.zeros((), dtype=torch.long, device=inputs_embeds.device).expand(length, length)

    return get


def _making(
    forward: Callable[..., Tensor], table: Callable[..., Tensor], of_same_tokens: Callable[..., bool]
) -> Callable[..., Tensor]:
    """Returns the table where it was asked for and queries and keys are the same tokens, else what `forward` does."""

    @wraps(forward)
    def make(self: torch.nn.Module, *arguments: Any) -> Tensor:
        if getattr(self, _ASKED, False) and of_same_tokens(*arguments):
            return table(self, *arguments)
        return forward(self, *arguments)

    return make
