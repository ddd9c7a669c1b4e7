# SPDX-License-Identifier: Apache-2.0
"""The operators' names and schemas, and the functions through which Python calls them."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from flashmask._plans.call import TYPES, Call, arguments_of_backward

Outputs: TypeAlias = tuple[Tensor, Tensor]
OutputsWithMaxScores: TypeAlias = tuple[Tensor, Tensor, Tensor]
Gradients: TypeAlias = tuple[Tensor, ...]
"""Gradients of q, k and v, and of the sinks and the bias if asked for, in this order."""

# A fragment, since another extension in the process may define the namespace, before or after us.
LIBRARY: Any = torch.library.Library("flashmask", "FRAGMENT")  # type: ignore[no-untyped-call]
_KINDS = {"Tensor | None": "Tensor?"}
_DEFAULTS = {"": "''"}  # where a schema writes them otherwise than Python
_REQUIRED = Call._fields.index("deterministic")  # the first version had no defaults, and later fields all have one


def _argument(place: int, name: str) -> str:
    """Formats a field of Call for a schema, such as "bool deterministic=False"."""
    declared = f"{_KINDS.get(TYPES[name], TYPES[name])} {name}"
    if place < _REQUIRED:
        return declared
    default = Call._field_defaults[name]
    return f"{declared}={_DEFAULTS.get(default, default)}"


def number_of(arguments: str) -> int:
    """Returns the number by which graphs tell a list of arguments from others.

    A traced graph leaves out last arguments at their defaults, and inductor keeps compiled graphs by their text. One of
    an older list would be found there and call the operator with names that it no longer has, so each traced call ends
    with this number, which is never the default of the argument `schema`. Kernels do not read it.
    """
    return zlib.crc32(arguments.encode())


def _without_default(argument: str) -> str:
    return argument.split("=", maxsplit=1)[0]


_CALL = [_argument(place, name) for place, name in enumerate(Call._fields)]
_OF_FORWARD, _OF_BACKWARD = ", ".join(_CALL), ", ".join(arguments_of_backward(_CALL))
_OF_BACKWARD += ", bool float32_key_gradients=False, int schema=0"
SCHEMA = number_of(_OF_FORWARD)
_SAVED = "Tensor grad_o, Tensor? grad_lse, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse"
LIBRARY.define(f"forward(Tensor q, Tensor k, Tensor v, {_OF_FORWARD}, int schema=0) -> (Tensor o, Tensor lse)")
LIBRARY.define(
    f"forward_with_max_scores(Tensor q, Tensor k, Tensor v, {_OF_FORWARD}, int schema=0)"
    " -> (Tensor o, Tensor lse, Tensor max_scores)"
)
LIBRARY.define(f"backward({_SAVED}, {_OF_BACKWARD}) -> (Tensor dq, Tensor dk, Tensor dv)")
LIBRARY.define(
    f"backward_with_sinks({_SAVED}, Tensor sinks, {_OF_BACKWARD}) -> (Tensor dq, Tensor dk, Tensor dv, Tensor dsinks)"
)
LIBRARY.define(
    f"backward_with_bias({_SAVED}, Tensor? sinks, {_OF_BACKWARD})"
    " -> (Tensor dq, Tensor dk, Tensor dv, Tensor dsinks, Tensor dbias)"
)
# No argument has a default, so that graphs write out all of them, and need no number.
LIBRARY.define(
    "forward_tangents(Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, Tensor? tangent_q, Tensor? tangent_k, "
    f"Tensor? tangent_v, {', '.join(map(_without_default, _CALL))}) -> (Tensor tangent_o, Tensor tangent_lse)"
)
LIBRARY.define("snapshot(Tensor mask) -> Tensor")
forward_operator: Callable[..., Outputs] = torch.ops.flashmask.forward.default
forward_with_max_scores_operator: Callable[..., OutputsWithMaxScores] = (
    torch.ops.flashmask.forward_with_max_scores.default
)
forward_tangents_operator: Callable[..., Outputs] = torch.ops.flashmask.forward_tangents.default
backward_operator: Callable[..., Gradients] = torch.ops.flashmask.backward.default
backward_with_sinks_operator: Callable[..., Gradients] = torch.ops.flashmask.backward_with_sinks.default
backward_with_bias_operator: Callable[..., Gradients] = torch.ops.flashmask.backward_with_bias.default
snapshot_operator: Callable[[Tensor], Tensor] = torch.ops.flashmask.snapshot.default
