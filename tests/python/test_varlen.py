# SPDX-License-Identifier: Apache-2.0
"""varlen_attention(): each sequence alone, by the formula."""

import inspect

import pytest
import torch
from attention_oracle import assert_within_bound, random_inputs, softmax_attention, value_and_gradients
from bias_oracle import gradients

import flashmask

pytestmark = pytest.mark.kernels

SAME = [20, 0, 1, 33, 16]
KEYS = [25, 4, 1, 12, 40]


def cumulative(lengths, dtype=torch.int32):
    return torch.tensor([0, *lengths]).cumsum(0).to(dtype)


def one_sequence(q, k, v, causal, window):
    own = torch.arange(q.shape[0])[:, None] + k.shape[0] - q.shape[0]
    j = torch.arange(k.shape[0])[None]
    left, right = window
    seen = torch.ones(q.shape[0], k.shape[0], dtype=torch.bool)
    if left >= 0:
        seen &= j >= own - left
    if causal or right >= 0:
        seen &= j <= own + (0 if causal else right)
    o, lse = softmax_attention(q[None], k[None], v[None], seen[None, None])
    return o[0], lse[0]


def formula(q, k, v, query_lengths, key_lengths, causal, window):
    """Sequence by sequence; what no sequence holds sees nothing."""
    outputs = [
        one_sequence(
            *(t.split(n)[i] for t, n in ((q, query_lengths), (k, key_lengths), (v, key_lengths))), causal, window
        )
        for i in range(len(query_lengths) - 1)
    ]
    padding = query_lengths[-1]
    o = torch.cat([o for o, _ in outputs] + [q.new_zeros(padding, q.shape[1], v.shape[2])])
    lse = torch.cat([lse for _, lse in outputs] + [q.new_full((q.shape[1], padding), -torch.inf)], dim=1)
    return o, lse


