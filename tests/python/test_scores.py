# SPDX-License-Identifier: Apache-2.0
"""flashmask.scores: changes of scores as values, through every function that takes score=."""

import dataclasses

import pytest
import torch
from attention_oracle import random_inputs, softmax_attention
from bias_oracle import by_distance
from mask_families import visible
from torch.utils._python_dispatch import TorchDispatchMode

import flashmask
import flashmask.operators
from flashmask import masks, scores
from flashmask.__main__ import main

BATCH, HEADS, KV_HEADS, N = 2, 4, 2, 24
SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0])
DRAW = torch.Generator().manual_seed(5)
BIAS = torch.randn(1, HEADS, N, N, generator=DRAW)
TABLE = torch.randn(1, HEADS, 1, 2 * N - 1, generator=DRAW)
DISTANCE = (torch.arange(N)[:, None] - torch.arange(N)).abs()
ALIBI = -SLOPES[:, None, None] * DISTANCE
# A change, and what it adds to scores.
CHANGES = {
    "cap": (scores.softcap(2.0), torch.zeros(1, 1, N, N)),
    "slopes": (scores.alibi(SLOPES), ALIBI[None]),
    "positions": (scores.alibi(SLOPES, *[2 * torch.arange(N)[None]] * 2), 2 * ALIBI[None]),
    "cap, slopes": (scores.softcap(2.0) | scores.alibi(SLOPES), ALIBI[None]),
    "cap, bias": (scores.softcap(2.0) | scores.bias(BIAS), BIAS),
    "distances": (scores.distance(TABLE, N - 1), by_distance(TABLE, N, N, N - 1)),
}
MASK = masks.causal(N, N)
ROWS = torch.full((1, 1, N, 1), N, dtype=torch.int32)


def inputs():
    return [t.float() for t in random_inputs(BATCH, N, N, HEADS, KV_HEADS, 16, 16)[:3]]


def flat(score):
    """The change as varlen_attention() takes it: a bias without a batch."""
    if score.kind in ("bias", "distance_bias"):
        return dataclasses.replace(score, operands=(score.operands[0][0],))
    return score


def as_arrays(score):
    return dataclasses.replace(score, operands=tuple(None if each is None else each.numpy() for each in score.operands))


def varlen(q, k, v, score):
    ends = torch.tensor([0, N])
    each = [
        flashmask.varlen_attention(*t, ends, ends, causal=True, score=flat(score)) for t in zip(q, k, v, strict=True)
    ]
    return torch.stack(each)


