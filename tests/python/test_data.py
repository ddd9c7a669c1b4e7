# SPDX-License-Identifier: Apache-2.0
"""flashmask.data: which examples share a sequence, and what is said of their tokens."""

import itertools
import pickle
from functools import partial

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="flashmask.data returns torch tensors")

from flashmask.data import answer_log_probs, fill, pack  # noqa: E402


def tokens(first: int, count: int) -> list[int]:
    return list(range(first, first + count))


SFT = [{"prompt_ids": tokens(10, 3), "completion_ids": tokens(20, 2)}, {"input_ids": tokens(30, 4)}]
DPO = [
    {"prompt_ids": [1, 2], "chosen_ids": [3, 4, 5], "rejected_ids": [6, 7]},
    {"prompt_ids": [11, 12, 13], "chosen_ids": [14], "rejected_ids": [15, 16]},
]


def visible(packed, sequence: int = 0) -> np.ndarray:
    """Row i sees column j when j <= i < LTS_j: written out, apart from the library."""
    ends = packed["startend_row_indices"][sequence, 0, :, 0].numpy()
    rows = np.arange(len(ends))[:, None]
    return (np.arange(len(ends)) <= rows) & (rows < ends)


def brute_best_fit(lengths, length):
    """The definition, without an index of the room."""
    free, sequences = [], []
    for example in sorted(range(len(lengths)), key=lambda e: (-lengths[e], e)):
        fits = [(free[s], s) for s in range(len(free)) if free[s] >= lengths[example]]
        if not fits:
            free.append(length)
            sequences.append([])
            fits = [(length, len(free) - 1)]
        sequence = min(fits)[1]
        sequences[sequence].append(example)
        free[sequence] -= lengths[example]
    return sequences


def test_in_order_closes_a_sequence_at_the_first_example_that_does_not_fit():
    assert fill([4, 3, 5, 2, 1], 8, "order") == [[0, 1], [2, 3, 4]]
    assert fill([8, 8], 8, "order") == [[0], [1]]


def test_best_fit_takes_the_longest_first_into_the_fullest_that_holds_it():
    assert fill([4, 3, 5, 2, 1], 8, "best-fit") == [[2, 1], [0, 3, 4]]
    assert fill([3, 3, 3, 3], 6, "best-fit") == [[0, 1], [2, 3]]


def test_packs_like_the_command():
    # The cases of tests/cli/packing_test.cpp; the 4 that found no room there opens a sequence here.
    assert fill([4, 3, 5, 1, 2], 8, "order") == [[0, 1], [2, 3, 4]]
    assert fill([3, 5, 6, 2, 4], 8, "best-fit") == [[2, 3], [1, 0], [4]]


@pytest.mark.parametrize("seed", range(20))
def test_best_fit_is_the_definition(seed):
    draw = np.random.default_rng(seed)
    lengths = draw.integers(0, 33, draw.integers(1, 80)).tolist()
    packed = fill(lengths, 32)
    assert packed == brute_best_fit(lengths, 32)
    assert sorted(itertools.chain(*packed)) == list(range(len(lengths)))


def test_documents_keep_their_tokens_positions_and_mask():
    packed = pack(SFT, length=11, packing="order", pad_token_id=99)
    assert packed["input_ids"].tolist() == [[10, 11, 12, 20, 21, 30, 31, 32, 33, 99, 99]]
    assert packed["position_ids"].tolist() == [[0, 1, 2, 3, 4, 0, 1, 2, 3, 0, 1]]
    assert packed["startend_row_indices"].flatten().tolist() == [5] * 5 + [9] * 4 + [0, 0]
    assert packed["startend_row_indices"].dtype is torch.int32
    seen = visible(packed)
    assert seen[4, :5].all() and not seen[5:, :5].any() and not seen[:, 9:].any()
    assert packed.mask.to_dense().reshape(11, 11).tolist() == seen.tolist()


