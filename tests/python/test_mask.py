# SPDX-License-Identifier: Apache-2.0
"""Mask: what it says of itself, its algebra, its order of tokens, and how it travels."""

import copy
import dataclasses
import io
import pickle
import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse
import torch
from torch.utils import _pytree as pytree
from visibility import check, grid

import flashmask
from flashmask import masks
from flashmask._torch.plans.by_tensor import mask_of

DILATED = masks.dilated_window(130, 130, 2, 1, 3)


def random_mask(seed, rows=70, columns=130, density=0.3):
    return masks.from_dense(np.random.default_rng(seed).random((rows, columns)) < density)


def test_slice_is_the_scores_of_some_rows_and_columns():
    mask = masks.causal_document([30, 50, 20])
    sliced = mask.slice([(10, 40), (90, 100)], [(60, 95), (0, 20)])
    rows, columns = np.r_[10:40, 90:100], np.r_[60:95, 0:20]
    assert (sliced.to_dense()[0, 0] == mask.to_dense()[0, 0][np.ix_(rows, columns)]).all()
    assert mask.slice([(0, 100)], [(0, 100)]) == mask
    with pytest.raises(ValueError, match=r"rows\[1\] = \[10, 40\) begins before rows\[0\] = \[90, 100\) ends"):
        mask.slice([(90, 100), (10, 40)], [(0, 100)])
    with pytest.raises(ValueError, match="rows has 1 dimensions"):
        mask.slice([10], [(0, 100)])


def test_masks_say_what_they_are():
    mask = masks.causal_document([4, 3, 3], 10)
    assert mask.shape == flashmask.MaskShape(batch=1, heads=1, rows=10, columns=10)
    assert repr(mask) == "<flashmask.Mask batch=1, heads=1, rows=10, columns=10, form=intervals>"
    assert mask.form == "intervals"
    assert mask.why == "every column has at most two masked row ranges"
    assert DILATED.form == "bits"
    assert "column 0" in DILATED.why


def test_masks_are_drawn():
    head, *lines = str(masks.causal_document([4, 3, 3], 10)).split("\n")
    assert head == (
        "Mask 1 x 1 x 10 x 10 (batch, heads, rows, columns), intervals, 22.0 % visible, "
        "1 of 1 tiles active at 128 x 128"
    )
    shown = masks.causal_document([4, 3, 3], 10).to_dense()[0, 0]
    assert lines == ["".join("#" if seen else "." for seen in row) for row in shown]
    large = str(masks.causal(1000, 3000)).split("\n")[1:]
    assert max(map(len, large)) <= 64
    assert set("".join(large)) == set("#+.")
    assert "batch entry 0, head 0:" in str(masks.stack_heads([masks.full(2, 2)] * 3))
    assert str(masks.full(0, 5)).count("\n") == 0


def test_a_drawing_is_of_one_entry_and_head():
    mask = masks.stack_batch([masks.full(2, 3), masks.causal(2, 3)])
    assert mask.draw(batch=1) == "##.\n###\n"
    assert mask.draw(width=1) == "#\n"
    assert "\x1b[32m" in mask.draw(colour=True)
    with pytest.raises(ValueError, match="batch 2, head 0"):
        mask.draw(batch=2)
    with pytest.raises(ValueError, match="width is 0; expected at least 1"):
        mask.draw(width=0)


@pytest.mark.parametrize("tile", [(128, 128), (16, 48), (1, 1), (1000, 1000)])
@pytest.mark.parametrize("seed", [0, 1])
def test_an_explanation_counts(tile, seed):
    mask = masks.stack_heads(
        [random_mask(seed, density=0.02), masks.document([30, 0, 20], 70) & masks.full(70, 70)][:1]
    )
    shown = mask.to_dense()[0]
    told = mask.explain(tile)
    kinds = []
    for head in shown:
        for r in range(0, head.shape[0], tile[0]):
            for c in range(0, head.shape[1], tile[1]):
                part = head[r : r + tile[0], c : c + tile[1]]
                kinds.append((part.any(), part.all(), part.size))
    assert told.full_tiles == sum(full for _, full, _ in kinds)
    assert told.active_tiles == sum(seen for seen, _, _ in kinds)
    assert told.tiles == len(kinds)
    assert told.skipped_tiles + told.partial_tiles + told.full_tiles == len(kinds)
    assert told.visible_pairs == shown.sum()
    assert told.density == pytest.approx(shown.mean())
    assert told.waste == pytest.approx(sum(size for seen, _, size in kinds if seen) / shown.sum())
    empty = np.flatnonzero(~shown[0].any(axis=1))
    assert told.empty_rows == (~shown.any(axis=2)).sum()
    assert told.first_empty_rows == tuple(empty[:8])
    assert told.dense_bytes == shown.size
    assert (told.tile_rows, told.tile_columns) == tile
    assert told.form == mask.form
    assert told.why == mask.why


