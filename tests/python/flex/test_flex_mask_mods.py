# SPDX-License-Identifier: Apache-2.0
"""masks.from_mask_mod() against FlexAttention's own dense evaluation, and against the builders."""

import numpy as np
import pytest
import torch
from mask_families import FAMILIES
from mask_mods import CASES, B, H, N
from torch.nn.attention.flex_attention import create_mask

import flashmask
from flashmask import masks
from flashmask.masks._mask_mod import made_from_mask_mod

LONG = (2**63) - 1


def check(mask_mod, sizes):
    """Compares every pair; returns which way the mask was made."""
    made = made_from_mask_mod(mask_mod, sizes, "cpu")
    found = torch.from_numpy(made.mask.to_dense()).bool().expand(sizes)
    assert torch.equal(found, create_mask(mask_mod, *sizes, device="cpu"))
    return made.way


@pytest.mark.parametrize("name", CASES)
def test_a_predicate_that_people_write_is_exact_and_served_as_expected(name):
    mask_mod, rows, columns, way = CASES[name]()
    assert check(mask_mod, (B, H, rows, columns)) == way


def test_symbols_serve_33_of_36_predicates_that_people_write():
    ways = [make().way for make in CASES.values()]
    assert (len(ways), ways.count("columns") + ways.count("rows"), ways.count("evaluated bits")) == (36, 33, 3)


SIZES = [(1, 1), (1, 7), (7, 1), (2, 2), (127, 127), (128, 128), (129, 129), (5, 130), (130, 5), (128, 129)]


