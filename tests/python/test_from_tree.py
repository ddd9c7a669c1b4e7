# SPDX-License-Identifier: Apache-2.0
"""masks.from_tree: trees of tensors against paths walked node by node."""

import numpy as np
import pytest
from visibility import check

torch = pytest.importorskip("torch", reason="the builder takes tensors")

from torch._dynamo.testing import CompileCounter  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from flashmask import masks  # noqa: E402


def random_forest(draw, nodes):
    """Parents of nodes in depth-first order."""
    parents, path = [], []
    for node in range(nodes):
        kept = draw.integers(0, len(path) + 1)
        path = path[:kept]
        parents.append(path[-1] if path else -1)
        path.append(node)
    return parents


def visible(parents, lengths, tokens):
    """A token sees itself, what is before it in its node, and the nodes above, one after another."""
    ends = np.cumsum(lengths)
    seen = np.zeros((tokens, tokens), bool)
    for node, end in enumerate(ends):
        for row in range(end - lengths[node], end):
            seen[row, end - lengths[node] : row + 1] = True
            above = parents[node]
            while above >= 0:
                seen[row, ends[above] - lengths[above] : ends[above]] = True
                above = parents[above]
    return seen


def of(parents, lengths, tokens=None, dtype=torch.int64):
    return masks.from_tree(torch.tensor(parents, dtype=dtype), torch.tensor(lengths, dtype=dtype), tokens)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_a_node_sees_its_ancestors_and_itself(dtype):
    draw = np.random.default_rng(0)
    for nodes in [0, 1, 2, 3, *draw.integers(2, 40, 30)]:
        parents, lengths = random_forest(draw, nodes), draw.integers(0, 6, nodes).tolist()
        tokens = sum(lengths) + int(draw.integers(0, 3))
        rows = of(parents, lengths, tokens, dtype)
        assert rows.causal and rows.startend_row_indices.shape == (1, 1, tokens, 1)
        check(rows.to_mask(), visible(parents, lengths, tokens))


def test_it_is_the_tree_on_the_host():
    parents, lengths = [-1, 0, 1, 0, -1], [5, 2, 3, 4, 6]
    assert of(parents, lengths).to_mask() == masks.tree(parents, lengths, order="as_given").mask
    assert of(parents, lengths, 25).to_mask() == masks.tree(parents, lengths, 25).mask


def test_a_chain_as_deep_as_it_has_nodes_is_causal():
    for nodes in (64, 65, 1000):
        assert of(list(range(-1, nodes - 1)), [1] * nodes).to_mask() == masks.causal(nodes, nodes)


def test_batch_entries_have_trees_of_their_own():
    parents, lengths = [[-1, 0, 0], [-1, -1, -1]], [[3, 2, 4], [5, 1, 0]]
    expected = np.stack([visible(*tree, 9) for tree in zip(parents, lengths, strict=True)])[:, None]
    check(of(parents, lengths).to_mask(), expected)


REFUSED = {
    "a parent that comes later": (([-1, 2, 0], [1, 1, 1]), r"parents\[1\] is 2; expected an earlier node"),
    "a node above itself": (([-1, 1], [1, 1]), r"parents\[1\] is 1; .* never in a circle"),
    "a circle": (([1, 2, 0], [1, 1, 1]), r"parents\[0\] is 1; .* never in a circle"),
    "no such node": (([-1, -2], [1, 1]), r"parents\[1\] is -2; expected an earlier node, or -1 for a root"),
    "a torn subtree": (([-1, 0, -1, 0], [1, 1, 1, 1]), r"parents\[3\] is 0, but another subtree lies between the two"),
    "of an entry": (([[-1, 0], [-1, 3]], [[1, 1], [1, 1]]), r"parents\[1, 1\] is 3"),
    "a length below zero": (([-1, 0], [2, -1]), "lengths holds -1"),
    "too many tokens": (([-1, 0], [2, 3], 4), "lengths sum to 5; expected at most tokens = 4"),
    "other shapes": (([-1, 0], [2]), r"parents is \[2\] on cpu, lengths \[1\] on cpu"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_trees_are_refused_in_a_sentence(case):
    given, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        of(*given)


def test_tensors_that_are_none_are_refused():
    with pytest.raises(TypeError, match=r"parents is list \[-1\]; expected an integer tensor"):
        masks.from_tree([-1], torch.tensor([1]))
    with pytest.raises(TypeError, match=r"lengths holds torch.float32 values; expected int32 or int64"):
        masks.from_tree(torch.tensor([-1]), torch.tensor([1.0]))


def test_other_trees_of_as_many_doublings_do_not_compile_again():
    torch._dynamo.reset()
    counter = CompileCounter()

    @torch.compile(fullgraph=True, backend=counter, dynamic=True)
    def built(parents, lengths, like):
        return masks.from_tree(parents, lengths, like.shape[0]).startend_row_indices

    draw = np.random.default_rng(1)
    for nodes in (9, 12, 16, 10):
        parents, lengths = torch.tensor(random_forest(draw, nodes)), torch.tensor(draw.integers(1, 9, nodes))
        like = torch.empty(int(lengths.sum()) + 3)
        expected = masks.from_tree(parents, lengths, len(like)).startend_row_indices
        assert torch.equal(built(parents, lengths, like), expected)
    assert counter.frame_count == 1


@pytest.mark.parametrize("parents", [[2, 0, 1], [5, -1, 0], [-7, 2, 9]], ids=str)
def test_values_nobody_looks_at_stay_inside_the_tensor(parents):
    """As on a device, where a circle is not found: some mask, and no access outside."""
    torch._dynamo.reset()
    built = torch.compile(masks.from_tree, fullgraph=True, backend="eager")
    rows = built(torch.tensor(parents), torch.tensor([4, 4, 4]), 12).startend_row_indices
    assert rows.shape == (1, 1, 12, 1) and rows.min() >= 0 and rows.max() <= 12


def test_no_value_is_looked_at_off_the_host():
    """A fake tensor has none: whatever needs one raises."""
    for mode in (FakeTensorMode(), torch.device("meta")):
        with mode:
            parents, lengths = torch.empty(5, dtype=torch.int64), torch.empty(5, dtype=torch.int64)
            assert masks.from_tree(parents, lengths, 12).startend_row_indices.shape == (1, 1, 12, 1)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device to wait for")
def test_a_device_is_not_waited_for():
    parents, lengths = torch.tensor([-1, 0, 1, 0, -1]), torch.tensor([5, 2, 3, 4, 6])
    given = parents.cuda(), lengths.cuda()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        rows = masks.from_tree(*given, 22)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert rows.to_mask() == masks.from_tree(parents, lengths, 22).to_mask()
