# SPDX-License-Identifier: Apache-2.0
"""Linear layers while a chunk runs: PEFT's LoRA in one step, and products that only gradients are wanted of."""

import contextlib

import pytest

torch = pytest.importorskip("torch", reason="flashmask.training is for torch")
peft = pytest.importorskip("peft", reason="its LoRA is what is tested")

from torch import nn  # noqa: E402

from flashmask.training._linear import joined, skipped  # noqa: E402


def adapted(base=None, **options):
    """A layer of PEFT with both factors other than zero."""
    torch.manual_seed(0)
    model = nn.Sequential(base or nn.Linear(6, 5))
    made = peft.get_peft_model(model, peft.LoraConfig(r=2, lora_alpha=3, target_modules=["0"], **options))
    layer = made.base_model.model[0]
    for each in layer.lora_B.values():
        nn.init.normal_(each.weight)
    return made, layer


def gradients(layer, context):
    torch.manual_seed(1)
    given = torch.randn(3, 4, 6, requires_grad=True)
    with context([layer]):
        out = layer(given)
    learned = [each for each in layer.parameters() if each.requires_grad]
    grads = torch.autograd.grad(out, [given, *learned], torch.randn(3, 4, 5), allow_unused=True)
    return out.detach(), grads


def as_it_is(_):
    return contextlib.nullcontext()


@pytest.mark.parametrize("learns", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_a_joined_layer_is_peft_s(bias, learns):
    _, layer = adapted(nn.Linear(6, 5, bias=bias))
    layer.base_layer.requires_grad_(learns)
    expected, found = gradients(layer, as_it_is), gradients(layer, joined)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)
    assert type(layer) is peft.tuners.lora.Linear


@pytest.mark.parametrize("nested", [True, False])
def test_a_skipped_layer_has_its_gradients_alone(nested):
    _, layer = adapted()

    @contextlib.contextmanager
    def context(layers):
        with joined(layers) if nested else as_it_is(layers), skipped(layers):
            yield

    expected, found = gradients(layer, as_it_is), gradients(layer, context)
    torch.testing.assert_close(found[1], expected[1], atol=1e-6, rtol=1e-5)
    assert not found[0].any()
    plain = nn.Linear(6, 5)
    expected, found = gradients(plain, as_it_is), gradients(plain, skipped)
    torch.testing.assert_close(found[1], expected[1], atol=1e-6, rtol=1e-5)
    assert not found[0].any() and type(plain) is nn.Linear


def merged(made, layer):
    layer.merge()


def disabled(made, layer):
    made.base_model.disable_adapter_layers()


def two_adapters(made, layer):
    made.add_adapter("other", peft.LoraConfig(r=1, target_modules=["0"]))
    nn.init.normal_(layer.lora_B["other"].weight)
    made.base_model.set_adapter(["default", "other"])


@pytest.mark.parametrize(
    ("options", "change"),
    [
        ({}, merged),
        ({}, disabled),
        ({}, two_adapters),
        ({"use_dora": True}, None),
        ({"lora_bias": True}, None),
        ({"lora_dropout": 0.0}, lambda _, layer: layer.lora_A.double() and layer.lora_B.double()),
    ],
)
@pytest.mark.parametrize("context", [joined, skipped])
def test_what_is_not_plain_is_left_to_peft(options, change, context):
    made, layer = adapted(**options)
    if change:
        change(made, layer)
    torch.testing.assert_close(gradients(layer, context), gradients(layer, as_it_is))


def test_dropout_is_left_to_peft():
    _, layer = adapted(lora_dropout=0.5)
    given = torch.randn(2, 6)
    torch.manual_seed(2)
    expected = layer(given)
    torch.manual_seed(2)
    with joined([layer]):
        assert torch.equal(layer(given), expected)
    layer.eval()
    with skipped([layer]):
        assert not layer(given).any()


def test_autocast_is_left_alone():
    _, layer = adapted()
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(gradients(layer, joined), gradients(layer, as_it_is))
        assert gradients(nn.Linear(6, 5), skipped)[0].any()


def test_second_derivatives_are_refused():
    _, layer = adapted()
    given = torch.randn(3, 4, 6, requires_grad=True)
    with joined([layer]):
        out = layer(given)
    with pytest.raises(NotImplementedError, match="a model in chunks of tokens is differentiable once; run it"):
        torch.autograd.grad(out.sum(), given, create_graph=True)


def test_classes_come_back_after_an_error():
    _, layer = adapted()
    with pytest.raises(KeyboardInterrupt), joined([layer]), skipped([layer]):
        raise KeyboardInterrupt
    assert type(layer) is peft.tuners.lora.Linear