def test_an_explanation_has_the_fields_of_the_c_struct_and_reads_well():
    from flashmask._abi import structs

    told = masks.causal_document([4, 3], 10).explain()
    fields = {field.name for field in dataclasses.fields(told)}
    assert {name for name, _ in structs.Explanation._fields_} - fields == {"first_empty_row_count"}
    text = str(told)
    assert "16 pairs, 16.0 %" in text
    assert "1 of 1 active (0 full, 1 partial) at 128 x 128" in text
    assert "empty rows  3: 7, 8, 9" in text
    assert "as booleans 100 bytes" in text
    with pytest.raises(dataclasses.FrozenInstanceError):
        told.density = 0


@pytest.mark.parametrize(
    "pair",
    [
        (masks.causal(70, 130), masks.window(70, 130, 4, 9)),
        (random_mask(0), masks.causal(70, 130)),
        (random_mask(1), random_mask(2)),
        (masks.stack_heads([random_mask(1), random_mask(2)]), random_mask(3)),
        (masks.stack_batch([random_mask(1), random_mask(2)]), masks.stack_heads([random_mask(3), masks.full(70, 130)])),
    ],
    ids=["intervals", "mixed", "bits", "heads", "broadcast"],
)
def test_algebra_is_that_of_booleans(pair):
    a, b = pair
    x, y = a.to_dense(), b.to_dense()
    check(a & b, x & y)
    check(a | b, x | y)
    check(~a, ~x)
    assert (a & b) == (b & a)
    assert a == ~~a
    assert a != b
    assert hash(a & b) == hash(b & a)


def test_masks_of_other_shapes_or_types_are_told_apart():
    assert masks.full(4, 5) != masks.full(5, 4)
    assert masks.full(4, 5) != "mask"
    with pytest.raises(TypeError):
        masks.full(4, 5) & np.ones((4, 5))
    with pytest.raises(ValueError, match=r"4.*5"):
        masks.full(4, 4) & masks.full(5, 5)


def test_masks_are_stacked():
    parts = [random_mask(seed) for seed in range(3)]
    dense = [part.to_dense() for part in parts]
    check(masks.stack_batch(parts), np.concatenate(dense, axis=0))
    check(masks.stack_heads(iter(parts)), np.concatenate(dense, axis=1))
    with pytest.raises(TypeError, match=r"masks\[1\] is int 3; expected a Mask"):
        masks.stack_heads([parts[0], 3])
    with pytest.raises(ValueError, match="stack_batch"):
        masks.stack_batch([])


def test_queries_are_dropped():
    mask = random_mask(0)
    expected = mask.to_dense()
    expected[:, :, [3, 69, 5]] = False
    check(mask.drop_queries([3, 69, 5]), expected)
    check(masks.drop_queries(mask, torch.tensor([3, 69, 5])), expected)
    check(mask.drop_queries([]), mask.to_dense())
    with pytest.raises(ValueError, match="70"):
        mask.drop_queries([70])
    with pytest.raises(TypeError, match="rows holds float64"):
        mask.drop_queries([1.5])
    with pytest.raises(TypeError, match="mask is int 3"):
        masks.drop_queries(3, [1])


def test_tokens_are_permuted():
    rng = np.random.default_rng(0)
    mask = masks.stack_batch([random_mask(0), random_mask(1)])
    dense = mask.to_dense()
    rows, columns = rng.permutation(70), rng.permutation(130)
    check(mask.permute(rows, columns), dense[:, :, rows][:, :, :, columns])
    each = np.stack([rows, rows[::-1]])
    expected = np.stack([dense[b][:, each[b]][:, :, columns] for b in range(2)])
    check(mask.permute(each, columns), expected)
    with pytest.raises(ValueError, match=r"rows has shape \[130\]; expected \[70\] or \[2, 70\]"):
        mask.permute(columns, rows)
    with pytest.raises(ValueError, match="permute"):
        mask.permute(np.zeros(70, int), columns)


