# SPDX-License-Identifier: Apache-2.0
"""The partition of a sequence over ranks: what it holds, what each rank fetches, what it says of work and time."""

import numpy as np
import pytest

import flashmask
from flashmask import masks
from flashmask._partition import Partition, Prices, partition

MASK = masks.causal_document([700, 300, 1500, 500])


def tokens(spans):
    return np.concatenate([np.arange(begin, end) for begin, end in spans] or [np.empty(0, np.int64)])


@pytest.mark.parametrize("division", ["balanced", "contiguous", "zigzag"])
def test_local_masks_together_are_the_mask(division):
    made = partition(MASK, 3, division)
    seen = np.zeros((3000, 3000), int)
    needs = made.needs(MASK)
    for rank in range(3):
        rows, columns = made.spans(rank), made.local_columns(needs, rank)
        local = MASK.slice(rows, columns).to_dense()[0, 0]
        seen[np.ix_(tokens(rows), tokens(columns))] += local
    assert (seen == MASK.to_dense()[0, 0]).all()


def test_needs_name_the_owner_of_each_column():
    made = Partition.from_runs(3000, 2, [(1024, 3000, 0), (0, 1024, 1)])
    assert made.needs(MASK).tolist() == [[0, 1, 896, 1024]]
    assert made.loads(MASK)[:, 4:].tolist() == [[128, 0], [0, 128]]
    assert made.aligned
    assert made.length(0) == 1976
    assert made.runs.tolist() == [[0, 1024, 1], [1024, 3000, 0]]


def test_given_runs_may_be_cut_anywhere():
    made = Partition.from_runs(3000, 2, [(0, 700, 0), (700, 999, 1), (999, 3000, 0)])
    assert not made.aligned
    assert made.needs(MASK).tolist() == [[0, 1, 700, 999]]


def test_predicts_more_time_on_a_slower_wire():
    made = partition(MASK, 2, "contiguous")
    fast, slow = made.predict(MASK), made.predict(MASK, Prices(bytes_per_ns=1))
    assert fast.wire < slow.wire
    assert fast.attention == slow.attention >= fast.ideal


def test_says_what_is_wrong_with_runs_and_arguments():
    with pytest.raises(ValueError, match="no rank holds token 10; give each token to one rank"):
        Partition.from_runs(30, 2, [(0, 10, 0), (20, 30, 1)])
    with pytest.raises(ValueError, match=r"token 5 lies in two runs, the second being \[5, 30\) of rank 1"):
        Partition.from_runs(30, 2, [(0, 10, 0), (5, 30, 1)])
    with pytest.raises(ValueError, match="division is 'fair'; expected one of 'balanced'"):
        partition(MASK, 2, "fair")
    for ranks in (0, [2, 0]):
        with pytest.raises(ValueError, match="ranks is 0; expected at least 1"):
            partition(MASK, ranks)
    with pytest.raises(TypeError, match=r"ranks is float 2\.0; expected an integer"):
        partition(MASK, 2.0)
    with pytest.raises(ValueError, match="a mask is 100 x 200; give masks with as many rows as columns"):
        partition(masks.full(100, 200), 2)
    with pytest.raises(ValueError, match="the mask is 100 x 100 but the partition has 3,000 tokens"):
        partition(MASK, 2).needs(masks.full(100, 100))
    with pytest.raises(ValueError, match="rank is 2; expected at most 1"):
        partition(MASK, 2).spans(2)
    expected = "; expected a Mask, or pairs of a mask and its layers"
    with pytest.raises(TypeError, match=r"mask holds tuple \('causal', 1\)" + expected):
        partition([("causal", 1)], 2)
    with pytest.raises(TypeError, match="mask holds Mask .*" + expected):
        partition([MASK, MASK], 2)
    with pytest.raises(TypeError, match="mask is NoneType None" + expected):
        partition(None, 2)


def test_plans_say_their_tiles_and_refuse_those_that_no_kernel_has():
    q = np.zeros((1, 3000, 2, 16), np.float32)
    made = flashmask.plan(MASK, q, q)
    assert made.tiles == ("automatic", "automatic")
    assert flashmask.plan(MASK, q, q, tiles=("large", "automatic")).tiles == ("large", "automatic")
    with pytest.raises(NotImplementedError, match=r"small tiles were asked for, which .*forward.* has not"):
        flashmask.plan(MASK, q, q, tiles=("small", "automatic"))
    with pytest.raises(ValueError, match=r"tiles\[1\] is 'tiny'; expected one of 'automatic', 'large', 'small'"):
        flashmask.plan(MASK, q, q, tiles=("large", "tiny"))
    with pytest.raises(TypeError, match="tiles is str 'large'; expected a pair"):
        flashmask.plan(MASK, q, q, tiles="large")


def test_equal_partitions_are_equal():
    assert partition(MASK, 4) == partition([(MASK, 3)], [2, 2])
    assert partition(MASK, 4, "contiguous") != partition(MASK, 4, "zigzag")
    assert len({partition(MASK, 4), partition(MASK, 4)}) == 1
