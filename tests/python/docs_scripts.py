# SPDX-License-Identifier: Apache-2.0
"""Scripts of docs/ as modules."""

import importlib.util
import sys
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def docs_script(name):
    """Returns docs/<name>.py as a module, the same one to every test."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]
