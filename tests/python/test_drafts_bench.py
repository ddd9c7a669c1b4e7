# SPDX-License-Identifier: Apache-2.0
"""bench/drafts.py: both contestants get the same mask. Timing is not tested."""

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parent.parent.parent / "bench"))

import drafts  # noqa: E402
from torch.nn.attention.flex_attention import create_mask  # noqa: E402


@pytest.mark.parametrize("at", range(4))
def test_contestants_get_the_same_mask(at, monkeypatch):
    monkeypatch.setattr(drafts, "BLOCKS", 9)
    case = drafts.cases(300, "cpu")[at]
    theirs = create_mask(case.mask_mod, 1, 1, case.rows, case.columns, "cpu")[0, 0]
    made = case.ours()
    mine = made if isinstance(made, torch.Tensor) else torch.from_numpy(made.to_dense()[0, 0].astype(bool))
    if case.same:
        theirs = theirs[case.same()][:, case.same()]
    assert torch.equal(mine, theirs)
    assert theirs.any()
