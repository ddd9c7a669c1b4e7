# SPDX-License-Identifier: Apache-2.0
"""Softcap and ALiBi: by their formulas, through every function that takes them, and as PyTorch sees them."""

import numpy as np
import pytest
import torch
from attention_oracle import assert_within_bound, random_inputs, softmax_attention, value_and_gradients
from mask_families import FAMILIES, N, visible
from torch.utils.checkpoint import checkpoint

import flashmask
import flashmask.operators
from flashmask import masks

pytestmark = pytest.mark.kernels

BATCH, HEADS, KV_HEADS = 2, 4, 2
SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0])
forward = torch.ops.flashmask.forward.default


def inputs(rows=N, columns=N):
    """q, k, v, grad_o, grad_lse."""
    return random_inputs(BATCH, rows, columns, HEADS, KV_HEADS, 16, 24)


def bias_of(slopes, rows, columns):
    """What ALiBi adds, [1 | batch, heads, rows, columns], from positions [1 | batch, tokens]."""
    distance = (rows[:, None, :, None].double() - columns[:, None, None, :].double()).abs()
    return -(slopes if slopes.ndim == 2 else slopes[None])[:, :, None, None].double() * distance


def aligned(rows, columns):
    return bias_of(SLOPES, torch.arange(rows)[None] + columns - rows, torch.arange(columns)[None])


CHANGES = {
    "a cap that scores reach": {"softcap": 1.0},
    "a cap far above them": {"softcap": 50.0},
    "alibi": {"alibi_slopes": SLOPES},
    "both": {"softcap": 2.0, "alibi_slopes": SLOPES},
}


def formula(changes, rows=N, columns=N):
    bias = aligned(rows, columns) if "alibi_slopes" in changes else None
    return {"softcap": changes.get("softcap"), "bias": bias}


def check(compute, by_formula, dtype, given=None):
    """Holds compute(q, k, v) and its gradients against float64 and the dtype's naive computation."""
    *tensors, grad_o, grad_lse = given or inputs()
    tensors = [each.to(dtype) for each in tensors]
    found = value_and_gradients(compute, tensors, grad_o, grad_lse, dtype)
    exact, naive = (value_and_gradients(by_formula, tensors, grad_o, grad_lse, kind) for kind in (torch.float64, dtype))
    assert_within_bound(found, exact, naive, dtype)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_has_the_gradients_of_the_formula(name, change):
    mask, changes = FAMILIES[name](), CHANGES[change]
    seen = visible(mask)
    for dtype in (torch.float32, torch.bfloat16):
        check(
            lambda q, k, v: flashmask.attention(q, k, v, mask, return_lse=True, **changes),
            lambda q, k, v: softmax_attention(q, k, v, seen, **formula(changes)),
            dtype,
        )


@pytest.mark.parametrize("change", CHANGES)
def test_rows_and_keys_of_other_lengths_are_aligned_at_their_ends(change):
    changes, mask = CHANGES[change], masks.causal(30, 50)
    check(
        lambda q, k, v: flashmask.attention(q, k, v, mask, return_lse=True, **changes),
        lambda q, k, v: softmax_attention(q, k, v, visible(mask), **formula(changes, 30, 50)),
        torch.float32,
        inputs(30, 50),
    )


@pytest.mark.parametrize("entries", [1, BATCH])
def test_positions_say_what_is_far(entries):
    generator = torch.Generator().manual_seed(3)
    rows, columns = (torch.randint(0, 60, (entries, N), generator=generator) for _ in range(2))
    slopes = torch.rand(BATCH, HEADS, generator=generator)
    mask = masks.sliding_window(N, N, 40)
    given = {"alibi_slopes": slopes, "query_positions": rows, "key_positions": columns}
    for dtype in (torch.float32, torch.float64):
        check(
            lambda q, k, v: flashmask.attention(q, k, v, mask, return_lse=True, softcap=3.0, **given),
            lambda q, k, v: softmax_attention(
                q, k, v, visible(mask), softcap=3.0, bias=bias_of(slopes, rows, columns).expand(BATCH, -1, -1, -1)
            ),
            dtype,
        )


