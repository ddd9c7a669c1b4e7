# SPDX-License-Identifier: Apache-2.0
"""The trainer that a module of this package extends."""

from __future__ import annotations

import importlib
import warnings
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple


class Host(NamedTuple):
    """A package by the name it is installed under, and the versions "major.minor" that its module was tested with."""

    package: str
    tested: tuple[str, ...]

    def check(self) -> None:
        """Raises ImportError if the package is missing; warns about a version that was not tested."""
        try:
            found = version(self.package)
        except PackageNotFoundError:
            raise ImportError(f"{self.package} is not installed; {self._ours()} works inside of it") from None
        if ".".join(found.split(".")[:2]) not in self.tested:
            warnings.warn(f"{self.package} {found} is installed; {self._ours()} was {self._tested()}", stacklevel=3)

    def part(self, module: str, name: str) -> Any:
        """Returns `name` from the package's `module`; raises ImportError if there is none."""
        try:
            return getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise ImportError(
                f"{self.package} {version(self.package)} has no {module}.{name}, which {self._ours()} needs; it was "
                f"{self._tested()}"
            ) from error

    def _ours(self) -> str:
        return f"flashmask.integrations.{self.package.replace('-', '_')}"

    def _tested(self) -> str:
        return f"tested with {self.package} {' and '.join(self.tested)}"
