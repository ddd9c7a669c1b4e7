# SPDX-License-Identifier: Apache-2.0
"""masks.from_mask_mod() of random predicates against FlexAttention's own dense evaluation."""

from collections import Counter

import pytest
import torch
from random_predicates import Predicate
from torch.nn.attention.flex_attention import create_mask

from flashmask.masks._mask_mod import made_from_mask_mod


def check(seeds):
    """Compares every bit; returns how often each way was taken."""
    ways = Counter()
    for seed in seeds:
        drawn = Predicate(seed)
        made = made_from_mask_mod(drawn.mask_mod, drawn.sizes, "cpu")
        found = torch.from_numpy(made.mask.to_dense()).bool().expand(drawn.sizes)
        expected = create_mask(lambda b, h, q, kv, drawn=drawn: drawn.mask_mod(b, h, q, kv), *drawn.sizes, device="cpu")
        assert torch.equal(found, expected), f"seed {seed}, {made.way}"
        ways[made.way] += 1
    return ways


def check_that_no_way_is_unused(ways):
    print(dict(ways))
    assert set(ways) == {"columns", "rows", "evaluated", "evaluated bits"}


def test_random_predicates_are_exact_whichever_way_they_take():
    check_that_no_way_is_unused(check(range(200)))


@pytest.mark.full
def test_many_random_predicates_are_exact():
    check_that_no_way_is_unused(check(range(200, 10_200)))
