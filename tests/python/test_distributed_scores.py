# SPDX-License-Identifier: Apache-2.0
"""Softcap and ALiBi in flashmask.distributed, over processes with Gloo: one spawn for distributed_scores_cases.py."""

import pytest
import torch
from ranks import assert_cases_pass

from flashmask import masks
from flashmask._abi.header import Options
from flashmask._plans.call import Call
from flashmask._plans.tile_sizes import TILES
from flashmask.distributed._local import Local


@pytest.mark.slow
def test_cases_on_all_ranks(tmp_path):
    assert_cases_pass("distributed_scores_cases", 4, tmp_path)


@pytest.mark.parametrize(
    ("call", "size"),
    [
        (Call(), "small"),
        (Call(dropout=0.1), "small"),
        (Call(change="softcap(2.0)"), "large"),
        (Call(change="alibi"), "large"),
    ],
)
def test_changed_scores_never_ask_for_small_tiles(call, size):
    """One GPU takes large tiles for these whatever the mask is, and some of their kernels have no small ones."""
    mask, small, expected = masks.causal(300, 300), TILES.index("small"), TILES.index(size)
    local = Local(
        *("rows", 0, 1, 300, [[(0, 300)]], (2, 2), 1, False, ""), mask=mask, owners_mask=mask, tiles=(small, small)
    )
    tiles = {"forward_tiles": expected, "backward_tiles": expected}
    of_rows, of_owners = Options(skip_key_gradients=1, **tiles), Options(skip_query_gradient=1, **tiles)
    assert torch.equal(local.mask_tensor(call), torch.from_numpy(mask._packed(of_rows)))
    assert torch.equal(local.owners_mask_tensor(call), torch.from_numpy(mask._packed(of_owners)))
    assert local.mask_tensor(call) is local.mask_tensor(call._replace(scale=2.0))
