# SPDX-License-Identifier: Apache-2.0
"""The arguments of a call are said in one place: schemas, keys of plans and what a gradient keeps follow from it."""

import pytest
import torch

import flashmask.operators
from flashmask._plans.call import (
    Call,
    arguments_of_backward,
    call_of_backward,
    joined,
    key_on_cpu,
    numbers_of,
    tensors_of,
)

SHAPES = ((1, 8, 2, 4),) * 3


FIELDS = (
    "Tensor? mask, Tensor? block_mask, bool causal, float scale, float dropout, Tensor? seed_offset, "
    "bool deterministic=False"
)
LAST = (
    'Tensor? dropout_place=None, bool invariant=False, str change="", '
    "Tensor? alibi_slopes=None, Tensor? query_positions=None, Tensor? key_positions=None, int cudnn=0, "
    "Tensor? bias=None, int distance_origin=0, int most_documents=0, "
    "Tensor? operand0=None, Tensor? operand1=None, Tensor? operand2=None, Tensor? operand3=None"
)


def test_schemas_end_with_the_fields():
    assert f"Tensor v, {FIELDS}, Tensor? sinks=None, {LAST}, int schema=0) ->" in str(
        flashmask.operators.forward_operator._schema
    )
    last = f"{LAST}, bool float32_key_gradients=False, int schema=0"
    assert f"Tensor lse, {FIELDS}, {last}) ->" in str(flashmask.operators.backward_operator._schema)
    with_sinks = str(flashmask.operators.backward_with_sinks_operator._schema)
    assert f"Tensor lse, Tensor sinks, {FIELDS}, {last}) ->" in with_sinks
    with_bias = str(torch.ops.flashmask.backward_with_bias.default._schema)
    assert f"Tensor lse, Tensor? sinks, {FIELDS}, {last}) ->" in with_bias


def test_backwards_take_a_call_without_its_sinks():
    sinks = torch.ones(2)
    call = Call(torch.ones(3), causal=True, scale=0.5, sinks=sinks)
    assert not any(each is sinks for each in arguments_of_backward(call))
    found = call_of_backward(arguments_of_backward(call), sinks)
    assert all(a is b for a, b in zip(found, call, strict=True))
    assert call_of_backward((None, None, True)) == Call(causal=True)


def test_a_call_is_its_tensors_and_its_numbers():
    mask, blocks, seed, sinks, place = torch.ones(3), torch.ones(2), torch.ones(1), torch.ones(2), torch.ones(4)
    alibi = torch.ones(2), torch.ones(1, 8), torch.ones(1, 8)
    bias, operands = torch.ones(1, 1, 1, 8), [torch.ones(n) for n in (2, 3, 4, 5)]
    call = Call(
        *(mask, blocks, True, 0.5, 0.25, seed, True, sinks, place, True, "softcap(50.0)", *alibi, 2, bias, 7, 9),
        *operands,
    )
    tensors = mask, blocks, seed, sinks, place, *alibi, bias, *operands
    assert all(a is b for a, b in zip(tensors_of(call), tensors, strict=True))
    assert numbers_of(call) == (True, 0.5, 0.25, True, True, "softcap(50.0)", 2, 7, 9)
    assert all(a is b for a, b in zip(joined(tensors_of(call), numbers_of(call)), call, strict=True))


@pytest.mark.parametrize(
    "change",
    [
        {"causal": True},
        {"scale": 0.5},
        {"dropout": 0.25},
        {"invariant": True},
        {"change": "softcap(5.0)"},
        {"change": "bias"},
    ],
)
def test_another_number_is_another_plan(change):
    assert key_on_cpu(None, SHAPES, 0, Call(**change)) != key_on_cpu(None, SHAPES, 0, Call())


def test_determinism_is_no_other_plan_on_the_cpu():
    assert key_on_cpu(None, SHAPES, 0, Call(deterministic=True)) == key_on_cpu(None, SHAPES, 0, Call())


def test_the_origin_of_distances_is_no_other_plan():
    assert key_on_cpu(None, SHAPES, 0, Call(distance_origin=7)) == key_on_cpu(None, SHAPES, 0, Call())


def test_the_public_function_takes_what_the_operator_takes():
    q = torch.randn(1, 8, 2, 4)
    expected = flashmask.operators.forward_operator(q, q, q, None, None, True, 0.5, 0.0, None)
    found = flashmask.operators.forward(q, q, q, None, None, True, 0.5, 0.0, None)
    named = flashmask.operators.forward(q, q, q, causal=True, scale=0.5)
    assert all(torch.equal(a, b) and torch.equal(a, c) for a, b, c in zip(expected, found, named, strict=True))
