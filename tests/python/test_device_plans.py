# SPDX-License-Identifier: Apache-2.0
"""Which plan a call on a GPU gets, without one: streams, captures and plans are stand-ins."""

import gc
import weakref

import pytest
import torch

from flashmask import masks
from flashmask._abi.header import Options
from flashmask._abi.problem import Problem
from flashmask._plans.call import Call
from flashmask._torch import cuda
from flashmask._torch.plans import device_plan, device_plans
from flashmask._torch.plans.by_tensor import ByTensor
from flashmask._torch.plans.device_plans import Inputs, remember_plans_of

SHAPE = (1, 8, 2, 64)
INPUTS = Inputs(SHAPE, SHAPE, SHAPE, 1, 0)


class Made:
    """A plan, and what it was made of."""

    bytes = 1

    def __init__(self, source, options):
        self.source = source
        self.options = options


@pytest.fixture
def made(monkeypatch):
    """Plans in the order in which they were made."""
    plans = []

    def keep(source, options):
        plans.append(Made(source, options))
        return plans[-1]

    monkeypatch.setattr(
        device_plans,
        "plan_of_rows",
        lambda rows, causal, _, options, blocks, most_documents: keep((rows, causal, blocks), options),
    )
    monkeypatch.setattr(device_plans, "check_devices", lambda *_, **__: None)
    monkeypatch.setattr(device_plans, "plan_of_mask", lambda mask, _, options: keep(mask, options))
    monkeypatch.setattr(device_plans, "rows_of_nothing", lambda causal, *_: "nothing")
    device_plans.device_plans.clear()
    yield plans
    device_plans.device_plans.clear()
    device_plans._captured_without_mask.clear()


def rows():
    return torch.zeros(1, 1, 8, 1, dtype=torch.int32)


def of_rows(tensor, causal=True, capture=0, blocks=None, **numbers):
    return device_plans._of_masks(Call(tensor, blocks, causal, **numbers), INPUTS, capture)


def of_constant(mask, causal=False, capture=0, **numbers):
    return device_plans._of_constant(Call(mask, causal=causal, **numbers), INPUTS, capture)


def test_values_go_with_their_tensor():
    store = ByTensor()
    first, second = rows(), rows()
    store.put(first, "one")
    assert store.get(first) == "one"
    assert store.get(second) is None
    store.put(first, "another")
    gc.collect()
    assert (store.get(first), len(store)) == ("another", 1)
    del first
    assert len(store) == 0


def test_values_stay_while_only_autograd_holds_the_tensor():
    class Holds(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, held):
            ctx.save_for_backward(held)
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            seen.append(store.get(ctx.saved_tensors[0]))
            return grad, None

    store, seen = ByTensor(), []
    held = rows()
    store.put(held, "value")
    y = Holds.apply(torch.ones(1, requires_grad=True), held)
    del held
    gc.collect()
    y.sum().backward()
    assert seen == ["value"]


def test_row_indices_have_one_plan_until_they_change(made):
    tensor = rows()
    remember_plans_of(tensor)
    assert of_rows(tensor) is of_rows(tensor)
    assert of_rows(tensor, causal=False) is not of_rows(tensor)
    assert of_rows(tensor, scale=0.5) is not of_rows(tensor)
    first = of_rows(tensor)
    for change in (lambda: tensor.add_(1), lambda: setattr(tensor, "data", rows())):
        change()
        assert of_rows(tensor) is not first
        assert of_rows(tensor) is of_rows(tensor)
    assert len(made) == 5


def of_three_dimensions():
    return torch.zeros(1, 8, 1, dtype=torch.int32)


def test_calls_without_gradients_let_the_backward_wait_for_its_compiler(made):
    """Their plans are those of the calls with gradients."""
    tensor = rows()
    remember_plans_of(tensor)
    later = device_plans._of_masks(Call(tensor, None, True), INPUTS, 0, True)
    assert later.options.compile_backward_later and of_rows(tensor) is later
    assert not of_rows(tensor, scale=0.5).options.compile_backward_later
    constant, _ = device_plans._of_constant(Call(causal=True), INPUTS, 0, True)
    assert constant.options.compile_backward_later and constant.options.compile_when_called
    assert cuda._learns(torch.ones(1), None, torch.ones(1, requires_grad=True))
    assert not cuda._learns(torch.ones(1), None)


def test_views_of_a_whole_tensor_share_its_plan(made):
    tensor = of_three_dimensions()
    remember_plans_of(tensor[None])
    first = of_rows(tensor[None])
    assert first is of_rows(tensor[None])
    assert of_rows(tensor[None].transpose(1, 2)) is not first
    tensor += 1
    changed = of_rows(tensor[None])
    assert changed is not first
    view = tensor[None]
    tensor.data = of_three_dimensions()
    assert of_rows(tensor[None]) is not changed
    remember_plans_of(view)  # it still reads what the tensor held before
    assert of_rows(view) is not of_rows(tensor[None])
    assert of_rows(tensor[None], blocks=tensor[None]) is of_rows(tensor[None], blocks=tensor[None])
    view.zero_()
    assert of_rows(view) is of_rows(view)
    assert len(made) == 7


