# SPDX-License-Identifier: Apache-2.0
"""Axolotl: a plugin that lets a configuration say `attn_implementation: flashmask`.

    plugins: [flashmask.integrations.axolotl.FlashMaskPlugin]
    attn_implementation: flashmask
    sample_packing: true

Axolotl takes attention from a list of its own, before it makes a model; the plugin puts the name there, and among those
that keep packed documents apart, so that Axolotl hands them over as position ids.
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
    """Makes the name known to Axolotl before it checks the configuration, to Transformers before it loads the model."""

    def register(self, cfg: Any) -> None:
        """Axolotl calls this with the configuration as it was written."""
        schema = "axolotl.utils.schemas.config"
        for names in ("CANONICAL_ATTN_IMPLS", "ATTN_IMPLS_SUPPORTING_PACKING"):
            setattr(importlib.import_module(schema), names, _HOST.part(schema, names) | {_NAME})

    def pre_model_load(self, cfg: Any) -> None:
        """Axolotl calls this with the configuration as it was understood."""
        flashmask.transformers.register(_NAME)