def test_a_shuffled_band_is_put_in_order():
    shuffle = np.random.default_rng(0).permutation(1000)
    i, j = grid(1000, 1000)
    band = masks.from_dense((abs(i - j) <= 3)[shuffle][:, shuffle])
    found = band.reorder((64, 64))
    assert found.gained
    assert found.tiles_before == band.explain((64, 64)).active_tiles
    assert found.tiles_after == found.mask.explain((64, 64)).active_tiles < found.tiles_before / 2
    assert found.tile == (64, 64)
    assert found.rows.shape == found.columns.shape == (1, 1000)
    assert found.mask == band.permute(found.rows, found.columns)
    assert str(found).startswith(f"{found.tiles_before:,} -> {found.tiles_after:,} active tiles at 64 x 64: ")
    kept = masks.causal(1000, 1000).reorder()
    assert not kept.gained
    assert kept.why
    np.testing.assert_array_equal(kept.rows[0], np.arange(1000))
    assert masks.full(0, 4).reorder().rows.shape == (1, 0)


def test_the_order_of_a_graph():
    i, j = grid(200, 200)
    shuffle = np.random.default_rng(1).permutation(200)
    band = (abs(i - j) <= 1)[shuffle][:, shuffle]
    order = masks.reverse_cuthill_mckee(scipy.sparse.csr_matrix(band))
    assert sorted(order) == list(range(200))
    ordered = band[order][:, order]
    assert abs(i - j)[ordered].max() == 1
    with pytest.raises(TypeError, match="matrix is ndarray"):
        masks.reverse_cuthill_mckee(band)


@pytest.mark.parametrize(
    "mask",
    [
        masks.causal_document([4, 3, 3], 10),
        DILATED,
        masks.stack_heads([random_mask(0), masks.causal(70, 130)]),
        masks.causal(300, 300) & flashmask.block_maps.sliding((300, 300), 128, 1, 0),
        masks.full(0, 3),
    ],
    ids=["intervals", "bits", "heads", "blocks", "empty"],
)
def test_masks_are_copied_and_pickled(mask):
    assert copy.copy(mask) is mask
    assert copy.deepcopy([mask])[0] is mask
    again = pickle.loads(pickle.dumps(mask))
    assert again == mask
    assert again.form == mask.form
    assert torch.equal(again.tensor, mask.tensor), "the same mask has the same id, so that plans of it are shared"


def test_a_tree_is_a_mask_that_keeps_its_positions():
    tree = masks.tree([-1, 0, 0, 1], [1, 2, 3, 4])
    mask, positions = tree
    assert mask == tree == tree.mask and list(positions) == list(tree.positions) == [0, 1, 7, 3]
    assert tree & masks.causal(10, 10) == mask
    assert masks.stack_batch([tree, tree]).shape.batch == 2
    q = torch.randn(1, 10, 2, 8)
    assert torch.equal(
        flashmask.attention(q, q, q, tree), flashmask.attention(q, q, q, masks.from_dense(mask.to_dense()))
    )
    saved = io.BytesIO()
    torch.save(tree, saved)
    saved.seek(0)
    for again in (
        pickle.loads(pickle.dumps(tree)),
        torch.load(saved, weights_only=True),
        pytree.tree_map(lambda leaf: leaf, tree),
    ):
        assert again == tree and list(again.positions) == [0, 1, 7, 3]


def test_another_process_reads_a_pickled_mask():
    code = (
        "import pickle, sys; mask = pickle.load(sys.stdin.buffer); assert 'torch' not in sys.modules; "
        "sys.stdout.write(mask.draw())"
    )
    mask = masks.causal_document([4, 3, 3], 10)
    told = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(mask), capture_output=True, check=True)
    assert told.stdout.decode() == mask.draw()


def test_what_is_no_packed_mask_is_refused():
    with pytest.raises(ValueError, match="does not hold a packed mask"):
        flashmask.Mask._unpack(np.zeros(200, np.uint8))
    packed = masks.causal(5, 5).tensor.numpy()
    for size in (128, len(packed) - 1):
        with pytest.raises(ValueError):
            flashmask.Mask._unpack(packed[:size])


def test_a_mask_is_found_by_its_tensor_while_it_lives_and_unpacked_afterwards():
    mask = masks.causal_document([3, 4])
    tensor = mask.tensor
    assert mask_of(tensor) is mask and mask_of(tensor.clone()) is not mask
    dense = mask.to_dense()
    del mask
    unpacked = mask_of(tensor)
    assert unpacked.tensor is tensor and np.array_equal(unpacked.to_dense(), dense)


def test_the_tensor_is_the_mask():
    mask = masks.causal_document([4, 3, 3], 10)
    assert mask.tensor.dtype == torch.uint8
    assert mask.tensor.ndim == 1
    assert mask.tensor is mask.tensor
    again = flashmask.Mask._from_tensor(mask.tensor.clone())
    assert again == mask
    assert again.shape == (1, 1, 10, 10)
    assert not torch.equal(masks.causal_document([4, 3, 3], 10).tensor[:128], mask.tensor[:128]), "ids are unique"


