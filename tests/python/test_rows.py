# SPDX-License-Identifier: Apache-2.0
"""Tensor builders: what host builders say, on the tensors' device, without looking at a value on the host."""

import copy
import pickle

import numpy as np
import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree
from visibility import check, documents_of, grid

import flashmask
from flashmask import masks


def visible(lengths, tokens, *, causal=True, window=None, prefix=None):
    """Booleans [tokens, tokens] by the words of the documentation."""
    i, j = grid(tokens, tokens)
    of = documents_of(lengths, tokens)
    begins = np.cumsum([0, *lengths])[of]
    seen = (of[i] == of[j]) & (of[j] >= 0)
    if causal:
        prefixes = np.broadcast_to(0 if prefix is None else prefix, (len(lengths),))
        length = np.array([*prefixes, 0])[of]
        seen &= (j <= i) | (j - begins[j] < length[j])
    if window is not None:
        seen &= j > i - window
        if not causal:
            seen &= j < i + window
    return seen


def random_packings(count):
    rng = np.random.default_rng(0)
    yield [], 5
    yield [7], 7
    yield [0, 0], 3
    for _ in range(count):
        lengths = rng.integers(0, 9, rng.integers(1, 12)).tolist()
        yield lengths, sum(lengths) + int(rng.integers(0, 6))


