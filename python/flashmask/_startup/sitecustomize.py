# SPDX-License-Identifier: Apache-2.0
"""Registers FlashMask's attention as soon as a program imports Transformers.

Every Python that `python -m flashmask.run` starts, and that those start, runs this file before anything else, because
its folder is in PYTHONPATH. Nothing beyond the standard library is imported before Transformers is: what a program
sets for torch or Transformers before it imports them takes effect as always.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

_HOST = "transformers.modeling_utils"


class _RegisterBehind(importlib.abc.MetaPathFinder):
    """Finds the module with the registries through the other finders, and registers once it is loaded."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != _HOST:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_register(module: ModuleType) -> None:
                load(module)
                from flashmask.transformers import register

                register()

            spec.loader.exec_module = load_and_register  # type: ignore[method-assign]
        return spec


def _run_the_one_behind() -> None:
    """Runs the machine's own sitecustomize: Python runs only the first in its path, which is this one."""
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize")
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


sys.meta_path.insert(0, _RegisterBehind())
_here = str(Path(__file__).parent)
sys.path[:] = [entry for entry in sys.path if entry != _here]
_run_the_one_behind()
