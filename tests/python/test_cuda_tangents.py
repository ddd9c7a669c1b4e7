# SPDX-License-Identifier: Apache-2.0
"""Forward-mode derivatives on a GPU: against float64 duals of the dense formula, and what is refused."""

import pytest
import torch
from attention_oracle import random_inputs, softmax_attention
from cuda_device import needs_gpu
from mask_families import FAMILIES, N, visible
from torch.autograd import forward_ad

import flashmask
from flashmask import masks, scores

pytestmark = needs_gpu
TOLERANCES = {torch.bfloat16: 1e-2, torch.float16: 2e-3}


def inputs(dtype=torch.bfloat16, heads=(4, 2), dims=(64, 64), tokens=N):
    """q, k and v on the device, and tangents of them."""
    sizes = 2, tokens, tokens, *heads, *dims
    return tuple(tuple(t.to(dtype).cuda() for t in random_inputs(*sizes, seed=seed)[:3]) for seed in (1, 2))


def check(primals, along, mask, of_formula=None, **options):
    """Holds the tangents of o and lse against those of the formula in float64; returns both."""
    seen = None if mask is None else visible(mask).cuda()

    def ours(q, k, v):
        return flashmask.attention(q, k, v, mask, return_lse=True, **options)

    def formula(q, k, v):
        return softmax_attention(q, k, v, seen, **(of_formula or {}))

    _, found = torch.func.jvp(ours, primals, along)
    _, expected = torch.func.jvp(formula, *(tuple(t.double() for t in each) for each in (primals, along)))
    for name, a, b in zip(("o", "lse"), found, expected, strict=True):
        exact = b.nan_to_num(0)  # the formula has NaN where a row sees nothing
        error = (a.double() - exact).abs().max() / exact.abs().max().clamp(min=1)
        assert error <= TOLERANCES[primals[0].dtype], f"{name}: {error:.1e}"
    return found, expected


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_every_mask_has_the_tangents_of_the_formula(name, dtype):
    found, _ = check(*inputs(dtype), FAMILIES[name]())
    assert found[0].dtype is dtype and found[0].is_cuda


@pytest.mark.parametrize("dims", [(40, 56), (64, 64), (96, 96), (64, 128), (100, 20), (128, 128)], ids=str)
def test_head_dims_and_long_rows_and_documents(dims):
    tokens = 1500
    for mask in (None, masks.causal(tokens, tokens), masks.document([300, 20, 700, 400], tokens)):
        check(*inputs(dims=dims, tokens=tokens), mask)


@pytest.mark.parametrize("dim", [64, 128])
def test_changes_of_scores_and_sinks(dim):
    primals, along = inputs(dims=(dim, dim))
    mask = FAMILIES["causal_document"]()
    sinks = torch.tensor([0.5, 2.0, -1.0, 0.0]).cuda()
    bias = random_inputs(1, N, N, 4, 4, N, 1, seed=5)[0].transpose(1, 2).cuda()
    check(primals, along, mask, {"sinks": sinks.double()}, sinks=sinks)
    check(primals, along, mask, {"softcap": 1.5}, score=scores.softcap(1.5))
    check(
        *(primals, along, mask, {"softcap": 2.0, "bias": bias.double()}),
        score=scores.softcap(2.0) | scores.bias(bias),
    )


def test_dropout_drops_what_the_forward_dropped():
    """o is linear in v, whatever is dropped: the tangent by v alone is the forward of v's tangent."""
    (q, k, v), (_, _, of_v) = inputs()

    def attend(v):
        torch.manual_seed(3)
        return flashmask.attention(q, k, v, FAMILIES["causal"](), dropout=0.3)

    _, found = torch.func.jvp(attend, (v,), (of_v,))
    error = (found.double() - attend(of_v).double()).abs().max()
    assert error <= TOLERANCES[torch.bfloat16] * found.abs().max()


def test_scores_that_all_move_together_lose_no_digits():
    (q, k, v), (of_q, of_k, of_v) = inputs()
    q[..., 0], of_k[..., 0] = 8.0, 1024.0
    mask = FAMILIES["causal"]()
    seen = visible(mask).cuda()
    primals, along = (q, k, v), (of_q, of_k, of_v)
    _, found = torch.func.jvp(lambda *p: flashmask.attention(*p, mask, return_lse=True), primals, along)
    doubles = (tuple(t.double() for t in each) for each in (primals, along))
    _, expected = torch.func.jvp(lambda *p: softmax_attention(*p, seen), *doubles)
    assert (found[0].double() - expected[0]).abs().max() < 5e-2
    assert (found[1].double() / expected[1] - 1).abs().max() < 1e-5


def test_meanflow_trains_on_the_primal_beside_a_detached_tangent():
    """The backward of a dual call is that of a call without tangents, and a mask on the device has tangents too."""
    mask = masks.causal_document([400, 600], 1000)
    rows, causal = mask.to_startend_row_indices()
    given = flashmask.RowIndices(torch.from_numpy(rows).cuda(), causal)
    primals, along = inputs(tokens=1000)
    leaves = [t.requires_grad_() for t in primals]

    def run(mask):
        with forward_ad.dual_level():
            duals = [forward_ad.make_dual(p, t) for p, t in zip(leaves, along, strict=True)]
            o, tangent = forward_ad.unpack_dual(flashmask.attention(*duals, mask, deterministic=True))
        return tangent, torch.autograd.grad(o.float().square().sum(), leaves)

    plain = flashmask.attention(*leaves, mask, deterministic=True)
    gradients = torch.autograd.grad(plain.float().square().sum(), leaves)
    for each in (mask, given):
        tangent, found = run(each)
        assert torch.equal(tangent, run(mask)[0])
        for a, b in zip(found, gradients, strict=True):
            assert torch.equal(a, b)


def test_torch_compile_traces_it():
    primals, along = inputs(tokens=500)
    mask = masks.causal(500, 500)

    def run(q, k, v, *along):
        return torch.func.jvp(lambda *p: flashmask.attention(*p, mask), (q, k, v), along)

    for a, b in zip(torch.compile(run, fullgraph=True)(*primals, *along), run(*primals, *along), strict=True):
        assert torch.equal(a, b)


REFUSALS = {
    "has no tangents": {"dims": (256, 256)},
    "the plan moves tokens; make the plan without `invariant`": {"options": {"invariant": True}},
}


@pytest.mark.parametrize("sentence", REFUSALS)
def test_what_has_no_tangents_is_refused_by_name(sentence):
    given = dict(REFUSALS[sentence])
    options = given.pop("options", {})
    primals, along = inputs(tokens=200, **given)
    with pytest.raises(NotImplementedError) as error:
        torch.func.jvp(lambda *p: flashmask.attention(*p, masks.causal(200, 200), **options), primals, along)
    assert sentence in str(error.value)
