# SPDX-License-Identifier: Apache-2.0
"""The positions that a model was called with, for what is made while it runs.

Many models do not hand the position_ids of their call on to what makes their masks: encoders and some decoders hand on
none, and models of text and images hand on those of text only where they are told apart from those of images.
"""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

import torch
from torch import Tensor

from flashmask.transformers._running import Running
from flashmask.transformers._visible import documents

_FORWARD = "flashmask_forward"
_POSITIONS = "position_ids"
#: Positions in the call of a model, or of the decoder in it.
_GIVEN = (_POSITIONS, "decoder_position_ids")
#: What says where documents begin in place of positions.
_SAYS_DOCUMENTS = (
    *("startend_row_indices", "attn_mask_startend_row_indices", "cu_seq_lens_q", "cu_seq_lens_k"),
    "sharding",
)
#: Everything in a call that says its mask.
SAYS_MASK = (_POSITIONS, "attention_mask", *_SAYS_DOCUMENTS)
#: The variable in which a model of text and images holds the positions of text, the first of four axes.
_TEXT_AXIS = "text_position_ids"
_AXES = 3


class _Forward(NamedTuple):
    """What is read off the forward of a model's class."""

    parameters: tuple[str, ...]
    takes_text_axis: bool


class _Told(NamedTuple):
    """What a model was called with."""

    given: bool
    """Whether the caller gave positions. Those that models make themselves may restart within a document."""
    positions: Tensor | None
    """Positions [B or 1, S] by which documents begin; None where nothing or something else says it."""
    crosses: bool
    """Whether the model attends to another sequence too."""
    said: dict[str, Any]
    """What the call, and those around it, say of the mask."""


_calls: Running[_Told] = Running()


def read_forward(model: torch.nn.Module) -> None:
    """Keeps with a model what entered() has to know of its class; torch.compile cannot trace how that is found."""
    code = inspect.unwrap(type(model).forward).__code__
    names = tuple(name for name in inspect.signature(type(model).forward).parameters if name != "self")
    vars(model)[_FORWARD] = _Forward(names, _TEXT_AXIS in code.co_varnames and _AXES + 1 in code.co_consts)


def is_read(model: torch.nn.Module) -> bool:
    """Whether read_forward() was called with a model."""
    return hasattr(model, _FORWARD)


