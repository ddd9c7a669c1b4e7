# SPDX-License-Identifier: Apache-2.0
"""ms-swift: an external plugin that lets `--attn_impl flashmask` train packed.

    swift sft --external_plugins $(python -m flashmask.integrations.ms_swift) --attn_impl flashmask --packing true ...

ms-swift passes any name on to Transformers, but packs only for names in a list inside its check.
"""

from __future__ import annotations

from functools import wraps
from pathlib import Path
from typing import Any

import flashmask.transformers
from flashmask.integrations._host import Host

_NAME = "flashmask"
_LISTED = "flash_attention_2"  # a listed name that packs and takes documents as position ids, like ours
_HOST = Host("ms-swift", ("4.6",))


def register() -> None:
    """Registers the name in Transformers and in ms-swift's check for packing; calling it again changes nothing."""
    _HOST.check()
    flashmask.transformers.register(_NAME)
    arguments = _HOST.part("swift.arguments", "SftArguments")
    check = arguments._check_padding_free
    if hasattr(check, "__wrapped__"):
        return

    @wraps(check)
    def check_as_listed(self: Any) -> None:
        ours = self.attn_impl == _NAME
        self.attn_impl = _LISTED if ours else self.attn_impl
        try:
            check(self)
        finally:
            self.attn_impl = _NAME if ours else self.attn_impl

    arguments._check_padding_free = check_as_listed


if __name__ == "__main__":
    print(Path(__file__).with_name("_plugins") / "flashmask_ms_swift.py")
else:
    register()
