# SPDX-License-Identifier: Apache-2.0
"""Makes Transformers' own attention functions refuse row indices, which they would ignore."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from transformers import AttentionInterface

from flashmask.transformers._ours import is_ours

_NAMES = "startend_row_indices", "attn_mask_startend_row_indices"


def refusing_row_indices(look_up: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps the look-up of attention functions; "eager" goes through it too, although it is in no registry."""

    def get_interface(self: AttentionInterface, attn_implementation: str, default: Callable[..., Any]) -> Any:
        found = look_up(self, attn_implementation, default)
        if is_ours(attn_implementation) or not _is_of_transformers(found):
            return found
        return _refusing(found, attn_implementation)

    return get_interface


def _is_of_transformers(attend: Any) -> bool:
    """Whether Transformers defines a function; others may know row indices. A partial stands for a Hub package."""
    module = getattr(getattr(attend, "func", attend), "__module__", None) or ""
    return bool(module.split(".")[0] in ("transformers", "transformers_modules"))


def _refusing(attend: Callable[..., Any], implementation: str) -> Callable[..., Any]:
    def attend_without(module: Any, query: Tensor, key: Tensor, *arguments: Any, **options: Any) -> Any:
        for name in _NAMES:
            indices = options.get(name)
            # An image tower may be passed the row indices of the text; its number of keys differs.
            if indices is not None and indices.ndim == 4 and indices.shape[2] == key.shape[2]:
                raise ValueError(
                    f"{name} came to attn_implementation={implementation!r}, which would ignore this mask; make the "
                    'model with attn_implementation="flashmask", or leave the row indices out'
                )
        return attend(module, query, key, *arguments, **options)

    return attend_without
