# SPDX-License-Identifier: Apache-2.0
"""chunked_layer() on a layer of one's own, and what of it is kept: results and gradients of the layer run at once."""

import gc

import pytest

torch = pytest.importorskip("torch", reason="flashmask.training is for torch")

from torch import nn  # noqa: E402
from torch.multiprocessing.reductions import StorageWeakRef  # noqa: E402

import flashmask  # noqa: E402
from flashmask.training import LayerParts, chunked_layer  # noqa: E402
from flashmask.training._rows import in_chunks  # noqa: E402
from flashmask.training._sums import GradientSums  # noqa: E402

TOKENS, WIDTH, HEADS = 45, 16, 2


class Layer(nn.Module):
    """A decoder layer that is none of Transformers'."""

    def __init__(self, dropout=0.0):
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.heads = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.inner, self.outer = nn.Linear(WIDTH, 40), nn.Linear(40, WIDTH)
        self.dropout = nn.Dropout(dropout)
        self.unused = nn.Parameter(torch.zeros(3))
        self.mask = flashmask.masks.causal_document([TOKENS - 14, 14])
        self.calls = 0

    def before(self, hidden, place):
        return self.heads(self.norm(hidden)).unflatten(-1, (3 * HEADS, -1)).split(HEADS, dim=-2)

    def attend(self, q, k, v):
        self.calls += 1
        return flashmask.attention(q, k, v, self.mask)

    def after(self, hidden, o):
        return hidden + self.outer(torch.tanh(self.inner(self.dropout(hidden + o.flatten(-2)))))

    def forward(self, hidden):
        heads = (each.contiguous() for each in self.before(hidden, slice(None)))
        return self.after(hidden, self.attend(*heads))

    def parts(self, **more):
        parameters = [each for each in self.parameters() if each.requires_grad]
        return LayerParts(self.before, self.attend, self.after, parameters, **more)


def hidden(sequences=2):
    return torch.randn(sequences, TOKENS, WIDTH, generator=torch.Generator().manual_seed(1)).requires_grad_()


def gradients(layer, out, given):
    learned = [each for each in layer.parameters() if each.requires_grad]
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(2))
    return torch.autograd.grad(out, [given, *learned], weights, allow_unused=True)


@pytest.mark.parametrize("skips", [True, False])
@pytest.mark.parametrize("hold", [True, False])
@pytest.mark.parametrize("chunk", [1, 7, TOKENS, 1000])
def test_is_the_layer_run_at_once(chunk, hold, skips):
    layer, given = Layer(), hidden()
    expected = layer(given)
    more = {"linear_before": [layer.heads], "linear_after": [layer.outer]} if skips else {}
    found = chunked_layer(layer.parts(**more), given, chunk=chunk, hold_attention=hold)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6)
    for ours, theirs in zip(gradients(layer, found, given), gradients(layer, expected, given), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("hold", "calls"), [(True, 1), (False, 2)])
def test_held_attention_is_computed_once(hold, calls):
    layer, given = Layer(), hidden()
    chunked_layer(layer.parts(), given, chunk=20, hold_attention=hold).sum().backward()
    assert layer.calls == calls


def test_frozen_weights_and_inputs_have_no_gradient():
    layer, given = Layer().requires_grad_(False), hidden().detach()
    layer.inner.weight.requires_grad_()
    chunked_layer(layer.parts(), given, chunk=20).square().sum().backward()
    expected = torch.autograd.grad(layer(given).square().sum(), layer.inner.weight)[0]
    torch.testing.assert_close(layer.inner.weight.grad, expected, atol=1e-4, rtol=1e-5)
    assert layer.outer.weight.grad is None and given.grad is None


@pytest.mark.parametrize("hold", [True, False])
def test_dropout_drops_the_same_again(hold):
    layer, given = Layer(dropout=0.5), hidden()
    parts = layer.parts(random=True)
    torch.manual_seed(3)
    out = chunked_layer(parts, given, chunk=20, hold_attention=hold)
    expected_state = torch.get_rng_state()
    found = gradients(layer, out, given)
    assert torch.equal(torch.get_rng_state(), expected_state)
    torch.manual_seed(3)
    places = [slice(0, 20), slice(20, 40), slice(40, TOKENS)]
    o = layer.attend(*(each.contiguous() for each in layer.before(given, None)))
    plain = torch.cat([layer.after(given[:, place], o[:, place]) for place in places], dim=1)
    torch.testing.assert_close(out, plain, atol=1e-6, rtol=1e-6)
    for ours, theirs in zip(found, gradients(layer, plain, given), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def test_under_autocast_it_casts_as_the_layer_does():
    layer, given = Layer(), hidden()
    with torch.autocast("cpu", torch.bfloat16):
        expected, found = layer(given), chunked_layer(layer.parts(), given, chunk=20)
    assert found.dtype == expected.dtype
    torch.testing.assert_close(found, expected, atol=1e-2, rtol=1e-2)
    pairs = zip(gradients(layer, found, given), gradients(layer, expected, given), strict=True)
    for number, (ours, theirs) in enumerate(pairs):
        if theirs is not None:
            bound = 0.02 if number else 1e-4  # gradients of weights are rounded to bfloat16 once a chunk
            assert ours.dtype == theirs.dtype and (ours - theirs).norm() <= bound * theirs.norm()


def test_keeps_its_input_and_nothing_else():
    layer, given = Layer(), hidden()
    memory = []

    def attend(*heads):
        memory.extend(StorageWeakRef(each.untyped_storage()) for each in heads)
        return flashmask.attention(*heads, layer.mask)

    layer.attend = attend
    out = chunked_layer(layer.parts(), given, chunk=20, hold_attention=True)
    gc.collect()
    assert out.requires_grad and [each.expired() for each in memory] == [True] * 3


def test_no_gradient_keeps_nothing():
    layer, given = Layer(), hidden()
    with torch.no_grad():
        found = chunked_layer(layer.parts(), given, chunk=20, hold_attention=True)
    torch.testing.assert_close(found, layer(given).detach(), atol=1e-6, rtol=1e-6)
    assert not found.requires_grad


def test_sums_over_chunks_are_not_rounded_to_bfloat16():
    sums = GradientSums([torch.zeros(2, dtype=torch.bfloat16), torch.zeros(1)])
    for _ in range(1000):
        sums.add([torch.ones(2, dtype=torch.bfloat16), None])
    total, nothing = sums.result()
    assert total.dtype == torch.bfloat16 and total.tolist() == [1000.0, 1000.0] and nothing is None


def test_says_that_a_backward_runs_once():
    layer, given = Layer(), hidden()
    loss = chunked_layer(layer.parts(), given, chunk=20).sum()
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="run the forward again"):
        loss.backward()


def test_second_derivatives_are_refused():
    layer, given = Layer(), hidden()
    for out in (chunked_layer(layer.parts(), given, chunk=20), in_chunks(layer.norm, given, [], chunk=20)):
        with pytest.raises(NotImplementedError, match="a model in chunks of tokens is differentiable once; run it"):
            torch.autograd.grad(out.sum(), given, create_graph=True)


@pytest.mark.parametrize(("chunk", "error"), [(0, ValueError), (2.5, TypeError), (True, TypeError)])
def test_says_what_a_chunk_is(chunk, error):
    with pytest.raises(error, match="chunk is"):
        chunked_layer(Layer().parts(), hidden(), chunk=chunk)


def test_says_what_hidden_is():
    with pytest.raises(ValueError, match=r"hidden has shape \[45, 16\]; expected \[B, S, H\]"):
        chunked_layer(Layer().parts(), hidden()[0], chunk=3)