def test_labels_leave_out_prompts_padding_and_first_tokens():
    packed = pack(SFT, length=11, packing="order")
    assert packed["labels"].tolist() == [[-100, -100, -100, 20, 21, -100, 31, 32, 33, -100, -100]]
    given = pack([{"input_ids": [5, 6, 7], "labels": [5, -100, 7]}], length=4)
    assert given["labels"].tolist() == [[-100, -100, 7, -100]]


def test_answers_share_a_question_and_do_not_see_each_other():
    packed = pack(DPO[:1], length=8)
    assert packed["input_ids"].tolist() == [[1, 2, 3, 4, 5, 6, 7, 0]]
    assert packed["position_ids"].tolist() == [[0, 1, 2, 3, 4, 2, 3, 0]]
    seen = visible(packed)
    assert seen[5].tolist() == [True, True, False, False, False, True, False, False]
    assert seen[4].tolist() == [True] * 5 + [False] * 3
    assert packed["answers"].tolist() == [[0, 2, 5], [0, 5, 7]]
    assert packed["answer_ids"].tolist() == [[-1, -1, 0, 0, 0, 1, 1, -1]]
    assert packed["predictors"][0, 2:7].tolist() == [1, 2, 3, 1, 5]


def test_a_shifted_loss_never_asks_one_answer_for_the_next():
    assert pack(DPO[:1], length=8)["labels"].tolist() == [[-100, -100, 3, 4, 5, -100, 7, -100]]


def test_answers_are_numbered_in_the_order_of_the_examples_whatever_the_packing():
    short = {"prompt_ids": [1], "chosen_ids": [2], "rejected_ids": [3]}
    packed = pack([short, *DPO], length=7, packing="best-fit")
    assert packed.examples == [[1], [2], [0]]
    assert packed["answers"].tolist() == [[2, 1, 2], [2, 2, 3], [0, 2, 5], [0, 5, 7], [1, 3, 4], [1, 4, 6]]
    for answer, (sequence, first, end) in enumerate(packed["answers"].tolist()):
        assert (packed["answer_ids"][sequence] == answer).nonzero().flatten().tolist() == list(range(first, end))


def test_reward_model_examples_take_any_number_of_answers():
    packed = pack([{"prompt_ids": [1, 2], "answer_ids": [[3], [4, 5], [6]]}], length=6)
    assert packed["answers"].tolist() == [[0, 2, 3], [0, 3, 5], [0, 5, 6]]
    assert packed["position_ids"].tolist() == [[0, 1, 2, 2, 3, 2]]


def test_answer_log_probs_are_those_of_question_and_answer_alone():
    torch.manual_seed(0)
    packed = pack([DPO[1], DPO[0]], length=16, packing="order")
    logits = torch.randn(1, 16, 20, requires_grad=True)
    log_probs = logits.double().log_softmax(-1)[0]
    ids = packed["input_ids"][0].tolist()
    rows = {0: [2], 1: [2, 4], 2: [7, 8, 9], 3: [7, 11]}  # whose logits are about the answer's tokens
    expected = [
        sum(log_probs[row, ids[first + k]] for k, row in enumerate(rows[answer]))
        for answer, (_, first, _) in enumerate(packed["answers"].tolist())
    ]
    found = answer_log_probs(logits, packed)
    assert torch.allclose(found.double(), torch.stack(expected), atol=1e-5)
    assert torch.autograd.grad(found.sum(), logits)[0].abs().sum(-1)[0].nonzero().flatten().tolist() == [
        2,
        4,
        7,
        8,
        9,
        11,
    ]


def test_too_long_examples_are_an_error_or_are_counted():
    examples = [{"input_ids": tokens(0, 9)}, {"input_ids": tokens(0, 3)}]
    with pytest.raises(ValueError, match=r"examples\[0\] has 9 tokens; a sequence has length=8"):
        pack(examples, length=8)
    packed = pack(examples, length=8, too_long="drop")
    assert (packed.dropped, packed.examples, packed["input_ids"].shape) == (1, [[1]], (1, 8))
    with pytest.raises(ValueError, match="all 1 examples are longer than length=8"):
        pack(examples[:1], length=8, too_long="drop")