@pytest.mark.parametrize("padding", [0, 6])
@pytest.mark.parametrize("window", [(-1, -1), (3, 2), (0, 0), (5, -1), (-1, 4), (2**31 - 1, 2**31 - 1)])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("keys", [SAME, KEYS])
def test_agrees_with_each_sequence_alone(keys, causal, window, padding, dtype=torch.float32):
    lengths = [*SAME, padding], [*keys, padding]
    q, k, v, grad_o, grad_lse = (
        t[0] for t in random_inputs(1, sum(lengths[0]), sum(lengths[1]), 4, 2, 16, 8, seed=padding)
    )
    cu = [cumulative(n[:-1]) for n in lengths]

    def ours(q, k, v):
        return flashmask.varlen_attention(q, k, v, *cu, causal=causal, window_size=window, return_lse=True)

    def expected(q, k, v):
        return formula(q, k, v, *lengths, causal, window)

    inputs = [t.to(dtype) for t in (q, k, v)]
    run = [(expected, torch.float64), (expected, dtype), (ours, dtype)]
    results = [value_and_gradients(f, inputs, grad_o.to(dtype), grad_lse, kind) for f, kind in run]
    assert_within_bound(results[2], results[0], results[1], dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_agrees_in_half_precision(dtype):
    test_agrees_with_each_sequence_alone(KEYS, True, (-1, -1), 3, dtype)


def tensors():
    q, k, v, *_ = random_inputs(1, 70, 70, 4, 2, 16, 16)
    return q[0], k[0], v[0]


def test_takes_the_arguments_of_the_function_people_call():
    names = list(inspect.signature(flashmask.varlen_attention).parameters)
    assert names[:13] == [
        "q",
        "k",
        "v",
        "cu_seqlens_q",
        "cu_seqlens_k",
        "max_seqlen_q",
        "max_seqlen_k",
        "dropout_p",
        "softmax_scale",
        "causal",
        "window_size",
        "deterministic",
        "return_attn_probs",
    ]
    cu = cumulative(SAME, torch.int64)
    o, lse, probabilities = flashmask.varlen_attention(*tensors(), cu, cu, 33, 33, return_attn_probs=True)
    assert o.shape == (70, 4, 16)
    assert lse.shape == (4, 70)
    assert lse.dtype == torch.float32
    assert probabilities is None
    assert torch.equal(flashmask.varlen_attention(*tensors(), cu, cu), o)
    assert not torch.equal(flashmask.varlen_attention(*tensors(), cu, cu, softmax_scale=1.0), o)


def test_merges_as_attention_does():
    q, k, v = tensors()
    cu, none = cumulative([40, 30]), torch.tensor([0, 30, 30])
    whole = flashmask.varlen_attention(q, k, v, cu, cu, return_lse=True)
    first = flashmask.varlen_attention(q, k[:30], v[:30], cu, none, return_lse=True)
    rest = flashmask.varlen_attention(q, k[30:], v[30:], cu, cumulative([10, 30]), return_lse=True)
    for a, b in zip(flashmask.merge(*first, *rest), whole, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("rows", [1, 70])
def test_a_bias_is_that_of_the_whole_batch_and_learns(heads, rows):
    q, k, v = tensors()
    cu = cumulative(SAME)
    bias = torch.randn(heads, rows, 70)

    def ours(q, k, v, bias):
        return flashmask.varlen_attention(q, k, v, cu, cu, causal=True, bias=bias, return_lse=True)

    def by_formula(q, k, v, bias):
        mask = torch.from_numpy(flashmask.masks.causal_document(SAME).to_dense())
        whole = bias.expand(4, 70, 70)[None]
        o, lse = softmax_attention(q[None], k[None], v[None], mask, bias=whole)
        return o[0], lse[0]

    found, expected = (
        gradients(f, [t.to(kind) for t in (q, k, v, bias)], torch.ones(70, 4, 16), torch.ones(4, 70))
        for f, kind in ((ours, torch.float32), (by_formula, torch.float64))
    )
    for each, other in zip(found, expected, strict=True):
        torch.testing.assert_close(each.double(), other, atol=2e-5, rtol=2e-5)


def written_by_numpy(lengths, values):
    lengths.numpy()[:] = values


def written_as_data(lengths, values):
    lengths.data.copy_(torch.tensor(values))


@pytest.mark.parametrize("write", [written_by_numpy, written_as_data])
def test_lengths_are_read_in_every_call(write):
    x, slopes = torch.randn(20, 2, 8), torch.tensor([1.0, 0.5])
    cu_q, cu_k = (torch.tensor([0, 5, 20], dtype=torch.int32) for _ in range(2))

    def call(*cu):
        return flashmask.varlen_attention(x, x, x, *cu, causal=True, alibi_slopes=slopes)

    call(cu_q, cu_k)
    for cu in (cu_q, cu_k):
        write(cu, [0, 12, 20])
        assert torch.equal(call(cu_q, cu_k), call(cu_q.clone(), cu_k.clone()))


def test_dropout_repeats_with_the_seed():
    cu = cumulative(SAME)
    torch.manual_seed(1)
    first = flashmask.varlen_attention(*tensors(), cu, cu, dropout_p=0.5)
    torch.manual_seed(1)
    assert torch.equal(flashmask.varlen_attention(*tensors(), cu, cu, dropout_p=0.5), first)
    assert not torch.equal(flashmask.varlen_attention(*tensors(), cu, cu, dropout_p=0.5), first)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            {"q": torch.zeros(1, 70, 4, 16)},
            ValueError,
            r"q has shape \[1, 70, 4, 16\]; expected \(total, heads, head dim\)",
        ),
        ({"k": torch.zeros(70, 3, 16), "v": torch.zeros(70, 3, 16)}, ValueError, "q has 4 heads; expected a multiple"),
        ({"q": 3}, TypeError, "q is int 3"),
        ({"cu_seqlens_q": cumulative([70])}, ValueError, "cu_seqlens_q has 2 values and cu_seqlens_k 6"),
        ({"cu_seqlens_q": [0, 70]}, TypeError, "cu_seqlens_q is list"),
        ({"cu_seqlens_k": torch.zeros(6)}, TypeError, "cu_seqlens_k holds torch.float32"),
        ({"cu_seqlens_q": torch.tensor([0, 30, 20, 40, 50, 70])}, ValueError, "cu_seqlens_q .* never fall"),
        ({"cu_seqlens_q": torch.tensor([5, 30, 40, 40, 50, 70])}, ValueError, "cu_seqlens_q .* begin with 0"),
        (
            {"cu_seqlens_k": torch.tensor([0, 30, 40, 40, 50, 71])},
            ValueError,
            "cu_seqlens_k is .* 71.; expected .* end at 70 tokens at most",
        ),
        ({"dropout_p": 2}, ValueError, "dropout_p is 2"),
        ({"window_size": (1, -3)}, ValueError, r"window_size\[1\] is -3"),
        ({"causal": None}, TypeError, "causal is NoneType"),
        (
            {"bias": torch.zeros(4, 69, 70)},
            ValueError,
            r"bias has shape \[4, 69, 70\]; expected \[1 or 4, 1 or 70, 70\]",
        ),
        ({"bias": [0.0]}, TypeError, "bias is list"),
        (
            {"bias": torch.zeros(1, 1, 70), "alibi_slopes": torch.ones(4)},
            ValueError,
            "alibi_slopes and bias are given together",
        ),
    ],
)
def test_refuses_bad_arguments(arguments, error, message):
    q, k, v = tensors()
    cu = cumulative(SAME)
    with pytest.raises(error, match=message):
        flashmask.varlen_attention(**{"q": q, "k": k, "v": v, "cu_seqlens_q": cu, "cu_seqlens_k": cu, **arguments})
