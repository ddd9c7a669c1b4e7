# SPDX-License-Identifier: Apache-2.0
"""docs/masks.md: its pictures show every family."""

import inspect
import re

import pytest
from docs_scripts import DOCS, docs_script

from flashmask import block_maps, masks

IN_CHARACTERS = ("dflash", "packed_block_diffusion")
"""Builders that the page draws in characters."""


@pytest.fixture(scope="module")
def drawn():
    """docs/draw_masks.py as a module."""
    return docs_script("draw_masks")


def builders(module):
    """Functions that make a mask or a map from numbers."""
    others = ("stack_batch", "stack_heads", "medusa_parents", "reverse_cuthill_mckee", "interleaved_blocks")
    others += ("create", "at_least")
    return {
        name
        for name in module.__all__
        if inspect.isfunction(getattr(module, name)) and not name.startswith("from_") and name not in others
    }


@pytest.mark.parametrize(("header", "module"), [("builders.h", masks), ("block_map_builders.h", block_maps)])
def test_python_has_every_builder_of_the_header(header, module):
    text = (DOCS.parent / "include" / "flashmask" / header).read_text()
    declared = set(re.findall(r"^FLASHMASK_API \S+ (\w+)\(", text, flags=re.M))
    declared |= {"medusa_parents"} if module is masks else set()
    assert len(declared) > 5
    assert declared <= set(module.__all__)


def test_the_pictures_show_every_family(drawn):
    shown = {name.split(",")[0] for panels in (drawn.INTERVALS, drawn.BITS) for name in panels}
    assert shown | {"neighbourhood", *IN_CHARACTERS} == builders(masks)
    assert set(drawn.BLOCKS) == builders(block_maps)
    forms = {name: mask.form for name, mask in drawn.INTERVALS.items()}
    assert set(forms.values()) == {"intervals"}, forms


def test_the_pictures_are_there_and_small(drawn, tmp_path):
    page = (DOCS / "masks.md").read_text()
    for file in drawn.PICTURES:
        assert f"({file})" in page
    assert sum((DOCS / file).stat().st_size for file in drawn.PICTURES) < 300_000
    panels, tile = drawn.PICTURES["masks-blocks.png"]
    drawn.draw(panels, tile, tmp_path / "blocks.png")
    assert (tmp_path / "blocks.png").stat().st_size > 5_000
