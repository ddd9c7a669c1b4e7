# SPDX-License-Identifier: Apache-2.0
"""flashmask.data.pack_rollouts against a dictionary of prefixes."""

import time

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="flashmask.data returns torch tensors")

import flashmask  # noqa: E402
from flashmask import masks  # noqa: E402
from flashmask.data import pack_rollouts, rollout_log_probs  # noqa: E402


def draw_rollouts(seed, count=None):
    """Few words, so that prefixes are common, among them whole rollouts."""
    draw = np.random.default_rng(seed)
    lengths = draw.integers(1, 9, count or draw.integers(1, 12))
    return [draw.integers(0, 3, length).tolist() for length in lengths]


def places_of_prefixes(rollouts, packed):
    """{prefix: where its last token lies}; a prefix must lie in one place, and say its token and position there."""
    places = {}
    ids, positions = packed["input_ids"][0].tolist(), packed["position_ids"][0].tolist()
    for rollout, rows in zip(rollouts, packed["rows"].tolist(), strict=True):
        for end in range(1, len(rollout) + 1):
            place = places.setdefault(tuple(rollout[:end]), rows[end - 1])
            assert (rows[end - 1], ids[place], positions[place]) == (place, rollout[end - 1], end - 1)
        assert set(rows[len(rollout) :]) <= {-1}
    assert len(set(places.values())) == len(places)
    return places


@pytest.mark.parametrize("seed", range(40))
def test_every_prefix_is_there_once_and_sees_its_own(seed):
    rollouts = draw_rollouts(seed)
    packed = pack_rollouts(rollouts, pad_to_multiple_of=1 + seed % 5, pad_token_id=9)
    places = places_of_prefixes(rollouts, packed)
    tokens = packed["input_ids"].shape[1]
    assert len(places) <= tokens < len(places) + 1 + seed % 5 and tokens % (1 + seed % 5) == 0
    assert packed["input_ids"][0, len(places) :].eq(9).all()
    seen = np.zeros((tokens, tokens), bool)
    for prefix, place in places.items():
        seen[place, [places[prefix[:end]] for end in range(1, len(prefix) + 1)]] = True
    np.testing.assert_array_equal(packed.mask.to_dense()[0, 0], seen)


@pytest.mark.parametrize("seed", range(10))
def test_a_token_knows_its_rollouts(seed):
    rollouts = draw_rollouts(seed)
    packed = pack_rollouts(rollouts, pad_to_multiple_of=8)
    order, holders = packed["order"].tolist(), packed["holders"][0].tolist()
    assert sorted(order) == list(range(len(rollouts)))
    places = places_of_prefixes(rollouts, packed)
    for prefix, place in places.items():
        first, end = holders[place]
        sharing = {number for number, each in enumerate(rollouts) if tuple(each[: len(prefix)]) == prefix}
        assert set(order[first:end]) == sharing and end - first == len(sharing)
    assert all(first == end for first, end in holders[len(places) :])


def test_rollouts_that_share_nothing_are_documents():
    packed = pack_rollouts([[1, 2, 3], [4, 5], [6]])
    assert packed["input_ids"].tolist() == [[1, 2, 3, 4, 5, 6]]
    assert packed["position_ids"].tolist() == [[0, 1, 2, 0, 1, 0]]
    assert packed.mask.to_mask() == masks.causal_document([3, 2, 1], 6)


def test_prompts_make_trees_in_the_order_in_which_they_come():
    packed = pack_rollouts([[7, 7, 5], [1, 2, 3], [7, 7, 4], [1, 2]])
    assert packed["input_ids"].tolist() == [[7, 7, 5, 4, 1, 2, 3]]
    assert packed["order"].tolist() == [0, 2, 1, 3]
    assert packed["rows"].tolist() == [[0, 1, 2], [4, 5, 6], [0, 1, 3], [4, 5, -1]]
    assert packed["holders"][0, :3].tolist() == [[0, 2], [0, 2], [0, 1]]


