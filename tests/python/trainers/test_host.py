# SPDX-License-Identifier: Apache-2.0
"""What an integration says of its host: missing, of a version that nobody tested, or without what it needs."""

import warnings
from importlib.metadata import version

import pytest

from flashmask.integrations._host import Host

FOUND = version("pytest")
MINOR = ".".join(FOUND.split(".")[:2])


def test_a_tested_version_is_taken_without_a_word():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Host("pytest", ("0.1", MINOR)).check()
    assert Host("pytest", (MINOR,)).part("pytest", "raises") is pytest.raises


def test_another_version_is_named_in_a_warning():
    said = f"pytest {FOUND} is installed; flashmask.integrations.pytest was tested with pytest 0.1 and 0.2"
    with pytest.warns(UserWarning, match=said):
        Host("pytest", ("0.1", "0.2")).check()


def test_a_missing_host_is_named():
    with pytest.raises(
        ImportError, match=r"no-such is not installed; flashmask\.integrations\.no_such works inside of it"
    ):
        Host("no-such", ("1.0",)).check()


@pytest.mark.parametrize("module", ["pytest", "pytest.no_such_part"])
def test_a_missing_part_is_named(module):
    said = (
        f"pytest {FOUND} has no {module}.gone, which flashmask.integrations.pytest needs; it was tested with pytest 0.1"
    )
    with pytest.raises(ImportError, match=said):
        Host("pytest", ("0.1",)).part(module, "gone")
