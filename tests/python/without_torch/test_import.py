# SPDX-License-Identifier: Apache-2.0
"""What the package does where PyTorch is not imported, or not installed at all."""

import resource
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version

import pytest


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def seconds(code: str) -> float:
    """Of processor time: what else the machine does is not the package's."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run(code)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_importing_is_quick() -> None:
    took = min(seconds("import flashmask") for _ in range(5)) - min(seconds("pass") for _ in range(3))
    assert took < 0.5


def test_importing_does_not_import_the_optional_packages() -> None:
    code = "import sys, flashmask; print(sorted({'torch', 'transformers', 'matplotlib', 'scipy'} & set(sys.modules)))"
    assert run(code) == "[]"


def test_other_packages_are_imported_when_they_are_named() -> None:
    code = """
import pkgutil, sys, flashmask
print("flashmask.data" in sys.modules, flashmask.data.__name__)
packages = {module.name for module in pkgutil.iter_modules(flashmask.__path__) if module.ispkg}
assert {name for name in packages if name[0] != "_"} == flashmask._LAZY - {"operators"} | {"masks"}
try:
    flashmask.recurent
except AttributeError as error:
    print(error)
"""
    sentences = ["False flashmask.data", "module 'flashmask' has no attribute 'recurent'"]
    assert run(code).splitlines() == sentences


def test_the_version_is_that_of_the_installed_package() -> None:
    try:
        installed = version("flashmask")
    except PackageNotFoundError:
        pytest.skip("a checkout is not installed: scripts/test wheel tests what is")
    assert run("import flashmask; print(flashmask.__version__)") == installed