@pytest.mark.parametrize(("rows", "columns"), SIZES)
def test_every_size_is_exact(rows, columns):
    n = max(rows, columns)
    ids = torch.stack([torch.arange(n) // 9, torch.arange(n) // 50])
    restarting, reach = torch.arange(n) % 9, torch.tensor([1, 5, LONG])
    flags, order = torch.arange(n) % 4 > 0, torch.randperm(n)
    for mask_mod in (
        lambda b, h, q, kv: q >= kv,
        lambda b, h, q, kv: (ids[b, q] == ids[b, kv]) & (restarting[q] >= restarting[kv]),
        lambda b, h, q, kv: (q - kv).abs() < reach[h],
        lambda b, h, q, kv: flags[q] & flags[kv] & (q + b >= kv),
        lambda b, h, q, kv: order[q] <= order[kv],
        lambda b, h, q, kv: (q * kv) % 3 == b,
        lambda b, h, q, kv: b == 1,
    ):
        check(mask_mod, (2, 3, rows, columns))


@pytest.mark.parametrize(("rows", "columns"), [(0, 4), (4, 0), (0, 0)])
def test_no_rows_and_no_columns_are_legal(rows, columns):
    mask = masks.from_mask_mod(lambda b, h, q, kv: q >= kv, None, None, rows, columns)
    assert mask.to_dense().shape == (1, 1, rows, columns)


def test_text_of_one_number_in_many_stretches_takes_two_ranges():
    pair = torch.arange(N) // 2
    image = torch.where(pair % 2 == 0, pair, -1)

    def mask_mod(b, h, q, kv):
        return (image[q] == image[kv]) & (image[q] >= 0) | (q == kv)

    assert check(mask_mod, (1, 1, N, N)) == "columns"


def test_builders_and_predicates_make_the_same_masks():
    def made(mask_mod, rows=10, columns=10):
        return masks.from_mask_mod(mask_mod, None, None, rows, columns)

    ids = torch.tensor([0] * 4 + [1] * 3 + [2] * 3)
    assert made(lambda b, h, q, kv: q >= kv) == masks.causal(10, 10)
    assert made(lambda b, h, q, kv: q + 6 >= kv, 4) == masks.causal(4, 10)
    assert made(lambda b, h, q, kv: ids[q] == ids[kv]) == masks.document([4, 3, 3])
    assert made(lambda b, h, q, kv: (ids[q] == ids[kv]) & (q >= kv)) == masks.causal_document([4, 3, 3])
    assert made(lambda b, h, q, kv: (q >= kv) & (q - kv < 3)) == masks.sliding_window(10, 3)
    assert made(lambda b, h, q, kv: (q // 5 == kv // 5) & ((q - kv) % 2 == 0)) == masks.from_dense(
        np.kron(np.eye(2, dtype=bool), np.fromfunction(lambda i, j: (i - j) % 2 == 0, (5, 5)))
    )


@pytest.mark.parametrize("name", FAMILIES)
def test_a_matrix_of_any_mask_makes_that_mask(name):
    mask = FAMILIES[name]()
    visible = torch.from_numpy(mask.to_dense())
    assert masks.from_mask_mod(lambda b, h, q, kv: visible[b, h, q, kv], *mask.shape) == mask


def test_a_mask_has_the_batch_entries_and_heads_that_the_predicate_tells_apart():
    lengths, reach = torch.tensor([3, 70]), torch.tensor([1, 5, 130])
    for mask_mod, shape in (
        (lambda b, h, q, kv: q >= kv, (1, 1)),
        (lambda b, h, q, kv: kv < lengths[b], (2, 1)),
        (lambda b, h, q, kv: abs(q - kv) < reach[h], (1, 3)),
        (lambda b, h, q, kv: (q * kv * lengths[b]) % 3 == 0, (2, 1)),
        (lambda b, h, q, kv: True & (torch.stack([q, kv]).sum() < reach[h]), (1, 3)),
    ):
        assert masks.from_mask_mod(mask_mod, 2, 3, 70, 70).shape[:2] == shape


def test_pairs_are_evaluated_a_few_rows_at_a_time(monkeypatch):
    monkeypatch.setattr("flashmask._flex.evaluation._PAIRS_AT_ONCE", 500)
    ids = torch.tensor([0] * 40 + [1] * 27 + [2] * 3)
    asked = []

    def mask_mod(b, h, q, kv):
        asked.append(1)
        return torch.stack([q >= kv, ids[q] == ids[kv]]).all()  # symbols do not stack

    made = made_from_mask_mod(mask_mod, (1, 1, 70, 70), "cpu")
    assert made.way == "evaluated"
    assert made.mask == masks.causal_document([40, 27, 3])
    assert len(asked) >= 70 // (500 // 70)


def test_a_third_range_of_a_column_starts_over_with_bits(monkeypatch):
    monkeypatch.setattr("flashmask._flex.evaluation._PAIRS_AT_ONCE", 500)
    late = torch.zeros(70, 70, dtype=torch.bool)
    late[[2, 10, 60, 64], 5] = True
    assert check(lambda b, h, q, kv: late[q, kv], (2, 1, 70, 70)) == "evaluated bits"
    late[64, 5] = late[60, 5] = False
    assert check(lambda b, h, q, kv: ~late[q, kv], (2, 1, 70, 70)) == "evaluated"


def test_long_sequences_take_no_memory_for_pairs():
    """A matrix of booleans would have 10^12 of them."""
    ids = torch.arange(1_000_000) // 1000
    mask = masks.from_mask_mod(lambda b, h, q, kv: (ids[q] == ids[kv]) & (q >= kv), None, None, 10**6, 10**6)
    assert mask == masks.causal_document([1000] * 1000)


def test_numbers_that_are_not_numbers_compare_as_in_torch():
    values = torch.tensor([0.0, torch.nan, 2.0, -torch.inf, torch.inf, 1.0])
    for mask_mod in (
        lambda b, h, q, kv: values[q] <= values[kv],
        lambda b, h, q, kv: ~(values[q] <= values[kv]),
        lambda b, h, q, kv: values[q] == values[kv],
        lambda b, h, q, kv: values[q] != values[kv],
        lambda b, h, q, kv: q - kv < torch.inf,
        lambda b, h, q, kv: q - kv <= values[1].item(),
    ):
        check(mask_mod, (1, 1, 6, 6))


def test_numbers_at_the_ends_of_their_dtype_do_not_overflow():
    limits = torch.tensor([LONG, 0, -LONG - 1, 3, LONG, -5])
    small = torch.tensor([200, 3, 255, 7, 0, 100], dtype=torch.uint8)
    for mask_mod in (
        lambda b, h, q, kv: q - kv <= limits[q],
        lambda b, h, q, kv: limits[q] <= limits[kv],
        lambda b, h, q, kv: limits[q] == limits[kv],
        lambda b, h, q, kv: (q - kv).abs() < limits[kv],
        lambda b, h, q, kv: small[q] < small[kv],
        lambda b, h, q, kv: small[q] - small[kv] < 100,  # wraps around in torch
        lambda b, h, q, kv: q <= 2**62,
    ):
        check(mask_mod, (1, 1, 6, 6))


def test_vectors_and_integer_functions_of_a_token_are_exact():
    intervals = torch.tensor([[0, 3], [1, 6], [2, 2], [0, 8], [5, 7], [1, 4], [3, 8], [0, 1]])
    weights, third = torch.rand(8, 3, generator=torch.Generator().manual_seed(0)), torch.tensor(1 / 3).double()
    allowed, parts = (
        weights < 0.5,
        weights * third,
    )  # float32, since torch promotes a vector and a number to the vector's
    signed = torch.tensor([-2, 1, -1, 0, 3, -3, 2, -1])
    for mask_mod in (
        lambda b, h, q, kv: (q - kv).abs() == signed[kv],
        lambda b, h, q, kv: (q - kv).abs() != signed[q],
        lambda b, h, q, kv: (kv >= intervals[q][0]) & (kv < intervals[q][1]),
        lambda b, h, q, kv: (kv >= intervals[q].amin()) & (kv < intervals[q].sum()),
        lambda b, h, q, kv: allowed[q].any() & (kv <= q),
        lambda b, h, q, kv: allowed[q][kv % 3],
        lambda b, h, q, kv: (weights[q] * third)[0] == parts[kv, 0],
        lambda b, h, q, kv: ((q & 5) | (q << 1)) >= (kv ^ 3),
        lambda b, h, q, kv: torch.where(q % 2 == 0, q, -q) <= torch.clamp(kv, 1, 4),
        lambda b, h, q, kv: (
            torch.maximum(intervals[q][0], intervals[kv][0]) < torch.minimum(intervals[q][1], intervals[kv][1])
        ),
    ):
        check(mask_mod, (1, 1, 8, 8))


def test_captured_tensors_are_read_when_the_mask_is_made():
    ids = torch.tensor([0, 0, 1, 1])

    def mask_mod(b, h, q, kv):
        return ids[q] == ids[kv]

    before = masks.from_mask_mod(mask_mod, None, None, 4, 4)
    ids[:] = torch.tensor([0, 1, 1, 1])
    assert before == masks.document([2, 2])
    assert masks.from_mask_mod(mask_mod, None, None, 4, 4) == masks.document([1, 3])


def test_attention_under_a_predicate_of_fewer_entries_and_heads():
    q = torch.randn(2, 16, 4, 8)
    ids = torch.arange(16) // 6
    mask = masks.from_mask_mod(lambda b, h, q, kv: (ids[q] == ids[kv]) & (q >= kv), 2, 4, 16, 16)
    assert torch.equal(
        flashmask.attention(q, q, q, mask), flashmask.attention(q, q, q, masks.causal_document([6, 6, 4]))
    )


def test_what_is_no_predicate_is_refused():
    ids = torch.arange(4)
    for mask_mod, error, message in (
        (3, TypeError, "mask_mod is int 3; expected a function"),
        (lambda b, h, q, kv: q - kv, TypeError, r"mask_mod returned torch\.int64; expected booleans"),
        (lambda b, h, q, kv: (q - kv) * 0.5, TypeError, r"mask_mod returned torch\.float32; expected booleans"),
        (lambda b, h, q, kv: True, TypeError, "mask_mod returned bool True; expected booleans"),
        (
            lambda b, h, q, kv: torch.ones(4, dtype=torch.bool),
            ValueError,
            r"mask_mod returned shape \[4\]; expected one boolean",
        ),
        (
            lambda b, h, q, kv: torch.stack([q > kv, q < kv]),
            ValueError,
            r"mask_mod returned shape \[2\]; expected one boolean",
        ),
        (lambda b, h, q, kv: torch.stack([q, kv]).sum(), TypeError, r"mask_mod returned torch\.int64; expected boo"),
        (lambda b, h, q, kv: ids[q + 1] == ids[kv], IndexError, "out of bounds"),
        (lambda b, h, q, kv: ids[q, kv] > 0, IndexError, "too many indices"),
        # Said before a GPU computes it, where such an index ends the process's work.
        (
            lambda b, h, q, kv: ids.expand(4, 4)[:, :3][q, kv] > 0,
            IndexError,
            "index 3 is out of bounds for dimension 1",
        ),
        (
            lambda b, h, q, kv: torch.ones(4, device="meta")[q] > kv,
            ValueError,
            "a captured tensor is on meta, the mask on cpu; move it there",
        ),
    ):
        with pytest.raises(error, match=message):
            masks.from_mask_mod(mask_mod, None, None, 4, 4)