def entered(
    model: torch.nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Notes the positions of a model's call until left(); returns its arguments, with an axis of text if it takes one.

    Models of text and images take position_ids [B, S], or [3, B, S], as those of images, and make no documents of them;
    of [4, B, S] the first axis is text.
    """
    forward: _Forward | None = getattr(model, _FORWARD, None)
    said = dict(options)
    if forward is not None:
        said.update(zip(forward.parameters, arguments, strict=False))
    around = _calls.told
    given = around.given if around else any(said.get(name) is not None for name in _GIVEN)
    of_mask = {**(around.said if around else {}), **{name: said[name] for name in SAYS_MASK if name in said}}
    position_ids = said.get(_POSITIONS)
    if forward is not None and around is None and isinstance(position_ids, Tensor) and position_ids.ndim < 2:
        raise ValueError(
            f"position_ids has shape {list(position_ids.shape)}; expected [1 or B, S], positions of every "
            "sequence: pass position_ids[None]"
        )
    if not given or forward is None or not isinstance(position_ids, Tensor) or position_ids.ndim not in (2, 3):
        _calls.enter(model, _Told(given, None, False, of_mask))
        return arguments, options
    positions = _of_text(position_ids, said.get("attention_mask"))
    elsewhere = any(said.get(name) is not None for name in _SAYS_DOCUMENTS)
    crosses = said.get("encoder_hidden_states") is not None
    _calls.enter(model, _Told(given, None if elsewhere else positions, crosses, of_mask))
    if forward.takes_text_axis and positions.shape[-1] > 1 and (position_ids.ndim == 2 or len(position_ids) <= _AXES):
        axes = position_ids.expand(_AXES, *positions.shape)
        return (), {**said, _POSITIONS: torch.cat([positions[None], axes])}
    return arguments, options


def said_around() -> dict[str, Any]:
    """Returns what the calls that run say of the mask, for a model that is not handed all of it."""
    return _calls.told.said if _calls.told else {}


def left(model: torch.nn.Module) -> None:
    """Forgets the call of a model that has run, or failed."""
    _calls.leave(model)


def _of_text(position_ids: Tensor, attention_mask: Any) -> Tensor:
    """Returns where the tokens stand in their documents, [B or 1, S], of positions [B or 1, S] or [axes, B or 1, S].

    Of four axes and more the first says it. Fewer are those of images, which may stay or fall within a document: where
    axes differ in a sequence, a document begins at 0 on all of them.
    """
    if position_ids.ndim == 2 or len(position_ids) == 1 or len(position_ids) > _AXES:
        return position_ids if position_ids.ndim == 2 else position_ids[0]
    first = position_ids[0]
    alike = (position_ids == first).all(0)
    of_text = alike.all(-1, keepdim=True)
    begins = documents(first, _hidden(attention_mask, first) | ~(alike & (first == 0))).first
    return torch.where(of_text, first, torch.arange(first.shape[-1], device=first.device) - begins)


def _hidden(attention_mask: Any, positions: Tensor) -> Tensor:
    """Returns which tokens are padding, [B or 1, S]."""
    if isinstance(attention_mask, Tensor) and attention_mask.ndim == 2:
        return attention_mask[:, -positions.shape[-1] :].to(positions.device) == 0
    return torch.zeros_like(positions, dtype=torch.bool)


def documents_of_call(
    *,
    batch: int,
    rows: int,
    columns: int,
    first_row: int | Tensor,
    both_ways: bool,
    attention_mask: Tensor | None,
    device: torch.device | str,
) -> Tensor | None:
    """Returns where the document of each token begins, int64 [batch, columns], by the positions of the running call.

    None if there are none. The call's tokens are `rows` of the columns, from first_row on; tokens before them, from a
    cache, are of the first one's document, and attention_mask, bool [batch, columns or fewer], is False for padding.
    """
    told = _calls.told
    if told is None or told.positions is None or rows == 1:
        return None
    if both_ways and (told.crosses or rows != columns):
        return None
    positions = told.positions.to(device)
    if positions.shape[1] != rows or positions.shape[0] not in (1, batch):
        _refuse_documents(
            positions,
            f"the model makes a mask of [{batch}, {rows}] tokens, and flashmask does not know which these are; give it "
            "one document per batch entry, padded",
        )
        return None
    hidden = torch.zeros((1, rows), dtype=torch.bool, device=device)
    if attention_mask is not None:
        held = (torch.arange(rows, device=device) + first_row).clamp(max=attention_mask.shape[1] - 1)
        hidden = ~attention_mask[:, held]
    begins = documents(positions, hidden).first
    of_call = (torch.arange(columns, device=device) - first_row).clamp(0, rows - 1)
    return begins[:, of_call].expand(batch, -1)


def refuse_unmasked(layer: torch.nn.Module, rows: int, columns: int) -> None:
    """Raises if the running call's positions say several documents, in a layer that got neither these nor a mask."""
    told = _calls.told
    if told is None or told.positions is None or told.crosses or not rows == columns == told.positions.shape[1]:
        return
    _refuse_documents(
        told.positions,
        f"{type(layer).__name__} got neither these nor a mask; hand the model an attention_mask of ones too, of which "
        "it makes one",
    )


def _refuse_documents(positions: Tensor, why: str) -> None:
    """Raises if positions say several documents."""
    restarts = (positions.diff() <= 0).any()
    said = f"position_ids {list(positions.shape)} say several documents, and {why}"
    if torch.compiler.is_compiling():
        torch._assert_async(~restarts, said)
    elif bool(restarts):
        raise ValueError(said)
