# SPDX-License-Identifier: Apache-2.0
"""What a step is said to take, and the sentence where that is not there."""

import pytest

torch = pytest.importorskip("torch", reason="flashmask.training is for torch")
pytest.importorskip("transformers", reason="long_context() takes its models")

from training_models import batch, tiny  # noqa: E402

from flashmask.training import StepMemory, _memory, long_context  # noqa: E402

UNIT = 2 * 101 * 64 * 4  # an input of batch()
GIB = 2**30


@pytest.mark.parametrize(
    ("options", "on_host"), [({}, 0), ({"offload": True}, 3), ({"offload": 2}, 2), ({"keep": 2, "offload": True}, 1)]
)
def test_host_memory_is_what_is_taken(options, on_host):
    model = tiny()
    with long_context(model, **options) as held:
        announced = held.memory(101, batch=2)
        assert announced.host == on_host * UNIT
        model(**batch()).loss.backward()
        assert held.host_memory.bytes == announced.host
        assert held.memory(101, batch=2).host == 0  # it is there already


def test_less_is_announced_where_less_is_kept():
    model, cards = tiny(num_hidden_layers=12), []
    for options in ({"hold_attention": True}, {}, {"offload": 4}, {"keep": 3}, {"keep": 3, "offload": True}):
        with long_context(model, chunk=1024, **options) as held:
            cards.append(held.memory(100_000).card)
    assert cards == sorted(cards, reverse=True)
    with long_context(model, chunk=1024) as held:
        one, two = held.memory(100_000).card, held.memory(200_000).card
        assert 1.8 * one < two < 2 * one


def test_gradients_are_announced_until_they_are_there():
    model = tiny()
    with long_context(model) as held:
        before = held.memory(101, batch=2).card
        model(**batch()).loss.backward()
        assert before - held.memory(101, batch=2).card == sum(4 * each.numel() for each in model.parameters())


@pytest.mark.parametrize(
    ("needed", "says"),
    [
        (
            StepMemory(GIB, 5 * GIB),
            r"a step takes 5\.0 GiB on the host, which has 4\.0 GiB; a smaller offload, keep=2 or fewer",
        ),
        (StepMemory(3 * GIB, 0), r"a step takes 3\.0 GiB on the card, which has 2\.0 GiB; offload=True"),
    ],
)
def test_says_what_is_missing_where(monkeypatch, needed, says):
    monkeypatch.setattr(_memory, "free_on_card", lambda _: 2 * GIB)
    monkeypatch.setattr(_memory, "free_on_host", lambda: 4 * GIB)
    with pytest.raises(MemoryError, match=says):
        needed.require(torch.device("cuda"))
    StepMemory(2 * GIB, 4 * GIB).require(torch.device("cuda"))


def test_says_before_a_step_that_it_does_not_fit():
    with long_context(tiny()) as held:
        assert held.require_memory(101, batch=2) == held.memory(101, batch=2)
        with pytest.raises(
            MemoryError, match=r"a step takes .* GiB on the host, which has .* GiB; keep=2, a smaller chunk"
        ):
            held.require_memory(1 << 40)


def test_a_limit_of_the_control_group_counts(monkeypatch, tmp_path):
    monkeypatch.setattr(_memory, "_CGROUP", tmp_path)
    of_machine = _memory.free_on_host()
    (tmp_path / "memory.max").write_text("max\n")
    assert _memory.free_on_host() == pytest.approx(of_machine, rel=0.2)
    (tmp_path / "memory.max").write_text(f"{3 << 20}\n")
    (tmp_path / "memory.current").write_text(f"{1 << 20}\n")
    assert _memory.free_on_host() == 2 << 20


@pytest.mark.parametrize(("arguments", "says"), [((0,), "tokens is 0"), ((5, 0), "batch is 0")])
def test_says_what_tokens_are(arguments, says):
    with long_context(tiny()) as held, pytest.raises(ValueError, match=says):
        held.memory(arguments[0], **({"batch": arguments[1]} if len(arguments) > 1 else {}))