def test_packed_documents_are_biased_as_they_are_alone():
    q, k, v, *_ = inputs()
    lengths = [20, 7, N - 27]
    packed = flashmask.attention(q, k, v, masks.causal_document(lengths), alibi_slopes=SLOPES, softcap=2.0)
    first = 0
    for length in lengths:
        own = [each[:, first : first + length] for each in (q, k, v)]
        alone = flashmask.attention(*own, masks.causal(length, length), alibi_slopes=SLOPES, softcap=2.0)
        torch.testing.assert_close(packed[:, first : first + length], alone)
        first += length


def test_answers_that_share_a_question_are_biased_by_positions():
    """As the repeated prompts: the second answer follows the question, though it stands behind the first."""
    question, answers = 20, (9, 14)
    total = question + sum(answers)
    q, k, v, *_ = inputs(total, total)
    mask = masks.shared_question([(question, answers)], total)
    positions = torch.cat([torch.arange(question), *(question + torch.arange(each) for each in answers)])[None]
    given = {"alibi_slopes": SLOPES, "query_positions": positions, "key_positions": positions}
    shared = flashmask.attention(q, k, v, mask, **given)
    first = question
    for length in answers:
        of_answer = torch.cat([torch.arange(question), torch.arange(first, first + length)])
        tokens = question + length
        alone = flashmask.attention(
            *(each[:, of_answer] for each in (q, k, v)), masks.causal(tokens, tokens), alibi_slopes=SLOPES
        )
        torch.testing.assert_close(shared[:, first : first + length], alone[:, question:])
        first += length


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_gradients_are_those_of_finite_differences(dropout):
    q, k, v = (t.double().requires_grad_() for t in random_inputs(1, 6, 7, 2, 1, 3, 2)[:3])
    mask, seed = masks.sliding_window(6, 7, 3), torch.tensor([11, 3])
    changes = {"change": "softcap(0.7) | alibi", "alibi_slopes": torch.tensor([0.3, 0.1])}
    assert torch.autograd.gradcheck(
        lambda *t: forward(*t, mask.tensor, None, False, 0.0, dropout, seed, **changes),
        (q, k, v),
        check_undefined_grad=False,
    )


@pytest.mark.parametrize("change", CHANGES)
def test_each_function_takes_them(change):
    q, k, v, *_ = inputs()
    changes = CHANGES[change]
    expected = softmax_attention(q, k, v, visible(masks.causal(N, N)), **formula(changes))[0]
    cu, other = (torch.arange(0, BATCH * N + 1, N) for _ in range(2))
    plan = flashmask.plan(masks.causal(N, N), q, k, v, softcap=changes.get("softcap"), alibi="alibi_slopes" in changes)
    flat = [t.flatten(0, 1) for t in (q, k, v)]
    arrays = {name: each.numpy() if isinstance(each, torch.Tensor) else each for name, each in changes.items()}
    slopes = {name: each for name, each in changes.items() if name == "alibi_slopes"}
    found = {
        "attention": flashmask.attention(q, k, v, masks.causal(N, N), **changes),
        "plan": flashmask.attention(q, k, v, plan=plan, **slopes),
        "bhsd": flashmask.attention(
            *(t.transpose(1, 2) for t in (q, k, v)), masks.causal(N, N), layout="bhsd", **changes
        ).transpose(1, 2),
        "flash_attn_func": flashmask.flash_attn_func(q, k, v, causal=True, **changes),
        "varlen": flashmask.varlen_attention(*flat, cu, cu, causal=True, **changes).view_as(expected),
        "flash_attn_varlen_func": flashmask.flash_attn_varlen_func(*flat, cu, other, causal=True, **changes),
        "numpy": torch.from_numpy(flashmask.attention(*(t.numpy() for t in (q, k, v)), masks.causal(N, N), **arrays)),
    }
    if not slopes:
        ends = torch.full((1, 1, N, 1), N, dtype=torch.int32)
        found["rows"] = flashmask.flashmask_attention(q, k, v, ends, causal=True, **changes)
    for name, o in found.items():
        torch.testing.assert_close(o.view_as(expected), expected.float(), msg=lambda text, name=name: f"{name}: {text}")


