# SPDX-License-Identifier: Apache-2.0
"""Axolotl: a plugin that lets a configuration say `attn_implementation: flashmask`.

    plugins: [flashmask.integrations.axolotl.FlashMaskPlugin]
    attn_implementation: flashmask
    sample_packing: true

Axolotl accepts only names from its own list of attentions, which it checks before it makes a model. The plugin adds the
name to that list, and to the list of attentions that isolate packed documents, which get these as position ids.
"""

from __future__ import annotations

import importlib
from typing import Any

import flashmask.transformers
from flashmask.integrations._host import Host

_NAME = "flashmask"
_HOST = Host("axolotl", ("0.19",))
_HOST.check()
_BasePlugin: Any = _HOST.part("axolotl.integrations.base", "BasePlugin")


class FlashMaskPlugin(_BasePlugin):  # type: ignore[misc]
    """Registers the name in Axolotl before it checks the configuration, in Transformers before it loads the model."""

    def register(self, cfg: Any) -> None:
        """Adds the name to Axolotl's lists. Axolotl calls this with the configuration as the user wrote it."""
        schema = "axolotl.utils.schemas.config"
        for names in ("CANONICAL_ATTN_IMPLS", "ATTN_IMPLS_SUPPORTING_PACKING"):
            setattr(importlib.import_module(schema), names, _HOST.part(schema, names) | {_NAME})

    def pre_model_load(self, cfg: Any) -> None:
        """Registers the name in Transformers. Axolotl calls this with the checked configuration."""
        flashmask.transformers.register(_NAME)