FUNCTIONS = {
    "attention": lambda q, k, v, score: flashmask.attention(q, k, v, MASK, score=score),
    "bhsd": lambda q, k, v, score: flashmask.attention(
        *(t.transpose(1, 2) for t in (q, k, v)), MASK, layout="bhsd", score=score
    ).transpose(1, 2),
    "plan": lambda q, k, v, score: flashmask.attention(
        q, k, v, plan=flashmask.plan(MASK, q, k, v, score=score), score=score
    ),
    "arrays": lambda q, k, v, score: torch.from_numpy(
        flashmask.attention(*(t.numpy() for t in (q, k, v)), MASK, score=as_arrays(score))
    ),
    "rows": lambda q, k, v, score: flashmask.flashmask_attention(q, k, v, ROWS, causal=True, score=score),
    "varlen": varlen,
    "decode": lambda q, k, v, score: flashmask.decode_attention(q, k, v, score=score, splits=2),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_function_changes_scores_by_the_formula(function, change):
    score, added = CHANGES[change]
    q, k, v = inputs()
    if function == "decode" and change in ("distances", "positions"):
        with pytest.raises(NotImplementedError, match=r"decode_attention\(\) was given .*, which it does not serve"):
            FUNCTIONS[function](q, k, v, score)
        return
    expected = softmax_attention(q, k, v, visible(MASK), softcap=2.0 if "cap" in change else None, bias=added)[0]
    torch.testing.assert_close(FUNCTIONS[function](q, k, v, score), expected.float())


def capped(s):
    return 2 * torch.tanh(s / 2)


CHAINS = {
    "a factor": (scores.multiply(-0.5), lambda s: -0.5 * s),
    "factors around a cap": (
        scores.multiply(2) | scores.softcap(2.0) | scores.multiply(3),
        lambda s: 3 * capped(2 * s),
    ),
    "slopes, capped": (scores.alibi(SLOPES) | scores.softcap(2.0), lambda s: capped(s + ALIBI)),
    "caps around a bias": (
        scores.softcap(2.0) | scores.bias(BIAS) | scores.softcap(2.0) | scores.multiply(0.5),
        lambda s: 0.5 * capped(capped(s) + BIAS),
    ),
}


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_function_does_chains_step_by_step(function, chain):
    score, formula = CHAINS[chain]
    q, k, v = inputs()
    keys, values = (t.double().repeat_interleave(HEADS // KV_HEADS, 2) for t in (k, v))
    products = torch.einsum("bihd,bjhd->bhij", q.double(), keys) / 4
    p = formula(products).masked_fill(~torch.ones(N, N).tril().bool(), -torch.inf).softmax(-1)
    expected = torch.einsum("bhij,bjhd->bihd", p, values)
    torch.testing.assert_close(FUNCTIONS[function](q, k, v, score), expected.float())


@pytest.mark.parametrize("chain", CHAINS)
def test_gradients_of_chains_are_those_of_the_steps(chain):
    score, formula = CHAINS[chain]
    q, k, v = (t.double().requires_grad_() for t in inputs())
    keys, values = (t.repeat_interleave(HEADS // KV_HEADS, 2) for t in (k, v))
    p = formula(torch.einsum("bihd,bjhd->bhij", q, keys) / 4).softmax(-1)
    expected = torch.autograd.grad(torch.einsum("bhij,bjhd->bihd", p, values).sin().sum(), (q, k, v))
    leaves = [t.detach().float().requires_grad_() for t in (q, k, v)]
    found = torch.autograd.grad(flashmask.attention(*leaves, score=score).sin().sum(), leaves)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other.float(), rtol=1e-4, atol=1e-5)


def test_operands_get_the_gradients_that_the_keywords_give():
    q, k, v = inputs()
    for make, name in ((scores.bias, "bias"), (scores.distance, "distance_bias")):
        values = (BIAS if name == "bias" else TABLE).clone().requires_grad_()
        runs = (
            flashmask.attention(q, k, v, MASK, score=make(values)),
            flashmask.attention(q, k, v, MASK, **{name: values}),
        )
        one, other = (torch.autograd.grad(o.sin().sum(), values)[0] for o in runs)
        assert one.abs().max() > 0 and torch.equal(one, other)


def test_a_change_is_a_value():
    one, other = (scores.softcap(50) | scores.alibi(SLOPES) for _ in range(2))
    assert one == other and hash(one) == hash(other) and len({one, other}) == 1
    assert one != scores.softcap(30.0) | scores.alibi(SLOPES) and one != scores.softcap(50) | scores.alibi(
        SLOPES.clone()
    )
    assert scores.distance(TABLE) != scores.distance(TABLE, 3) != scores.bias(TABLE)
    assert scores.softcap(None) == scores.softcap(0) == scores.softcap(None) | scores.softcap(0)
    assert scores.softcap(None) | scores.bias(BIAS) == scores.bias(BIAS)
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.text = "softcap(30.0)"


def test_its_text_is_the_calls_that_make_it():
    whole = scores.softcap(50) | scores.distance(TABLE, N - 1)
    assert repr(whole) == "softcap(50.0) | distance(Tensor of torch.float32 [1, 4, 1, 47], origin=23)"
    assert repr(scores.alibi(SLOPES)) == "alibi(Tensor of torch.float32 [4])"
    assert repr(scores.softcap(None)) == "unchanged"


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: scores.softcap(-1.0), ValueError, "softcap is -1.0; expected a number from 1e-30"),
        (lambda: scores.softcap("50"), TypeError, "softcap is str '50'; expected a number above 0"),
        (lambda: scores.multiply(0), ValueError, "multiply's factor is 0; expected a number whose size is from 1e-30"),
        (lambda: scores.multiply("2"), TypeError, "multiply's factor is str '2'; expected a number"),
        (
            lambda: scores.alibi(SLOPES) | scores.bias(BIAS),
            ValueError,
            "alibi_slopes and bias are given together; scores take one bias: add one to the other",
        ),
        (lambda: scores.alibi(SLOPES, ROWS), ValueError, "one of query_positions and key_positions is given"),
        (lambda: scores.distance(TABLE, 0.5), TypeError, "distance_origin is float 0.5; expected an integer"),
        (lambda: scores.softcap(2.0) | SLOPES, TypeError, "unsupported operand"),
    ],
)
def test_chains_that_mean_nothing_are_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"score": scores.softcap(2.0), "bias": BIAS}, ValueError, r"score and keywords .*\(bias\(.*are both given"),
        ({"score": "softcap"}, TypeError, r"score is str .*a function is taken by flashmask\.attention"),
        ({"score": scores.bias(BIAS.numpy())}, TypeError, "bias is ndarray .*; expected a torch tensor"),
        (
            {"softcpa": 2.0},
            TypeError,
            r"attention\(\) does not take softcpa, which is float 2.0; did you mean softcap\?",
        ),
        ({"determinstic": True}, TypeError, r"did you mean deterministic\?"),
        ({"softmax_scale": 2.0}, TypeError, "does not take softmax_scale, .*; pass it as scale$"),
    ],
)
def test_options_of_attention_that_mean_nothing_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        flashmask.attention(*inputs(), MASK, **options)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda *t: flashmask.flashmask_attention(*t, windows=3),
            r"flashmask_attention\(\) .* did you mean window_size\?",
        ),
        (lambda *t: flashmask.flashmask_attention(*t, scale=0.5), "does not take scale, .* pass it as softmax_scale"),
        (lambda *t: flashmask.decode_attention(*t, split=3), r"decode_attention\(\) .* did you mean splits\?"),
        (lambda *t: flashmask.decode_attention(*t, invariant=True), r"decode_attention\(\) does not take invariant"),
        (lambda *t: flashmask.plan(MASK, *t, visits="all"), r"plan\(\) does not take visits, .* did you mean visit\?"),
        (
            lambda q, k, v: flashmask.varlen_attention(q[0], k[0], v[0], *[torch.tensor([0, N])] * 2, scale=0.5),
            r"varlen_attention\(\) does not take scale, .* pass it as softmax_scale",
        ),
    ],
)
def test_every_function_names_the_keyword_that_it_does_not_take_and_the_nearest(call, message):
    with pytest.raises(TypeError, match=message):
        call(*inputs())


