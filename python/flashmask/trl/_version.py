# SPDX-License-Identifier: Apache-2.0
"""Checks the version of TRL."""

from __future__ import annotations

import trl

_TESTED = (1, 16)


def check_version() -> None:
    """Raises ImportError for a TRL whose internals may differ from those tested."""
    if tuple(trl.__version__.split(".")[:2]) != tuple(map(str, _TESTED)):
        raise ImportError(
            f"TRL {trl.__version__} is installed; flashmask.trl overrides parts of TRL that are not public and knows "
            "those of 1.16: install trl==1.16.*, or train on batches of flashmask.data.pack in a loop of your own"
        )
