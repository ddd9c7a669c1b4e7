"""long_context() on models of Transformers: losses and gradients of the model alone, and what is refused."""

import copy

import pytest

torch = pytest.importorskip("torch", reason="flashmask.training is for torch")
transformers = pytest.importorskip("transformers", reason="long_context() takes its models")

from training_models import KINDS, assert_same, batch, in_double, lora, loss_and_gradients, tiny  # noqa: E402

from flashmask.training import long_context  # noqa: E402

WAYS = [
    {"chunk": 33},
    {"chunk": 1000},
    {"chunk": 33, "keep": 2},
    {"chunk": 50, "keep": 3, "offload": 1},
    {"chunk": 33, "offload": True},
    {"chunk": 33, "hold_attention": True},
    {"chunk": 33, "hold_attention": True, "keep": 2, "offload": True},
]


def check(model, given, **options):
    exact = loss_and_gradients(in_double(model), given)
    plain = loss_and_gradients(copy.deepcopy(model), given)
    with long_context(model, **options):
        found = loss_and_gradients(model, given)
    assert_same(found, plain, exact)


@pytest.mark.parametrize("options", WAYS, ids=str)
def test_llama_learns_the_same(options):
    check(tiny(), batch(), **options)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_learns_the_same(kind):
    check(tiny(kind), batch(), chunk=33, keep=2, offload=True)


@pytest.mark.parametrize("kind", KINDS)
def test_adapters_learn_the_same(kind):
    pytest.importorskip("peft", reason="its LoRA is what is tested")
    check(lora(tiny(kind)), batch(), chunk=33, keep=2)
