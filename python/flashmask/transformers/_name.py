"""What Transformers takes registered names for, set right: every name with "flash" in it is a build of FlashAttention.

Three of its functions are wrapped for that, and a fourth for what a cache hides. Each wrapper acts on registered names
only; where a version of Transformers has no such function, everything is as it was without the wrapper.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import PreTrainedModel, masking_utils, modeling_utils

from flashmask.transformers._models import refuse_model

_COMPATIBLE = "_compatible_flash_implementations"
_names: set[str] = set()


def keep(name: str) -> None:
    """Registers a name as ours, and wraps what has to know."""
    _names.add(name)
    _wrap(modeling_utils, "lazy_import_flash_attention", _preloading)
    _wrap(masking_utils, "is_flash_attention_requested", _deciding_masks)
    _wrap(PreTrainedModel, "_check_and_adjust_attn_implementation", _checking_a_model)
    _wrap(masking_utils, "_preprocess_mask_arguments", _finding_documents)


def _wrap(owner: Any, name: str, wrapper: Callable[..., Callable[..., Any]]) -> None:
    original = getattr(owner, name, None)
    if original is None or hasattr(original, "__flashmask_original__"):
        return
    wrapped = wrapper(original)
    wrapped.__flashmask_original__ = original  # type: ignore[attr-defined]
    setattr(owner, name, wrapped)


def is_ours(name: object) -> bool:
    """Whether register() was called with a name."""
    return isinstance(name, str) and name in _names


def _preloading(preload: Callable[..., Any]) -> Callable[..., Any]:
    """Transformers loads the package of a FlashAttention while it makes a model. There is nothing to load for ours."""

    def preload_others(implementation: str | None, *arguments: Any, **options: Any) -> Any:
        return None if is_ours(implementation) else preload(implementation, *arguments, **options)

    return preload_others


def _deciding_masks(is_flash: Callable[..., bool]) -> Callable[..., bool]:
    """What FlashAttention cannot do of masks, such as chunks, ours can. Vision towers go on to ask the original."""

    def is_another_flash(config: Any = None, *arguments: Any, **options: Any) -> bool:
        ours = is_ours(getattr(config, "_attn_implementation", None))
        return not ours and is_flash(config, *arguments, **options)

    return is_another_flash


def _checking_a_model(check: Callable[..., str]) -> Callable[..., str]:
    """A model that lists builds of FlashAttention that it likes gets one of those instead of a name with "flash"."""

    def check_others(self: PreTrainedModel, attn_implementation: str | None, *arguments: Any, **options: Any) -> str:
        if not is_ours(attn_implementation):
            return check(self, attn_implementation, *arguments, **options)
        refuse_model(self, str(attn_implementation))
        vars(self)[_COMPATIBLE] = None  # hides the list of the class
        try:
            return check(self, attn_implementation, *arguments, **options)
        finally:
            del vars(self)[_COMPATIBLE]

    return check_others


def _finding_documents(preprocess: Callable[..., Any]) -> Callable[..., Any]:
    """Transformers sees documents in position_ids only where there is no cache; models make one unless told not to.

    With an empty cache the mask is that without one, so that chunks and chosen keys stay within documents.
    """

    def preprocess_packed(
        config: Any,
        inputs_embeds: Any,
        attention_mask: Any,
        past_key_values: Any,
        position_ids: Any,
        *arguments: Any,
        **options: Any,
    ) -> Any:
        found = preprocess(config, inputs_embeds, attention_mask, past_key_values, position_ids, *arguments, **options)
        hidden = past_key_values is not None and attention_mask is None and position_ids is not None
        if not hidden or not is_ours(getattr(config, "_attn_implementation", None)) or not _says_nothing(found):
            return found
        if position_ids.ndim != 2 or position_ids.shape[1] != found[3]:
            return found
        changed = list(found)
        changed[2] = _documents(position_ids.expand(inputs_embeds.shape[0], -1))
        return tuple(changed)

    return preprocess_packed


def _says_nothing(found: Any) -> bool:
    """Whether these are the arguments of a mask without documents, of as many keys as queries from number 0 on."""
    if not isinstance(found, tuple) or len(found) != 7 or found[0] is not False or found[2] is not None:
        return False
    _, _, _, queries, keys, *offsets = found
    return bool(queries == keys) and all(isinstance(offset, int) and offset == 0 for offset in offsets)


def _documents(position_ids: torch.Tensor) -> torch.Tensor:
    """A number for each document, int64 [B, S], as Transformers counts them; without its look at whether there are any,
    which waits for the device."""
    return torch.nn.functional.pad((position_ids.diff() != 1).cumsum(-1), (1, 0))