def test_plans_of_views_go_with_the_tensor_or_the_view(made):
    whole, data_set = of_three_dimensions(), torch.zeros(4, 1, 8, 1, dtype=torch.int32)
    remember_plans_of(whole[None])
    plan = weakref.ref(of_rows(whole[None]))
    part = data_set[1:2]
    remember_plans_of(part)
    assert of_rows(part) is of_rows(part)
    of_part = weakref.ref(of_rows(part))
    while made:
        made.pop().source = None
    gc.collect()
    assert plan() is not None
    assert of_part() is not None
    del part, whole
    gc.collect()
    assert (plan(), of_part()) == (None, None)


def test_row_indices_that_nobody_vouches_for_have_no_plan_to_keep(made):
    tensor = rows()
    assert of_rows(tensor) is not of_rows(tensor)
    with torch.inference_mode():
        uncounted = rows()
    remember_plans_of(uncounted)
    assert of_rows(uncounted) is not of_rows(uncounted)


def test_a_block_mask_belongs_to_its_plan(made):
    tensor, blocks, others = rows(), rows(), rows()
    for each in (tensor, blocks, others):
        remember_plans_of(each)
    plan = of_rows(tensor, blocks=blocks)
    assert plan.source == (tensor, True, blocks)
    assert plan is of_rows(tensor, blocks=blocks)
    assert len({id(of_rows(tensor, blocks=each)) for each in (None, blocks, others)}) == 3
    blocks += 1
    assert of_rows(tensor, blocks=blocks) is not plan
    alone = of_rows(None, blocks=blocks)
    assert alone.source == ("nothing", True, blocks)
    assert alone is of_rows(None, blocks=blocks)
    assert alone is not of_rows(blocks)
    assert of_rows(tensor, blocks=rows()) is not of_rows(tensor, blocks=rows())


def test_a_capture_makes_plans_of_row_indices_of_its_own(made):
    tensor = rows()
    remember_plans_of(tensor)
    outside = of_rows(tensor)
    first = of_rows(tensor, capture=5)
    assert first is of_rows(tensor, capture=5)
    second = of_rows(tensor, capture=6)
    assert len({id(plan) for plan in (outside, first, second)}) == 3
    assert of_rows(tensor) is outside
    assert of_rows(tensor, capture=5) is not first  # that graph was done


def test_a_mask_has_one_plan_and_a_capture_keeps_it(made):
    mask = masks.causal(8, 8).tensor
    plan, _ = of_constant(mask)
    assert of_constant(mask) == (plan, 0)
    assert of_constant(mask, capture=5) == (plan, 0)
    device_plans.device_plans.clear()
    made.clear()
    gc.collect()
    assert device_plans._captured.get(mask) == {plan}
    assert of_constant(mask) == (plan, 0)
    assert not made


def test_no_mask_is_planned_on_the_device(made):
    outside, _ = of_constant(None, capture=0)
    assert outside.source == ("nothing", False, None)
    assert of_constant(None, causal=True)[0].source == ("nothing", True, None)
    assert of_constant(None, capture=5) == (outside, 0)
    assert device_plans._captured_without_mask == {outside}
    first, made_in = of_constant(None, capture=5, scale=0.5)
    assert made_in == 5
    assert of_constant(None, capture=5, scale=0.5)[0] is not first


def test_deterministic_plans_are_others(made):
    mask = masks.causal(8, 8)
    plain, _ = of_constant(mask.tensor)
    asked, _ = of_constant(mask.tensor, deterministic=True)
    assert (plain.options.deterministic, asked.options.deterministic) == (0, 1)
    tensor = rows()
    remember_plans_of(tensor)
    assert of_rows(tensor, deterministic=True).options.deterministic == 1
    from flashmask._abi.header import Options

    packed = torch.from_numpy(mask._packed(Options(deterministic=1)))
    says, _ = of_constant(packed)
    assert says.options.deterministic == 1
    assert of_constant(packed, deterministic=True) == (says, 0)


def test_float32_tensors_are_told_both_ways_out(monkeypatch):
    monkeypatch.setattr(device_plan, "_served", lambda: (["cpu", "cuda"], ["bfloat16", "float16"]))
    problem = Problem(1, 8, 8, 2, 2, 64, 64, "float32", device="cuda:0")
    rows = torch.full((1, 1, 8, 1), 8, dtype=torch.int32)
    said = r"q is float32 on cuda:0; .* bfloat16 and float16: cast q, k and v to one of them, .*or compute on the CPU"
    with pytest.raises(NotImplementedError, match=said):
        device_plan.plan_of_rows(rows, True, problem, Options())
