# SPDX-License-Identifier: Apache-2.0
"""Calls that go past PyTorch's dispatcher, and those that must not: someone listens, or tensors are special."""

import pytest
import torch
from attention_oracle import random_inputs
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import flashmask
import flashmask.operators
from flashmask import masks
from flashmask._plans.call import Call
from flashmask._torch import direct

N = 24
MASK = masks.causal(N, N)


def inputs(grad=False):
    return [t.requires_grad_(grad) for t in random_inputs(1, N, N, 2, 2, 8, 8)[:3]]


def is_direct(q, k, v, call=None):
    return direct.kernels_of(q, k, v, call or Call(MASK.tensor)) is not None


class Listening:
    def __init__(self):
        super().__init__()
        self.names = []

    def heard(self, function, arguments, keywords):
        self.names.append(str(function))
        return function(*arguments, **(keywords or {}))


class DispatchMode(Listening, TorchDispatchMode):
    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        return self.heard(function, arguments, keywords)


class FunctionMode(Listening, TorchFunctionMode):
    def __torch_function__(self, function, types, arguments=(), keywords=None):
        return self.heard(function, arguments, keywords)


def test_plain_calls_are_direct():
    for grad in (False, True):
        assert is_direct(*inputs(grad))
    with torch.no_grad():
        assert is_direct(*inputs(True))
    with torch.inference_mode():
        assert is_direct(*inputs())
        assert is_direct(*(t.clone() for t in inputs()))


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("mode", [DispatchMode, FunctionMode])
def test_modes_hear_the_operators(mode, grad):
    q, k, v = inputs(grad)
    with mode() as listening:
        o = flashmask.attention(q, k, v, MASK)
        if grad:
            torch.autograd.grad(o.sum(), (q, k, v))
    assert any("flashmask.forward" in name for name in listening.names)
    if grad and mode is DispatchMode:
        assert any("flashmask.backward" in name for name in listening.names)


def test_a_mode_around_the_backward_alone_hears_it():
    q, k, v = inputs(True)
    o = flashmask.attention(q, k, v, MASK).sum()
    with DispatchMode() as listening:
        torch.autograd.grad(o, (q, k, v))
    assert any("flashmask.backward" in name for name in listening.names)


def test_profiles_name_the_operators():
    q, k, v = inputs(True)
    with torch.autograd.profiler.profile() as profile:
        flashmask.attention(q, k, v, MASK).sum().backward()
    names = {event.name for event in profile.function_events}
    assert {"flashmask::forward", "flashmask::backward"} <= names


def test_traces_hold_the_operator():
    traced = torch.jit.trace(flashmask.attention, tuple(inputs()), check_trace=False)
    assert "flashmask::forward" in str(traced.graph)


def test_subclasses_stay_what_they_are():
    class Named(torch.Tensor):
        pass

    q, k, v = inputs()
    o = flashmask.attention(q.as_subclass(Named), k, v, MASK)
    assert type(o) is Named


def test_lazily_negated_tensors_are_negated():
    q, k, v = inputs()
    lazy = torch._neg_view(-q)  # what conj().imag gives, without gaps
    assert lazy.is_neg()
    assert torch.equal(lazy, q)
    assert torch.equal(flashmask.attention(lazy, k, v, MASK), flashmask.attention(q, k, v, MASK))
    leaves = inputs(True)
    o = flashmask.attention(*leaves, MASK)
    found = torch.autograd.grad(o, leaves, lazy, retain_graph=True)
    expected = torch.autograd.grad(o, leaves, q)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_nothing_is_recorded_below_autograd():
    leaves = inputs(True)
    with torch._C._AutoDispatchBelowAutograd():  # as kernels of other operators are called
        o = flashmask.attention(*leaves, MASK)
    assert o.grad_fn is None
    assert torch.equal(o, flashmask.attention(*leaves, MASK))


def test_hooks_may_put_other_tensors_in_place_of_the_saved_ones():
    q, k, v = inputs(True)
    expected = torch.autograd.grad(flashmask.attention(q, k, v, MASK).sum(), (q, k, v))
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t.to("meta") if t.is_floating_point() else t):
        o = flashmask.attention(q, k, v, MASK).sum()
    with pytest.raises(RuntimeError, match="expected device cpu but got meta"):
        torch.autograd.grad(o, (q, k, v))
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.numpy(force=True), torch.from_numpy):
        o = flashmask.attention(q, k, v, MASK).sum()
    found = torch.autograd.grad(o, (q, k, v))
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_a_mask_that_was_written_to_has_another_plan():
    q, k, v = inputs()
    first, second = masks.causal_document([10, 14]), masks.causal_document([14, 10])
    tensor = first.tensor.clone()
    assert torch.equal(flashmask.operators.forward(q, k, v, tensor)[0], flashmask.attention(q, k, v, first))
    flashmask.operators.forward(q, k, v, tensor)
    tensor.copy_(second.tensor)
    assert torch.equal(flashmask.operators.forward(q, k, v, tensor)[0], flashmask.attention(q, k, v, second))


def test_other_shapes_and_numbers_have_other_plans():
    q, k, v = inputs()
    expected = flashmask.attention(q, k, v, MASK)
    assert not torch.equal(flashmask.attention(q, k, v, MASK, scale=2.0), expected)
    assert flashmask.attention(q.double(), k.double(), v.double(), MASK).dtype == torch.float64
    assert flashmask.attention(q, k, v[..., :4], MASK).shape == (1, N, 2, 4)
    assert not torch.equal(flashmask.attention(q, k, v), expected)
    assert torch.equal(flashmask.attention(q, k, v, MASK), expected)
