# SPDX-License-Identifier: Apache-2.0
"""Calls as other libraries take them: what was given, what is expected, and what to call instead."""

import numpy as np
import pytest
import torch
from torch.autograd import forward_ad
from torch.nn.attention.flex_attention import create_block_mask

import flashmask
from flashmask import masks

Q = torch.randn(1, 8, 2, 8)
MASK = masks.causal(8, 8)
FLOATS = torch.zeros(8, 8).masked_fill(torch.ones(8, 8).triu(1).bool(), -torch.inf)


def attention(mask=None, q=Q, **arguments):
    return flashmask.attention(q, q, q, mask, **arguments)


def block_mask():
    return create_block_mask(lambda b, h, i, j: i >= j, None, None, 8, 8, device="cpu")


def nested():
    return torch.nested.nested_tensor([torch.randn(n, 2, 8) for n in (4, 3)], layout=torch.jagged)


NESTED = r"q is a nested tensor; expected a dense one: hand sequences of different lengths to flashmask\.varlen_att"
SPARSE = r" is a tensor of layout torch\.sparse_coo; expected a dense one: pass {0}\.to_dense\(\)$"
BLOCK_MASK = (
    r"mask is a BlockMask of FlexAttention; expected a Mask, .* pass flashmask\.masks\.from_block_mask\(mask\)$"
)
FLOAT_MASK = r"mask is {0} of {1} \[8, 8\]; expected booleans, True = visible: .* pass mask == 0$"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: attention(causal=True), r"does not take causal, .* pass mask=flashmask\.masks\.causal\("),
        (lambda: attention(is_causal=True), r"does not take is_causal, which is bool True; pass mask=flashmask\.masks"),
        (lambda: attention(attn_mask=FLOATS), r"does not take attn_mask, .* \[8, 8\]; pass it as mask"),
        (lambda: attention(dropout_p=0.1), r"does not take dropout_p, which is float 0\.1; pass it as dropout$"),
        (lambda: attention(softmax_scale=0.1), "does not take softmax_scale, which is float 0.1; pass it as scale"),
        (
            lambda: attention(score_mod=attention),
            "does not take score_mod, .*; pass it as score",
        ),
        (lambda: attention(maks=MASK), "does not take maks, .* its arguments are q, k, v, mask, "),
        (lambda: attention(block_mask()), BLOCK_MASK),
        (lambda: flashmask.plan(block_mask(), Q, Q), BLOCK_MASK),
        (lambda: attention(FLOATS), FLOAT_MASK.format("Tensor", "torch.float32")),
        (lambda: attention(FLOATS.numpy(), Q.numpy()), FLOAT_MASK.format("ndarray", "float32")),
        (lambda: flashmask.plan(FLOATS, Q, Q), FLOAT_MASK.format("Tensor", "torch.float32")),
        (lambda: attention(np.array([["x"]])), "mask holds <U1 values; expected booleans"),
        (lambda: attention(FLOATS.bool().to_sparse()), "mask" + SPARSE.format("mask")),
        (lambda: masks.from_dense(FLOATS.bool().to_sparse()), "visible" + SPARSE.format("visible")),
        (lambda: attention(q=nested()), NESTED),
        (lambda: attention(q=torch.nested.nested_tensor([torch.randn(4, 2, 8)] * 2)), NESTED),
        (lambda: flashmask.plan(None, nested(), nested()), NESTED),
        (lambda: flashmask.decode_attention(*[nested()] * 3), NESTED),
        (lambda: flashmask.varlen_attention(*[nested()] * 3, torch.tensor([0, 4]), torch.tensor([0, 4])), NESTED),
        (lambda: flashmask.flashmask_attention(*[nested()] * 3), NESTED.replace("q is", "query is")),
        (lambda: attention(q=Q.to_sparse()), "q" + SPARSE.format("q")),
        (lambda: flashmask.flashmask_attention(*[Q.to_sparse()] * 3), "query" + SPARSE.format("query")),
        (lambda: flashmask.plan(Q, Q, Q, MASK), r"v is a Mask; plan\(\) takes the mask first: plan\(mask, q, k, v\)"),
        (lambda: flashmask.plan(Q, Q, MASK), "k is a Mask; plan"),
        (lambda: flashmask.plan(Q, Q, Q, MASK.to_dense()[0, 0]), r"mask is Tensor of torch\.float32 \[1, 8, 2, 8\]; "),
        (
            lambda: attention(sinks=torch.zeros(2).double()),
            r"sinks has dtype torch\.float64; expected torch\.float32, that of q$",
        ),
        (
            lambda: flashmask.decode_attention(Q, Q, Q, sinks=torch.zeros(2).double()),
            r"sinks holds torch\.float64 values; expected torch\.float32, the dtype of q$",
        ),
    ],
)
def test_arguments_of_others_are_refused_with_what_to_pass(call, message):
    with pytest.raises(TypeError, match=message):
        call()


def test_forward_mode_of_merge_is_refused():
    def call(q):
        return flashmask.merge(q, *LSE_AND_O)[0]

    with (
        forward_ad.dual_level(),
        pytest.raises(
            NotImplementedError, match=r"forward-mode derivatives \(torch\.autograd\.forward_ad\); use torch"
        ),
    ):
        call(forward_ad.make_dual(Q, Q))
    with pytest.raises(NotImplementedError, match=r"does not support torch\.func\.grad and its kin"):
        torch.func.jvp(call, (Q,), (Q,))


LSE_AND_O = torch.zeros(1, 2, 8), Q, torch.zeros(1, 2, 8)


def test_block_masks_and_float_masks_do_what_their_refusals_say():
    expected = attention(MASK)
    flex = block_mask()
    assert torch.equal(attention(masks.from_block_mask(flex)), expected)
    assert torch.equal(attention(FLOATS == 0), expected)


@pytest.mark.parametrize("shape", [(0, 8, 2, 8), (1, 0, 2, 8)])
def test_no_batch_and_no_tokens_are_legal(shape):
    q = torch.zeros(shape, requires_grad=True)
    flashmask.attention(q, q, q).sum().backward()
    assert q.grad.shape == shape
    assert flashmask.attention(*[np.zeros(shape, np.float32)] * 3).shape == shape
