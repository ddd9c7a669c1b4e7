# SPDX-License-Identifier: Apache-2.0
"""The names that register() was given."""

from __future__ import annotations

_names: set[str] = set()


def keep_name(name: str) -> None:
    """Records a name as ours."""
    _names.add(name)


def is_ours(name: object) -> bool:
    """Whether a name was given to register()."""
    return isinstance(name, str) and name in _names