def test_a_plan_is_made_for_a_kind_and_a_cap():
    q, k, v = inputs()
    plan = flashmask.plan(MASK, q, k, v, score=scores.softcap(2.0) | scores.alibi(SLOPES))
    given = scores.alibi(2 * SLOPES)  # the cap is the plan's
    expected = flashmask.attention(q, k, v, MASK, score=scores.softcap(2.0) | given)
    assert torch.equal(flashmask.attention(q, k, v, plan=plan, score=given), expected)
    with pytest.raises(
        ValueError, match=r"score is softcap\(3.0\) \| alibi\(.*; the plan was made for .softcap\(2.0\) \| alibi"
    ):
        flashmask.attention(q, k, v, plan=plan, score=scores.softcap(3.0) | given)
    with pytest.raises(ValueError, match="alibi_slopes is not given, and the plan was made with alibi=True"):
        flashmask.attention(q, k, v, plan=plan)


def test_sequences_of_other_lengths_than_their_keys_have_no_distances():
    q, k, v = (t[0] for t in inputs())
    ends = [torch.tensor([0, N]), torch.tensor([0, N])]
    with pytest.raises(NotImplementedError, match="cu_seqlens_q and cu_seqlens_k are two tensors"):
        flashmask.varlen_attention(q, k, v, *ends, score=scores.distance(TABLE[0]))


@pytest.mark.parametrize("inside", [True, False])
def test_compiled_calls_take_changes_made_inside_and_outside(inside):
    torch._dynamo.reset()
    q, k, v = inputs()
    bias = BIAS.clone().requires_grad_()
    given = scores.softcap(2.0) | scores.bias(bias)

    def attend(q, k, v, bias):
        change = scores.softcap(2.0) | scores.bias(bias) if inside else given
        return flashmask.attention(q, k, v, MASK, scale=0.3, score=change).sin().sum()

    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    one, other = (torch.autograd.grad(f(q, k, v, bias), bias)[0] for f in (attend, compiled))
    torch.testing.assert_close(one, other)
    torch._dynamo.reset()


@pytest.mark.parametrize("with_plan", [True, False])
def test_attention_drops_what_flashmask_attention_drops(with_plan):
    q, k, v = inputs()
    given = {"plan": flashmask.plan(MASK, q, k, v)} if with_plan else {"mask": MASK}
    torch.manual_seed(3)
    found = flashmask.attention(q, k, v, dropout=0.4, **given)
    torch.manual_seed(3)
    assert torch.equal(found, flashmask.flashmask_attention(q, k, v, ROWS, causal=True, dropout=0.4))
    assert not torch.allclose(found, flashmask.attention(q, k, v, MASK))
    assert not torch.equal(found, flashmask.attention(q, k, v, MASK, dropout=0.4))  # another draw
    with pytest.raises(NotImplementedError, match=r"dropout is 0.4, and q is ndarray .* pass torch tensors"):
        flashmask.attention(*(t.numpy() for t in (q, k, v)), MASK, dropout=0.4)


class Asked(TorchDispatchMode):
    """Keeps the arguments of flashmask::forward."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is torch.ops.flashmask.forward.default:
            names = [each.name for each in function._schema.arguments]
            self.given = dict(zip(names, args, strict=False)) | (kwargs or {})
        return function(*args, **(kwargs or {}))


def test_flashmask_attention_asks_for_the_same_bits_on_every_run():
    with Asked() as asked:
        flashmask.flashmask_attention(*inputs(), ROWS, causal=True, deterministic=True)
    assert asked.given["deterministic"] is True


def test_commands_report_changes_of_scores_and_list_compiled_kernels(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("FLASHMASK_CACHE", str(tmp_path / "kernels"))
    assert main(["score", "mul(score, score)", "--no-compile"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("text          function(mul(score, score))\nslope         add(score, score)\n"), told
    assert main(["score", "mul(score, none)"]) == 2
    assert capsys.readouterr().err.endswith("\n  mul(score, none)\n             ^\n")
    assert main(["cache"]) == main(["cache", "--clear"]) == 0
    assert capsys.readouterr().out == f"{tmp_path}/kernels: 0 kernels\nremoved 0 kernels\n"