OPTIONS = [
    {},
    {"causal": False},
    {"window": 1},
    {"window": 3},
    {"window": 3, "causal": False},
    {"prefix": 2},
    {"prefix": 0},
    {"prefix": 100},
    {"prefix": 4, "window": 2},
    {"window": 2**31 - 1},
    {"window": 2**31 - 1, "causal": False},
    {"prefix": 2**31 - 1},
    {"prefix": 2**62, "window": 2**62},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_documents_by_any_tensor_are_the_same(options, dtype):
    for lengths, tokens in random_packings(25):
        expected = visible(lengths, tokens, **options)
        ends = torch.tensor([0, *np.cumsum(lengths)], dtype=dtype)
        rows = masks.from_cu_seqlens(ends, tokens, **options)
        assert rows.startend_row_indices.dtype == torch.int32
        assert rows.startend_row_indices.shape == (1, 1, tokens, 1 if rows.causal else 2)
        check(rows.to_mask(), expected)

        names = np.random.default_rng(1).permutation(len(lengths) + 1) * 3
        ids = np.append(names, -1)[documents_of(lengths, tokens)]
        check(masks.from_document_ids(torch.tensor(ids, dtype=dtype), **options).to_mask(), expected)

        used = sum(lengths)
        positions = np.concatenate([np.arange(length) for length in [*lengths, 0]]).astype(int)
        by_position = masks.from_position_ids(torch.tensor(positions, dtype=dtype), **options)
        check(by_position.to_mask(), expected[:used, :used])


def test_tensor_builders_equal_host_builders():
    lengths, tokens = [4, 0, 3, 5], 14
    ends = torch.tensor([0, 4, 4, 7, 12])
    prefixes = [2, 0, 3, 1]
    assert masks.from_cu_seqlens(ends, tokens).to_mask() == masks.causal_document(lengths, tokens)
    assert masks.from_cu_seqlens(ends, tokens, causal=False).to_mask() == masks.document(lengths, tokens)
    assert masks.from_cu_seqlens(ends, tokens, window=2).to_mask() == masks.sliding_window_document(lengths, tokens, 2)
    by_tensor = masks.from_cu_seqlens(ends, tokens, prefix=torch.tensor(prefixes))
    assert by_tensor.to_mask() == masks.prefix_lm_document(lengths, prefixes, tokens)


def test_every_document_may_have_its_own_prefix():
    ids = torch.tensor([[-1, 5, 5, 5, 2, 2, 2, -1], [1, 1, 1, 1, 1, 1, 0, 0]])
    expected = np.zeros((2, 1, 8, 8), bool)
    expected[0, 0, 1:7, 1:7] = visible([3, 3], 6, prefix=[1, 3])
    expected[1, 0] = visible([6, 2], 8, prefix=[4, 2])
    check(masks.from_document_ids(ids, prefix=torch.tensor([[1, 3], [4, 2]])).to_mask(), expected)
    shared = torch.tensor([2, 1], dtype=torch.int32)
    expected[0, 0, 1:7, 1:7] = visible([3, 3], 6, prefix=[2, 1])
    expected[1, 0] = visible([6, 2], 8, prefix=[2, 1])
    check(masks.from_document_ids(ids, prefix=shared).to_mask(), expected)
    positions = torch.tensor([0, 1, 2, 0, 1, 2, 3, 4])
    check(masks.from_position_ids(positions, prefix=shared).to_mask(), visible([3, 5], 8, prefix=[2, 1]))


def test_padding_between_documents_is_seen_by_nobody():
    ids = torch.tensor([-1, 3, 3, -2, -2, 3, 1])
    shown = masks.from_document_ids(ids).to_dense()[0, 0]
    expected = np.zeros((7, 7), bool)
    for begin, end in ((1, 3), (5, 6), (6, 7)):
        expected[begin:end, begin:end] = np.tri(end - begin)
    np.testing.assert_array_equal(shown, expected)


def test_positions_begin_a_document_where_they_do_not_go_on():
    positions = torch.tensor([5, 6, 7, 0, 1, 0, 3, 4, 4])
    assert masks.from_position_ids(positions).to_mask() == masks.causal_document([3, 2, 1, 2, 1])
    batch = masks.from_position_ids(torch.tensor([[0, 1, 0], [0, 1, 2]]))
    assert batch.to_mask() == masks.stack_batch([masks.causal_document([2, 1]), masks.causal(3, 3)])
    assert masks.from_position_ids(torch.zeros(2, 0, dtype=torch.int64)).startend_row_indices.shape == (2, 1, 0, 1)


BUILDERS = [
    (masks.from_cu_seqlens, lambda: (torch.tensor([0, 4, 4, 9]), 12), torch.tensor([1, 2, 3])),
    (masks.from_document_ids, lambda: (torch.tensor([4, 4, 4, 1, 1, 1, 7, 7, 7, 7, -1, -1]),), torch.tensor([1, 2, 3])),
    (
        masks.from_position_ids,
        lambda: (torch.tensor([[0, 1, 2, 0, 1, 0], [0, 1, 2, 3, 0, 1]]),),
        torch.tensor([1, 2, 3]),
    ),
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize(("build", "arguments", "prefix"), BUILDERS)
def test_no_value_is_looked_at(build, arguments, prefix, options):
    """A fake tensor has none: whatever needs one raises."""
    eager = build(*arguments(), **options).startend_row_indices
    for mode in (FakeTensorMode(), torch.device("meta")):
        with mode:
            given = [torch.empty_like(a) if isinstance(a, torch.Tensor) else a for a in arguments()]
            values = build(*given, **options).startend_row_indices
        assert values.shape == eager.shape
        assert values.dtype == torch.int32


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device to wait for")
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize(("build", "arguments", "prefix"), BUILDERS)
def test_a_device_is_not_waited_for(build, arguments, prefix, options):
    eager = [build(*arguments(), **options), build(*arguments(), prefix=prefix)]
    given = [a.cuda() if isinstance(a, torch.Tensor) else a for a in arguments()]
    torch.cuda.synchronize()
    on_device = prefix.cuda()
    torch.cuda.set_sync_debug_mode("error")
    try:
        made = [build(*given, **options), build(*given, prefix=on_device)]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for one, other in zip(made, eager, strict=True):
        assert one.startend_row_indices.device.type == "cuda"
        assert torch.equal(one.startend_row_indices.cpu(), other.startend_row_indices)
        assert one.to_mask() == other.to_mask()


@pytest.mark.parametrize(("build", "arguments", "prefix"), BUILDERS)
def test_builders_compile_into_one_graph(build, arguments, prefix):
    torch._dynamo.reset()

    @torch.compile(fullgraph=True, backend="aot_eager")
    def built(*given):
        plain = build(*given)
        return plain, build(*given, window=2, prefix=prefix), build(*given, causal=False).startend_row_indices

    given = arguments()
    plain, with_prefix, both_ways = built(*given)
    assert isinstance(plain, flashmask.RowIndices)
    for made, options in ((plain, {}), (with_prefix, {"window": 2, "prefix": prefix})):
        expected = build(*given, **options)
        assert made.causal == expected.causal
        assert torch.equal(made.startend_row_indices, expected.startend_row_indices)
    assert torch.equal(both_ways, build(*given, causal=False).startend_row_indices)


def test_other_lengths_do_not_compile_again():
    torch._dynamo.reset()
    counter = CompileCounter()

    @torch.compile(fullgraph=True, backend=counter, dynamic=True)
    def built(ends, ids):
        by_ends = masks.from_cu_seqlens(ends, ids.shape[0], window=3)
        return by_ends.startend_row_indices, masks.from_document_ids(ids, prefix=2).startend_row_indices

    for lengths in ([4, 3, 6], [5, 0, 9, 7], [3, 20], [1, 1, 1, 1, 1, 40]):
        tokens = sum(lengths)
        ends = torch.tensor([0, *np.cumsum(lengths)])
        ids = torch.tensor(documents_of(lengths, tokens))
        by_ends, by_ids = built(ends, ids)
        assert torch.equal(by_ends, masks.from_cu_seqlens(ends, tokens, window=3).startend_row_indices)
        assert torch.equal(by_ids, masks.from_document_ids(ids, prefix=2).startend_row_indices)
    assert counter.frame_count == 1


def test_row_indices_go_through_torch():
    rows = masks.from_cu_seqlens(torch.tensor([0, 4, 7]), 10)
    leaves, spec = pytree.tree_flatten({"mask": rows})
    assert leaves[0] is rows.startend_row_indices
    again = pytree.tree_unflatten([leaves[0] + 1], spec)["mask"]
    assert isinstance(again, flashmask.RowIndices)
    assert torch.equal(again.startend_row_indices, rows.startend_row_indices + 1)
    assert pytree.tree_flatten(masks.from_cu_seqlens(torch.tensor([0, 4]), 10, causal=False))[1] != spec

    @torch.compile(fullgraph=True, backend="eager")
    def shifted(given):
        return given.startend_row_indices + int(given.causal)

    assert torch.equal(shifted(rows), rows.startend_row_indices + 1)
    for twin in (copy.deepcopy(rows), pickle.loads(pickle.dumps(rows))):
        assert twin.to_mask() == rows.to_mask()


def test_row_indices_move_to_a_device():
    rows = masks.from_cu_seqlens(torch.tensor([0, 4, 7]), 10)
    assert rows.to("cpu") is rows
    moved = flashmask.RowIndices(rows.startend_row_indices, True, rows=9, most_documents=3).to(
        "meta", non_blocking=True
    )
    assert moved.startend_row_indices.is_meta and moved.startend_row_indices.shape == (1, 1, 10, 1)
    assert (moved.causal, moved.rows, moved.most_documents) == (True, 9, 3)


def test_row_indices_say_what_they_hold():
    rows = masks.from_cu_seqlens(torch.tensor([0, 4, 7]), 10)
    assert repr(rows) == "<flashmask.RowIndices [1, 1, 10, 1] on cpu, causal=True>"
    assert str(rows) == str(masks.causal_document([4, 3], 10))
    assert rows.explain().empty_rows == 3
    np.testing.assert_array_equal(rows.to_dense(), masks.causal_document([4, 3], 10).to_dense())


def test_row_indices_may_lie_outside_and_have_other_rows():
    values = torch.tensor([-5, 2, 100], dtype=torch.int32).reshape(1, 1, 3, 1)
    rows = flashmask.RowIndices(values, causal=True, rows=5)
    r, j = grid(5, 3)
    check(rows.to_mask(), (j <= r - 2) & (r < values.numpy().ravel()[j]))
    assert repr(rows).endswith("causal=True, rows=5>")


IDS = torch.tensor([0, 0, 1])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: masks.from_cu_seqlens([0, 4], 4),
            TypeError,
            r"cu_seqlens is list \[0, 4\]; expected an integer tensor",
        ),
        (lambda: masks.from_cu_seqlens(IDS.float(), 4), TypeError, "cu_seqlens holds torch.float32 values"),
        (lambda: masks.from_cu_seqlens(IDS[None], 4), ValueError, r"cu_seqlens has shape \[1, 3\]; expected 1 dim"),
        (lambda: masks.from_cu_seqlens(IDS[:0], 4), ValueError, "cu_seqlens is empty"),
        (
            lambda: masks.from_cu_seqlens(torch.tensor([10, 60, 100]), 100),
            ValueError,
            r"cu_seqlens is \[10, 60, 100\]; expected cumulative lengths that begin with 0",
        ),
        (
            lambda: masks.from_cu_seqlens(torch.tensor([0, 60, 50, *range(60, 100)], dtype=torch.int32), 100),
            ValueError,
            r"cu_seqlens is \[0, 60, 50, 60, 61, 62, 63, \.\.\., 99\]; expected .* never fall",
        ),
        (
            lambda: masks.from_cu_seqlens(torch.tensor([0, 60, 101]), 100),
            ValueError,
            r"cu_seqlens is \[0, 60, 101\]; expected .* end at 100 tokens at most",
        ),
        (lambda: masks.from_cu_seqlens(IDS, -4), ValueError, "tokens is -4; expected at least 0"),
        (lambda: masks.from_cu_seqlens(IDS, 4.0), TypeError, "tokens is float 4.0"),
        (lambda: masks.from_cu_seqlens(IDS, 4, causal=1), TypeError, "causal is int 1; expected True or False"),
        (lambda: masks.from_cu_seqlens(IDS, 4, window=0), ValueError, "window is 0; expected at least 1"),
        (
            lambda: masks.from_cu_seqlens(IDS, 4, prefix=1, causal=False),
            ValueError,
            "prefix is given with causal=False",
        ),
        (
            lambda: masks.from_cu_seqlens(IDS, 4, prefix=IDS),
            ValueError,
            r"prefix has shape \[3\]; expected one value per",
        ),
        (lambda: masks.from_document_ids(IDS, prefix=-1), ValueError, "prefix is -1; expected at least 0"),
        (lambda: masks.from_document_ids(IDS, prefix=IDS.bool()), TypeError, "prefix holds torch.bool"),
        (lambda: masks.from_document_ids(IDS[None, None]), ValueError, "ids has shape"),
        (lambda: masks.from_position_ids(IDS.double()), TypeError, "position_ids holds torch.float64"),
        (
            lambda: flashmask.RowIndices(IDS.int().reshape(1, 1, 3, 1), causal=False),
            ValueError,
            r"startend_row_indices has n = 1 vectors, shape \[1, 1, 3, 1\]; with causal=False n is 2 or 4",
        ),
        (lambda: flashmask.RowIndices(IDS, causal=True), TypeError, "startend_row_indices holds torch.int64 values"),
        (lambda: flashmask.RowIndices(IDS.int(), causal=True), ValueError, r"shape \[3\]; expected \[batch, heads"),
        (lambda: flashmask.RowIndices([1], causal=True), TypeError, r"startend_row_indices is list \[1\]"),
        (lambda: flashmask.RowIndices(IDS.int(), causal=0), TypeError, "causal is int 0"),
    ],
)
def test_mistakes_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call()