def paths_of_tokens(rollouts, packed, shared_until, unit):
    """{path: the row of its last token}; a path is what two rollouts must have in common to share a token."""
    limits = [until // unit * unit for until in shared_until]
    ids, positions = packed["input_ids"][0].tolist(), packed["position_ids"][0].tolist()
    places = {}
    for number, (rollout, rows) in enumerate(zip(rollouts, packed["rows"].tolist(), strict=True)):
        for depth, token in enumerate(rollout):
            block = rollout[: (depth // unit + 1) * unit]
            own = depth >= limits[number] or len(block) % unit != 0
            path = (depth, number) if own else (depth, tuple(block))
            assert places.setdefault(path, rows[depth]) == rows[depth]
            assert (ids[rows[depth]], positions[rows[depth]]) == (token, depth)
        assert set(rows[len(rollout) :]) <= {-1}
    assert len(set(places.values())) == len(places)
    return places


def draw_limits(seed, rollouts):
    draw = np.random.default_rng(100 + seed)
    return [int(draw.integers(0, len(each) + 1)) for each in rollouts]


@pytest.mark.parametrize("unit", [1, 2, 3])
@pytest.mark.parametrize("seed", range(20))
def test_tokens_are_shared_up_to_a_limit_in_whole_units(seed, unit):
    rollouts = draw_rollouts(seed)
    limits = draw_limits(seed, rollouts)
    packed = pack_rollouts(rollouts, shared_until=limits, unit=unit, pad_token_id=9, pad_to_multiple_of=4)
    places = paths_of_tokens(rollouts, packed, limits, unit)
    padding = sum(-len(each) % unit for each in rollouts)
    assert packed["input_ids"].shape[1] == -(-(len(places) + padding) // 4) * 4
    held = sorted(places.values())
    assert packed["input_ids"][0].eq(9).sum() == packed["input_ids"].shape[1] - len(held)
    seen = packed.mask.to_dense()[0, 0][np.ix_(held, held)]
    expected = np.zeros_like(seen)
    for rows in packed["rows"].tolist():
        path = [held.index(row) for row in rows if row >= 0]
        for depth, row in enumerate(path):
            expected[row, path[: depth + 1]] = True
    np.testing.assert_array_equal(seen, expected)


@pytest.mark.parametrize("seed", range(10))
def test_padding_of_a_unit_continues_a_rollout_to_which_it_does_not_belong(seed):
    rollouts = draw_rollouts(seed)
    packed = pack_rollouts(rollouts, shared_until=draw_limits(seed, rollouts), unit=4)
    held = sorted({row for row in packed["rows"].flatten().tolist() if row >= 0})
    padding = sorted(set(range(packed["input_ids"].shape[1])) - set(held))
    seen = packed.mask.to_dense()[0, 0]
    assert not seen[np.ix_(held, padding)].any()
    for row in padding:
        np.testing.assert_array_equal(np.flatnonzero(seen[row]), [*np.flatnonzero(seen[row - 1]), row])
    assert packed["holders"][0, padding].eq(0).all() and packed["labels"][0, padding].eq(-100).all()
    assert packed["position_ids"].max() < max(map(len, rollouts))


@pytest.mark.parametrize("unit", [1, 4])
@pytest.mark.parametrize("seed", range(10))
def test_labels_are_the_tokens_behind_what_may_be_shared(seed, unit):
    rollouts = draw_rollouts(seed)
    limits = draw_limits(seed, rollouts)
    packed = pack_rollouts(rollouts, shared_until=limits, unit=unit, pad_to_multiple_of=8)
    expected = torch.full_like(packed["labels"], -100)
    for rollout, limit, rows in zip(rollouts, limits, packed["rows"].tolist(), strict=True):
        for depth in range(limit + 1, len(rollout)):
            assert expected[0, rows[depth - 1]] == -100, "a row predicts one token at most"
            expected[0, rows[depth - 1]] = rollout[depth]
    assert torch.equal(packed["labels"], expected)
    assert "labels" not in pack_rollouts(rollouts)


def test_an_answer_begins_with_a_copy_of_the_last_token_of_its_prompt():
    packed = pack_rollouts([[5, 6, 7, 8, 9], [5, 6, 7, 8, 9], [5, 6, 7, 3]], shared_until=[2, 2, 2])
    assert packed["input_ids"].tolist() == [[5, 6, 7, 8, 9, 7, 8, 9, 7, 3]]
    assert packed["position_ids"].tolist() == [[0, 1, 2, 3, 4, 2, 3, 4, 2, 3]]
    assert packed["labels"].tolist() == [[-100, -100, 8, 9, -100, 8, 9, -100, 3, -100]]
    assert packed["rows"].tolist() == [[0, 1, 2, 3, 4], [0, 1, 5, 6, 7], [0, 1, 8, 9, -1]]
    assert packed["startend_row_indices"].flatten().tolist() == [10, 10, 5, 5, 5, 8, 8, 8, 10, 10]


def test_whole_units_give_every_rollout_the_bits_that_it_has_alone():
    """Two prompts that begin alike, whose shared parts end inside a unit, and one that shares nothing."""
    draw = np.random.default_rng(0)
    beginning, *rest, other = (draw.integers(0, 50, size).tolist() for size in (140, 150, 20, 1))
    prompts = [beginning + each for each in rest for _ in range(3)] + [other]
    sizes = (9, 130, 1, 128, 40, 3, 30)
    rollouts = [prompt + draw.integers(0, 50, size).tolist() for prompt, size in zip(prompts, sizes, strict=True)]
    limits = [len(prompt) - 1 for prompt in prompts]
    torch.manual_seed(0)
    table = torch.randn(50, 48)

    def attended(rollouts, **options):
        packed = pack_rollouts(rollouts, **options)
        hidden = table[packed["input_ids"]] + packed["position_ids"][..., None].sin()
        q, k, v = hidden[:, :, None].chunk(3, dim=-1)
        o = flashmask.attention(q, k, v, packed.mask, invariant=True)[0, :, 0]
        return [o[rows[rows >= 0]] for rows in packed["rows"]]

    alone = [attended([each])[0] for each in rollouts]
    assert all(map(torch.equal, attended(rollouts, shared_until=limits, unit=128), alone))
    assert not all(map(torch.equal, attended(rollouts, shared_until=limits), alone))


def test_another_token_leaves_the_others_where_they_are():
    one, other = ([[5, 6, 7, 8], [5, 6, 9], [1, 2], [5, changed, 3]] for changed in (4, 60))
    a, b = pack_rollouts(one), pack_rollouts(other)
    assert torch.equal(a["rows"], b["rows"])
    assert torch.equal(a["startend_row_indices"], b["startend_row_indices"])


def test_lists_arrays_and_tensors_are_the_same():
    rollouts = draw_rollouts(3)
    expected = pack_rollouts(rollouts)
    for kind in (np.array, torch.tensor, lambda tokens: np.array(tokens, np.uint32)):
        packed = pack_rollouts(map(kind, rollouts))
        assert packed.keys() == expected.keys()
        assert all(torch.equal(packed[name], each) for name, each in expected.items())


def test_what_is_no_rollout_is_refused():
    with pytest.raises(TypeError, match="rollouts is NoneType None; expected lists of token ids"):
        pack_rollouts(None)
    with pytest.raises(ValueError, match="rollouts is empty; expected at least one"):
        pack_rollouts([])
    with pytest.raises(ValueError, match=r"rollouts\[1\] has no tokens; expected at least 1"):
        pack_rollouts([[1], []])
    with pytest.raises(TypeError, match=r"rollouts\[0\] is float64 \[2\]; expected whole numbers"):
        pack_rollouts([[1.0, 2.0]])
    with pytest.raises(ValueError, match="pad_to_multiple_of is 0"):
        pack_rollouts([[1]], pad_to_multiple_of=0)
    with pytest.raises(ValueError, match="unit is 0; expected at least 1"):
        pack_rollouts([[1]], unit=0)
    with pytest.raises(ValueError, match="shared_until has 1 integers for 2 rollouts; expected one for each"):
        pack_rollouts([[1], [2]], shared_until=[0])
    with pytest.raises(ValueError, match=r"shared_until\[1\] is -1; a length is at least 0"):
        pack_rollouts([[1], [2]], shared_until=[0, -1])


def attend(table, input_ids, position_ids, mask):
    """A model of one layer: logits [1, T, vocabulary]."""
    hidden = table[input_ids] + position_ids[..., None].sin()
    q, k, v = (hidden[..., part * 16 : (part + 1) * 16][:, :, None] for part in range(3))
    return flashmask.attention(q, k, v, mask)[:, :, 0] @ table[:, :16].T


def test_log_probabilities_and_gradients_are_those_of_rollouts_alone():
    rollouts = draw_rollouts(7, count=9)
    packed = pack_rollouts(rollouts, pad_to_multiple_of=4)
    torch.manual_seed(0)
    table = torch.randn(3, 48, requires_grad=True)
    weight = torch.randn(9, packed["rows"].shape[1])
    found = rollout_log_probs(attend(table, packed["input_ids"], packed["position_ids"], packed.mask), packed)
    assert found.dtype == torch.float32 and found.shape == packed["rows"].shape
    expected = torch.zeros_like(found)
    for number, rollout in enumerate(rollouts):
        ids = torch.tensor([rollout])
        alone = attend(table, ids, torch.arange(len(rollout))[None], masks.causal(len(rollout), len(rollout)))
        scores = alone[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
        expected[number, 1 : len(rollout)] = scores
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    gradients = [torch.autograd.grad((each * weight).sum(), table)[0] for each in (found, expected)]
    torch.testing.assert_close(*gradients, atol=1e-5, rtol=1e-5)


def test_other_logits_and_batches_are_refused():
    packed = pack_rollouts([[1, 2], [1, 3]])
    with pytest.raises(ValueError, match=r"logits has shape \[1, 2, 5\]; expected \[1, 3, 'vocabulary'\]"):
        rollout_log_probs(torch.zeros(1, 2, 5), packed)
    with pytest.raises(ValueError, match="packed has no rows; expected a batch that pack_rollouts"):
        rollout_log_probs(torch.zeros(1, 3, 5), {"input_ids": packed["input_ids"]})
    with pytest.raises(ValueError, match="logits has a vocabulary of 3, and packed holds token 3; expected logits of"):
        rollout_log_probs(torch.zeros(1, 3, 3), packed)
    assert rollout_log_probs(torch.zeros(1, 3, 4), packed).shape == (2, 2)


def test_64_rollouts_of_4096_tokens_take_milliseconds():
    """20 ms are promised on a quiet core; what a loop over tokens would take is many times that."""
    draw = np.random.default_rng(0)
    prompt = draw.integers(0, 100_000, 2048)
    rollouts = [np.concatenate([prompt, draw.integers(0, 100_000, 2048)]) for _ in range(64)]
    took = []
    for _ in range(5):
        begun = time.process_time()
        pack_rollouts(rollouts)
        took.append(time.process_time() - begun)
    assert min(took) < 0.06