def test_dropped_examples_leave_no_hole_in_the_answers():
    long = {"prompt_ids": tokens(0, 9), "chosen_ids": [1], "rejected_ids": [2]}
    packed = pack([long, *DPO], length=8, too_long="drop", packing="order")
    assert packed.examples == [[1], [2]]
    assert packed["answers"].tolist() == [[0, 2, 5], [0, 5, 7], [1, 3, 4], [1, 4, 6]]


def test_tensors_arrays_and_lists_are_the_same_tokens():
    lists = pack(SFT, length=16)
    for convert in (np.array, torch.tensor, tuple):
        again = pack([{key: convert(value) for key, value in each.items()} for each in SFT], length=16)
        assert all(torch.equal(lists[name], again[name]) for name in lists)


def test_collates_for_a_data_loader():
    loader = torch.utils.data.DataLoader(SFT * 4, batch_size=4, collate_fn=partial(pack, length=16), num_workers=0)
    shapes = [batch["input_ids"].shape for batch in loader]
    assert shapes == [(2, 16), (2, 16)]


def test_a_batch_survives_the_way_from_a_worker_process():
    packed = pickle.loads(pickle.dumps(pack(SFT, length=16)))
    assert packed.examples == [[0, 1]] and packed.dropped == 0
    assert packed["labels"].shape == (1, 16)


@pytest.mark.parametrize(
    ("example", "message"),
    [
        ({"text": "hello"}, r"examples\[0\] has \['text'\]; expected input_ids or"),
        ({"prompt_ids": [1]}, "prompt_ids/completion_ids"),
        ({"input_ids": []}, r"examples\[0\]\['input_ids'\] has no tokens"),
        ({"input_ids": [1], "labels": [1, 2]}, "1 input_ids and 2 labels"),
        ({"prompt_ids": [], "chosen_ids": [1], "rejected_ids": [2]}, "prompt_ids'] has no tokens"),
        ({"prompt_ids": [1], "chosen_ids": [], "rejected_ids": [2]}, r"\['chosen_ids'\] has no tokens"),
        ({"prompt_ids": [1], "answer_ids": []}, "at least one list"),
    ],
)
def test_refuses_examples_by_number_and_key(example, message):
    with pytest.raises(ValueError, match=message):
        pack([example], length=8)


@pytest.mark.parametrize("given", [[1.5, 2.0], [[1, 2]], ["a"]])
def test_refuses_tokens_that_are_no_numbers(given):
    with pytest.raises(TypeError, match=r"examples\[0\]\['input_ids'\] is .*; expected whole numbers \[tokens\]"):
        pack([{"input_ids": given}], length=8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 0}, "length is 0"),
        ({"length": 8, "packing": "first"}, "packing is 'first'; expected one of 'order', 'best-fit'"),
        ({"length": 8, "too_long": "cut"}, "too_long is 'cut'; expected one of 'error', 'drop'"),
    ],
)
def test_refuses_options_by_name(options, message):
    with pytest.raises(ValueError, match=message):
        pack(SFT, **options)
    with pytest.raises(TypeError, match="examples is NoneType None; expected mappings from names to token ids"):
        pack(None, length=8)
    with pytest.raises(ValueError, match="examples is empty"):
        pack([], length=8)


def test_log_probs_need_answers():
    packed = pack(SFT, length=16)
    with pytest.raises(ValueError, match="packed has no answers"):
        answer_log_probs(torch.zeros(1, 16, 9), packed)
    with pytest.raises(ValueError, match=r"logits has shape \[1, 16\]"):
        answer_log_probs(torch.zeros(1, 16), pack(DPO, length=16))