def test_masks_are_pytrees():
    mask = masks.causal_document([4, 3, 3], 10)
    leaves, spec = pytree.tree_flatten({"mask": mask})
    assert leaves[0] is mask.tensor
    again = pytree.tree_unflatten(leaves, spec)["mask"]
    assert again == mask
    assert pytree.tree_map(lambda leaf: leaf, mask) == mask
    assert pytree.tree_structure(masks.full(3, 3)) == pytree.tree_structure(mask)

    @torch.compile(fullgraph=True, backend="eager")
    def size(given):
        return given.tensor.sum()

    assert size(mask) == mask.tensor.sum()


@pytest.mark.slow
def test_pytrees_are_known_when_torch_comes_later():
    code = """
import flashmask, sys
assert "torch" not in sys.modules
first = flashmask.masks.causal(3, 3)
import torch
from torch.utils import _pytree as pytree
rows = flashmask.masks.from_position_ids(torch.arange(3))
assert pytree.tree_leaves([rows])[0] is rows.startend_row_indices
assert pytree.tree_leaves([first])[0] is first.tensor
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: masks.causal(True, 2), TypeError, "rows is bool True; expected an integer"),
        (lambda: masks.causal(2, 2.0), TypeError, "columns is float 2.0; expected an integer"),
        (lambda: masks.causal(2, "2"), TypeError, "columns is str '2'"),
        (lambda: masks.causal(None, 2), TypeError, "rows is NoneType None"),
        (lambda: masks.causal(torch.tensor(True), 2), TypeError, "rows is Tensor of torch.bool"),
        (lambda: masks.causal(-1, 2), ValueError, "rows is -1; expected at least 0"),
        (lambda: masks.causal(2**70, 2), ValueError, f"rows is {2**70}; expected at most"),
        (lambda: masks.causal(2**40, 2), ValueError, "rows"),
        (lambda: masks.window(4, 4, -1, 2), ValueError, "left is -1; expected at least 0"),
        (lambda: masks.sliding_window(3, 3, 0), ValueError, "window is 0; expected at least 1"),
        (lambda: masks.dilated_window(3, 3, 1, 1, 0), ValueError, "dilation is 0"),
        (lambda: masks.causal_document(4), TypeError, "documents is int 4; expected a list, a NumPy array or a CPU"),
        (lambda: masks.causal_document("43"), TypeError, "documents is str '43'"),
        (lambda: masks.causal_document([4, True]), TypeError, "documents holds True or False"),
        (lambda: masks.causal_document([4, 1.0]), TypeError, "documents holds float64 values; expected integers"),
        (lambda: masks.causal_document([4, None]), TypeError, "documents holds object values"),
        (lambda: masks.causal_document([[4], [3, 2]]), ValueError, "documents is ragged"),
        (lambda: masks.causal_document([[4, 3]]), ValueError, r"documents has 2 dimensions, shape \[1, 2\]"),
        (lambda: masks.causal_document([4, -3]), ValueError, r"documents\[1\] is -3; a length is at least 0"),
        (lambda: masks.causal_document(np.array([2**63], np.uint64)), ValueError, f"documents holds {2**63}"),
        (lambda: masks.causal_document(np.array([True])), TypeError, "documents holds bool values"),
        (lambda: masks.causal_document(torch.ones(2)), TypeError, "documents holds float32 values"),
        (lambda: masks.causal_document(torch.ones(2, device="meta")), TypeError, "documents is a tensor on meta"),
        (lambda: masks.causal_document([4, 3], 6), ValueError, "7 tokens but tokens is 6"),
        (masks.causal_document, TypeError, "causal_document takes documents and tokens, or query_lengths"),
        (lambda: masks.document([4], key_lengths=[4]), TypeError, "document takes .* not both"),
        (lambda: masks.document(query_lengths=[4], key_lengths=[4, 3]), ValueError, "1 documents, key_lengths has 2"),
        (lambda: masks.prefix_lm_document([4], [1, 2]), ValueError, "prefixes has 2 values for 1 documents"),
        (lambda: masks.prefix_lm_document([4], [5]), ValueError, "5"),
        (lambda: masks.shared_question(4), TypeError, r"documents is int 4; expected pairs \(question, answers\)"),
        (lambda: masks.neighbourhood(4), TypeError, r"axes is int 4; expected axes \(length, kernel"),
        (lambda: masks.stack_batch(4), TypeError, "masks is int 4; expected masks"),
        (lambda: masks.document(torch.ones(2, dtype=torch.bfloat16)), TypeError, "documents holds torch.bfloat16"),
        (lambda: masks.shared_question([4]), TypeError, r"documents\[0\] is int 4; expected \(question, answers\)"),
        (lambda: masks.shared_question([(4, [3, "a"])]), TypeError, r"documents\[0\].answers holds"),
        (lambda: masks.shared_question([(4.5, [3])]), TypeError, r"documents\[0\].question is float 4.5"),
        (lambda: masks.bidirectional_spans(9, [(1, 2, 3)]), ValueError, r"spans has shape \[1, 3\]"),
        (lambda: masks.bidirectional_spans(9, 3), TypeError, "spans is int 3; expected pairs of integers"),
        (lambda: masks.bidirectional_spans(9, [(4, 2)]), ValueError, r"spans\[0\]"),
        (lambda: masks.neighbourhood([(4,)]), TypeError, r"axes\[0\] is tuple \(4,\); expected \(length, kernel\)"),
        (lambda: masks.neighbourhood_2d((4, 2), (4, 2.0)), TypeError, "width.kernel is float 2.0"),
        (lambda: masks.random_eviction(4, [5, 5]), ValueError, "evicted_at has 2 columns, tokens is 4"),
        (lambda: masks.scfa_qk_sparse([1, 2], [1, 1]), ValueError, "kept_queries holds other values than 0 and 1"),
        (lambda: masks.scfa_qk_sparse([1.0], [1]), TypeError, "kept_queries holds float64"),
        (lambda: masks.scfa_hash_sparse([[1], [2]], [1]), ValueError, "query_buckets has 2 heads, key_buckets has 1"),
        (lambda: masks.big_bird(64, seed=-1), ValueError, "seed is -1"),
        (lambda: masks.tree([-1], [1, 2]), ValueError, "parents has 1 nodes, lengths has 2"),
        (lambda: masks.tree([-1], [1], order="breadth"), ValueError, "order is 'breadth'; expected one of 'as_given'"),
        (lambda: masks.tree_in_order([-1], 1, sight=0), TypeError, "sight is int 0; expected one of 'ancestors'"),
        (lambda: masks.tree_in_order([1, -1], 2), ValueError, r"parents\[0\]"),
        (lambda: masks.graph(3, [(0, 1)], symmetric=1), TypeError, "symmetric is int 1; expected True or False"),
        (lambda: masks.graph(3, [(0, 3)]), ValueError, "3"),
        (lambda: masks.from_pairs(3, 3, [(0, 1), (0,)]), ValueError, "pairs is ragged"),
        (lambda: masks.from_pairs(3, 3, [(0, 5)]), ValueError, "5"),
        (lambda: masks.from_dense(np.ones((3, 3))), TypeError, "visible holds float64 values"),
        (lambda: masks.from_dense(np.ones(3, bool)), ValueError, r"visible has shape \[3\]; expected 2 to 4 dim"),
        (lambda: masks.from_dense("mask"), TypeError, "visible is str 'mask'"),
        (lambda: masks.from_packed(np.zeros((3, 1), np.uint8), 9), ValueError, r"bits has shape \[3, 1\]; expected"),
        (lambda: masks.from_packed(np.zeros((3, 1), np.int8), 8), TypeError, "bits holds int8 values; expected uint8"),
        (lambda: masks.from_csr(np.ones((3, 3))), TypeError, "matrix is ndarray of float64"),
        (
            lambda: masks.from_startend_row_indices(np.zeros((1, 1, 4, 3), np.int32), causal=True),
            ValueError,
            r"values has n = 3 vectors, shape \[1, 1, 4, 3\]; with causal=True n is 1 or 2",
        ),
        (
            lambda: masks.from_startend_row_indices(np.zeros((1, 1, 4, 1), np.int64), causal=True),
            TypeError,
            "values holds int64 values; expected int32",
        ),
        (
            lambda: masks.from_startend_row_indices([[[[2**31]]]], causal=True),
            ValueError,
            "values holds an integer of more than 32 bits",
        ),
        (lambda: masks.full(4, 4).explain((2, 0)), ValueError, r"tile\[1\] is 0; expected at least 1"),
        (lambda: masks.full(4, 4).explain((2, 2**40)), ValueError, r"tile\[1\] is .*; expected at most"),
        (lambda: masks.full(4, 4).explain(128), TypeError, r"tile is int 128; expected \(rows, columns\)"),
    ],
)
def test_mistakes_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call()