def test_sequences_of_other_lengths_than_their_keys_are_aligned_at_their_ends():
    q, k, v, *_ = (t[0] for t in inputs(25, 40))
    cu_q, cu_k = torch.tensor([0, 10, 25]), torch.tensor([0, 30, 40])
    o = flashmask.varlen_attention(q, k, v, cu_q, cu_k, alibi_slopes=SLOPES)
    for rows, columns in ((slice(0, 10), slice(0, 30)), (slice(10, 25), slice(30, 40))):
        count = rows.stop - rows.start, columns.stop - columns.start
        own = q[None, rows], k[None, columns], v[None, columns]
        expected = softmax_attention(*own, bias=aligned(*count))[0]
        torch.testing.assert_close(o[rows], expected[0].float())


@pytest.mark.parametrize("splits", [1, 3])
def test_decoding_caps_scores(splits):
    q, k, v, *_ = inputs(3, 60)
    o = flashmask.decode_attention(q, k, v, softcap=1.0, splits=splits)
    expected = softmax_attention(q, k, v, visible(masks.causal(3, 60)), softcap=1.0)[0]
    torch.testing.assert_close(o, expected)


def test_merged_parts_have_the_positions_of_the_whole():
    q, k, v, *_ = inputs()
    whole, lse = flashmask.attention(q, k, v, alibi_slopes=SLOPES, softcap=2.0, return_lse=True)
    parts, numbers = [], torch.arange(N)[None]
    for keys in (slice(0, 30), slice(30, N)):
        positions = {"query_positions": numbers, "key_positions": numbers[:, keys]}
        parts += flashmask.attention(
            q, k[:, keys], v[:, keys], alibi_slopes=SLOPES, softcap=2.0, return_lse=True, **positions
        )
    o, merged_lse = flashmask.merge(*parts)
    torch.testing.assert_close(o, whole)
    torch.testing.assert_close(merged_lse, lse)


@pytest.mark.parametrize("change", CHANGES)
def test_opcheck_passes(change):
    q, k, v, *_ = inputs()
    changes = CHANGES[change]
    leaves = [t.requires_grad_() for t in (q, k, v)]
    steps = [f"softcap({changes['softcap']})"] if "softcap" in changes else []
    given = {"change": " | ".join([*steps, *["alibi"] * ("alibi_slopes" in changes)])}
    tensors = {"alibi_slopes": changes.get("alibi_slopes")}
    arguments = (masks.causal(N, N).tensor, None, False, 0.3, 0.0, None)
    torch.library.opcheck(forward, (*leaves, *arguments), given | tensors)


