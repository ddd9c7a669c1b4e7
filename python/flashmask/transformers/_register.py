"""The name in both registries of Transformers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import transformers
from transformers import AttentionInterface, AttentionMaskInterface, modeling_utils
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

from flashmask._arguments import choice
from flashmask._plans.plan import VISITS
from flashmask.transformers._attention import attention_function
from flashmask.transformers._mask import flashmask_mask

_OLDEST = (5, 5)
_PRELOAD = "lazy_import_flash_attention"
_names: set[str] = set()


def register(name: str = "flashmask", *, visit: str = "active") -> None:
    """Makes attn_implementation=name mean FlashMask, for attention and for masks; calling it again changes nothing.

    Transformers has no entry points for attention, so that a program calls this once before it makes a model.
    visit="all" computes tiles that nobody sees too, to the same bits, as attention under a dense mask does: another
    name to compare with. Raises ValueError where the name belongs to another attention implementation, ImportError for
    a Transformers before 5.5, which describes masks in another way.
    """
    _check_version()
    if not isinstance(name, str) or not name or "/" in name or "|" in name:
        raise ValueError(f"name is {name!r}; expected a word, without the / and | that Transformers gives a meaning")
    choice("visit", visit, VISITS)
    attention = attention_function(visit)
    held = {
        "attention": (modeling_utils.ALL_ATTENTION_FUNCTIONS.get(name), attention),
        "mask": (ALL_MASK_ATTENTION_FUNCTIONS.get(name), flashmask_mask),
    }
    for registry, (found, ours) in held.items():
        if found is not None and found is not ours:
            raise ValueError(f"name {name!r} belongs to {found!r} in the {registry} registry; expected a free name")
    _names.add(name)
    _keep_from_preloading()
    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, flashmask_mask)


def _check_version() -> None:
    found = transformers.__version__
    if tuple(int(part) for part in found.split(".")[:2]) < _OLDEST:
        raise ImportError(f"Transformers {found} is installed; flashmask.transformers needs 5.5 or newer")


def _keep_from_preloading() -> None:
    """Lets models be made with a name that has "flash" in it.

    Transformers takes every such name for a build of FlashAttention and loads its package while it makes a model, which
    fails for names that are none. There is nothing to load for ours.
    """
    preload: Callable[..., Any] | None = getattr(modeling_utils, _PRELOAD, None)
    if preload is None or hasattr(preload, "__flashmask_original__"):
        return

    def preload_others(implementation: str | None, *arguments: Any, **options: Any) -> Any:
        return None if implementation in _names else preload(implementation, *arguments, **options)

    preload_others.__flashmask_original__ = preload  # type: ignore[attr-defined]
    setattr(modeling_utils, _PRELOAD, preload_others)
