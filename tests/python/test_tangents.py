# SPDX-License-Identifier: Apache-2.0
"""Forward-mode derivatives of attention: against float64 duals of the dense formula, and what is refused."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch
from attention_oracle import random_inputs, softmax_attention
from mask_families import FAMILIES, N, visible
from torch.autograd import forward_ad

import flashmask
from flashmask import masks, scores

pytestmark = pytest.mark.kernels
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3, torch.float64: 1e-13}
EXAMPLE = Path(__file__).parents[2] / "examples" / "meanflow.py"


def inputs(dtype=torch.float32, heads=(4, 2), dims=(16, 8), tokens=N):
    """q, k and v, and tangents of them."""
    sizes = 2, tokens, tokens, *heads, *dims
    return tuple(tuple(t.to(dtype) for t in random_inputs(*sizes, seed=seed)[:3]) for seed in (1, 2))


def tangents_of(function, primals, tangents):
    """The tangents of o and lse of a function; lse of a row that sees nothing has none."""
    _, found = torch.func.jvp(function, primals, tangents)
    return found


def assert_close(found, expected, dtype):
    for name, a, b in zip(("o", "lse"), found, expected, strict=True):
        exact = b.nan_to_num(0)  # the formula has NaN where a row sees nothing
        error = (a.double() - exact).abs().max() / exact.abs().max().clamp(min=1)
        assert error <= TOLERANCES[dtype], f"{name}: {error:.1e}"


def doubles(tensors):
    return tuple(None if t is None else t.double() for t in tensors)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_every_mask_has_the_tangents_of_the_formula(name, dtype):
    mask = FAMILIES[name]()
    primals, along = inputs(dtype)
    found = tangents_of(lambda q, k, v: flashmask.attention(q, k, v, mask, return_lse=True), primals, along)
    expected = tangents_of(lambda q, k, v: softmax_attention(q, k, v, visible(mask)), doubles(primals), doubles(along))
    assert_close(found, expected, dtype)
    assert found[0].dtype is dtype


def change_of(score, softcap=None, bias=None, sinks=None):
    """Returns what flashmask and what the formula are given for one change of scores."""
    return {"score": score, "sinks": sinks}, {"softcap": softcap, "bias": bias, "sinks": sinks}


SINKS, BIAS = torch.tensor([0.5, 2.0, -1.0, 0.0]), random_inputs(1, N, N, 4, 4, N, 1, seed=5)[0].transpose(1, 2)
CHANGES = {
    "softcap": change_of(scores.softcap(1.5), softcap=1.5),
    "bias": change_of(scores.softcap(2.0) | scores.bias(BIAS), softcap=2.0, bias=BIAS),
    "sinks": change_of(None, sinks=SINKS),
    "sinks of rows": change_of(None, sinks=SINKS[None, :, None].expand(2, 4, N).contiguous()),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CHANGES)
def test_changes_of_scores_and_sinks(name, dtype):
    ours, of_formula = CHANGES[name]
    mask = FAMILIES["causal_document"]()
    primals, along = inputs(dtype)
    ours = {key: value for key, value in ours.items() if value is not None}
    of_formula = {
        key: value.double() if isinstance(value, torch.Tensor) else value for key, value in of_formula.items()
    }
    found = tangents_of(lambda q, k, v: flashmask.attention(q, k, v, mask, return_lse=True, **ours), primals, along)
    expected = tangents_of(
        lambda q, k, v: softmax_attention(q, k, v, visible(mask), **of_formula), doubles(primals), doubles(along)
    )
    assert_close(found, expected, dtype)


@pytest.mark.parametrize("given", [(0,), (1,), (2,), (0, 2), (1, 2), (0, 1)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_tensors_without_a_tangent_stay_where_they_are(given, dtype):
    primals, along = inputs(dtype)
    mask = FAMILIES["sliding_window"]()
    with forward_ad.dual_level():
        duals = [
            forward_ad.make_dual(p, t) if i in given else p for i, (p, t) in enumerate(zip(primals, along, strict=True))
        ]
        results = flashmask.attention(*duals, mask, return_lse=True)
        found = [forward_ad.unpack_dual(each).tangent for each in results]
    zeros = tuple(t if i in given else torch.zeros_like(t) for i, t in enumerate(along))
    expected = tangents_of(lambda q, k, v: softmax_attention(q, k, v, visible(mask)), doubles(primals), doubles(zeros))
    assert_close(found, expected, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_scores_that_all_move_together_lose_no_digits(dtype):
    """Σ p Ṡ v − μ o would be a difference of numbers 1,000 times as large, of which o is rounded to the dtype."""
    (q, k, v), (of_q, of_k, of_v) = inputs(dtype, dims=(64, 64))
    q[..., 0], of_k[..., 0] = 8.0, 1024.0
    mask = FAMILIES["causal"]()
    primals, along = (q, k, v), (of_q, of_k, of_v)
    found = tangents_of(lambda q, k, v: flashmask.attention(q, k, v, mask, return_lse=True), primals, along)
    expected = tangents_of(lambda q, k, v: softmax_attention(q, k, v, visible(mask)), doubles(primals), doubles(along))
    assert expected[1].min() > 900
    assert (found[0].double() - expected[0]).abs().max() < (1e-3 if dtype is torch.float32 else 5e-2)
    assert (found[1].double() / expected[1] - 1).abs().max() < 1e-5


def test_dropout_drops_what_the_forward_dropped():
    q, k, v = inputs(torch.float64, tokens=12)[0]

    def attend(q, k, v):
        torch.manual_seed(3)
        return flashmask.attention(q, k, v, masks.causal(12, 12), dropout=0.3)

    leaves = [t.requires_grad_() for t in (q, k, v)]
    assert torch.autograd.gradcheck(attend, leaves, check_forward_ad=True, check_backward_ad=False, fast_mode=True)
    tangents = inputs(tokens=12)[1]
    found = tangents_of(attend, tuple(t.detach().float() for t in leaves), tangents)
    expected = tangents_of(attend, tuple(t.detach() for t in leaves), doubles(tangents))
    assert (found.double() - expected).abs().max() < 1e-5


def test_invariant_plans_and_every_tile_give_the_same():
    primals, along = inputs()
    mask = FAMILIES["causal_document"]()
    plan = flashmask.plan(mask, *primals, visit="all")
    calls = {}, {"plan": plan}, {"invariant": True}
    found = [
        tangents_of(
            lambda q, k, v, o=o: flashmask.attention(q, k, v, None if o.get("plan") else mask, **o), primals, along
        )
        for o in calls
    ]
    assert torch.equal(found[0], found[1])
    assert (found[0] - found[2]).abs().max() < 1e-5
    part = slice(31, 51)  # the second document alone
    alone = tangents_of(
        lambda q, k, v: flashmask.attention(q, k, v, masks.causal(20, 20), invariant=True),
        tuple(t[:, part] for t in primals),
        tuple(t[:, part] for t in along),
    )
    assert torch.equal(found[2][:, part], alone)


class Net(torch.nn.Module):
    """A layer around attention, and one behind it, through which tangents go on."""

    def __init__(self, attend):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.weight = torch.nn.Parameter(torch.randn(32, 96, generator=generator) / 5)
        self.attend = attend

    def forward(self, x, t):
        for _ in range(2):
            q, k, v = (x @ self.weight * t).unflatten(-1, (12, 8)).chunk(3, -2)
            x = x + self.attend(q, k, v).flatten(-2)
        return x


def meanflow_loss(net, x, along):
    u, du = torch.func.jvp(net, (x, torch.ones(1)), (along, torch.ones(1)))
    return (u - du.detach()).square().mean()


def meanflow_by_levels(net, x, along):
    with forward_ad.dual_level():
        u, du = forward_ad.unpack_dual(
            net(forward_ad.make_dual(x, along), forward_ad.make_dual(torch.ones(1), torch.ones(1)))
        )
    return (u - du.detach()).square().mean()


def nets():
    mask = FAMILIES["document"]()
    ours = Net(lambda q, k, v: flashmask.attention(q, k, v, mask))
    dense = Net(lambda q, k, v: softmax_attention(q, k, v, visible(mask))[0])
    x, along = (torch.randn(2, N, 32, generator=torch.Generator().manual_seed(seed)) for seed in (3, 4))
    return ours, dense, x, along


@pytest.mark.parametrize("loss", [meanflow_loss, meanflow_by_levels])
def test_a_loss_of_values_and_tangents_has_the_gradients_of_the_formula(loss):
    ours, dense, x, along = nets()
    for net in (ours, dense):
        loss(net, x, along).backward()
    torch.testing.assert_close(loss(ours, x, along), loss(dense, x, along))
    torch.testing.assert_close(ours.weight.grad, dense.weight.grad, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("loss", [meanflow_loss, meanflow_by_levels])
def test_torch_compile_traces_it(loss):
    ours, _, x, along = nets()
    expected = loss(ours, x, along)
    (gradient,) = torch.autograd.grad(expected, ours.weight)
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=loss is meanflow_loss)(ours, x, along)
    torch.testing.assert_close(compiled, expected)
    torch.testing.assert_close(torch.autograd.grad(compiled, ours.weight)[0], gradient)


def test_tangents_reach_results_without_gradients_too():
    primals, along = inputs()
    expected = tangents_of(flashmask.attention, primals, along)
    with torch.no_grad():
        assert torch.equal(tangents_of(flashmask.attention, primals, along), expected)


def test_autocast_casts_tangents_with_their_tensors():
    primals, along = inputs()
    with torch.autocast("cpu", torch.bfloat16):
        found = tangents_of(flashmask.attention, primals, along)
    halves = [tuple(t.bfloat16() for t in each) for each in (primals, along)]
    assert torch.equal(found, tangents_of(flashmask.attention, *halves))


def test_varlen_attention_has_tangents():
    (q, k, v), along = ([t[0] for t in each] for each in inputs())
    ends = torch.tensor([0, 31, 50, N], dtype=torch.int32)
    found = tangents_of(lambda *t: flashmask.varlen_attention(*t, ends, ends), (q, k, v), tuple(along))
    mask = masks.document([31, 19, 20], N)
    expected = tangents_of(lambda *t: flashmask.attention(*(x[None] for x in t), mask), (q, k, v), tuple(along))
    assert torch.equal(found, expected[0])


def gradient_through_a_tangent():
    ours, _, x, along = nets()
    _, du = torch.func.jvp(ours, (x, torch.ones(1)), (along, torch.ones(1)))
    du.sum().backward()


def tangent_of_a_tangent():
    primals, along = inputs()
    torch.func.jvp(lambda *p: tangents_of(flashmask.attention, p, along), primals, along)


def gradient_inside_a_level():
    primals, along = inputs()
    with forward_ad.dual_level():
        q = forward_ad.make_dual(primals[0], along[0]).requires_grad_()
        torch.autograd.grad(flashmask.attention(q, *primals[1:]).sum(), q)


def given_tangents(**options):
    """A call with options that have tangents."""
    primals, _ = inputs()

    def call(*tensors):
        return flashmask.attention(*primals, **dict(zip(options, tensors, strict=True)))

    return lambda: torch.func.jvp(call, tuple(options.values()), tuple(map(torch.ones_like, options.values())))


REFUSALS = {
    "a gradient through a tangent": gradient_through_a_tangent,
    "does not support torch.func.grad and its kin": tangent_of_a_tangent,
    "a gradient was asked for inside of forward_ad.dual_level()": gradient_inside_a_level,
    "sinks came with a tangent": given_tangents(sinks=torch.zeros(4)),
    "the bias came with a tangent": given_tangents(bias=torch.zeros(1, 1, N, N)),
    "alibi_slopes came with a tangent": given_tangents(alibi_slopes=torch.ones(4)),
}


@pytest.mark.parametrize("sentence", REFUSALS)
def test_what_has_no_tangents_is_refused_by_name(sentence):
    with pytest.raises(NotImplementedError) as error:
        REFUSALS[sentence]()
    assert sentence in str(error.value)


@pytest.mark.parametrize("transform", [torch.func.jacfwd, torch.func.hessian])
def test_other_transforms_are_refused(transform):
    with pytest.raises(NotImplementedError, match=r"does not support torch\.func"):
        transform(lambda q: flashmask.attention(q, q, q).sum())(inputs()[0][1])


def test_plans_that_reorder_are_refused_by_name():
    order = torch.randperm(256, generator=torch.Generator().manual_seed(0))
    near = (order[:, None] - order[None]).abs() < 4
    primals, along = inputs(tokens=256)
    plan = flashmask.plan(near, *primals, reorder=True)
    assert plan.reordering.gained
    with pytest.raises(NotImplementedError, match="the plan moves tokens; make the plan without `reorder`"):
        tangents_of(lambda q, k, v: flashmask.attention(q, k, v, plan=plan), primals, along)


@pytest.mark.skipif(not EXAMPLE.exists(), reason="the examples are in a checkout only")
def test_the_example_trains_as_the_dense_formula_does(capsys):
    spec = importlib.util.spec_from_file_location("meanflow", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    sys.modules["meanflow"] = module
    spec.loader.exec_module(module)
    assert module.main(["--steps", "2"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 3 and printed[-1] == "the same as the dense formula"