def test_torch_compile_gives_the_same_and_compiles_twice_at_most():
    from torch._dynamo.testing import CompileCounterWithBackend

    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")

    def attend(q, k, v, slopes, mask):
        return flashmask.attention(q, k, v, mask, softcap=2.0, alibi_slopes=slopes * 2, return_lse=True)

    compiled = torch.compile(attend, fullgraph=True, backend=counter)
    for tokens in (40, 56, 72, 90):
        *tensors, grad_o, grad_lse = inputs(tokens, tokens)
        mask = masks.causal_document([tokens // 3, tokens - tokens // 3])
        expected, found = (
            value_and_gradients(
                lambda *t, f=f, mask=mask: f(*t, SLOPES, mask), tensors, grad_o, grad_lse, torch.float32
            )
            for f in (attend, compiled)
        )
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b)
    assert counter.frame_count <= 2
    torch._dynamo.reset()


def test_checkpointing_gives_the_same_bits():
    *tensors, grad_o, _ = inputs()

    def attend(q, k, v):
        return flashmask.attention(q, k, v, masks.causal(N, N), softcap=2.0, alibi_slopes=SLOPES).sin()

    runs = []
    for compute in (attend, lambda *t: checkpoint(attend, *t, use_reentrant=False)):
        leaves = [t.clone().requires_grad_() for t in tensors]
        runs.append(torch.autograd.grad(compute(*leaves), leaves, grad_o))
    for a, b in zip(*runs, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("value", [None, 0, 0.0])
def test_no_cap_is_none_or_zero(value):
    q, k, v, *_ = inputs()
    assert torch.equal(flashmask.attention(q, k, v, softcap=value), flashmask.attention(q, k, v))


REFUSED = {
    "negative": ({"softcap": -1.0}, ValueError, "softcap is -1.0; expected a number from 1e-30"),
    "nan": ({"softcap": float("nan")}, ValueError, "softcap is nan"),
    "text": ({"softcap": "50"}, TypeError, "softcap is str '50'; expected a number above 0"),
    "heads": (
        {"alibi_slopes": torch.ones(3)},
        ValueError,
        r"alibi_slopes has shape \[3\]; expected \[4\], one for each head of q, or \[2, 4\]",
    ),
    "dtype": (
        {"alibi_slopes": SLOPES.half()},
        TypeError,
        "alibi_slopes has dtype torch.float16; expected torch.float32",
    ),
    "kind": ({"alibi_slopes": [1.0]}, TypeError, "alibi_slopes is list .*; expected a torch tensor"),
    "device": ({"alibi_slopes": SLOPES.to("meta")}, ValueError, "alibi_slopes is on meta"),
    "learns": (
        {"alibi_slopes": SLOPES.clone().requires_grad_()},
        ValueError,
        r"alibi_slopes requires a gradient, and none is computed; pass alibi_slopes.detach\(\)",
    ),
    "positions alone": ({"query_positions": torch.arange(N)[None]}, ValueError, "positions are given without"),
    "one of two": (
        {"alibi_slopes": SLOPES, "key_positions": torch.arange(N)[None]},
        ValueError,
        "one of query_positions and key_positions is given; give both or none",
    ),
    "too few": (
        {"alibi_slopes": SLOPES, "query_positions": torch.zeros(1, 9), "key_positions": torch.zeros(1, N)},
        ValueError,
        r"query_positions has shape \[1, 9\]; expected \[1, ",
    ),
    "too far": (
        {
            "alibi_slopes": SLOPES,
            "query_positions": torch.arange(N)[None] + 2**24 + 1 - N,
            "key_positions": torch.arange(N)[None],
        },
        ValueError,
        r"query_positions: it holds 16777216.*between -2\^24 and 2\^24.*subtract the same number",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused_in_one_sentence(name):
    changes, error, message = REFUSED[name]
    q, k, v, *_ = inputs()
    with pytest.raises(error, match=message):
        flashmask.attention(q, k, v, masks.causal(N, N), **changes)


def test_a_plan_belongs_to_its_cap_and_its_bias():
    q, k, v, *_ = inputs()
    plan = flashmask.plan(masks.causal(N, N), q, k, v, softcap=50.0)
    with pytest.raises(
        ValueError, match=r"score is softcap\(30.0\); the plan was made for .softcap\(50.0\).: leave out"
    ):
        flashmask.attention(q, k, v, plan=plan, softcap=30.0)
    with pytest.raises(ValueError, match="alibi_slopes is given, and the plan was made without alibi=True"):
        flashmask.attention(q, k, v, plan=plan, alibi_slopes=SLOPES)


def test_reordered_plans_cap_scores_and_refuse_alibi():
    mask = masks.causal_document([20, N - 20], N)
    q, k, v, *_ = inputs()
    plan = flashmask.plan(mask, q, k, v, reorder=True, softcap=1.0)
    expected = flashmask.attention(q, k, v, mask, softcap=1.0)
    torch.testing.assert_close(flashmask.attention(q, k, v, plan=plan), expected)
    with pytest.raises(ValueError, match="reorder and a bias of scores were asked for together"):
        flashmask.plan(mask, q, k, v, reorder=True, alibi=True)


def test_numbers_of_arrays_are_checked():
    q, k, v, *_ = (t.numpy() for t in inputs())
    with pytest.raises(ValueError, match=r"alibi_slopes has shape \[3\]; expected \[4\], .* or \[2, 4\]"):
        flashmask.attention(q, k, v, masks.causal(N, N), alibi_slopes=np.ones(3, np.float32))
