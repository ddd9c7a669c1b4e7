# SPDX-License-Identifier: Apache-2.0
"""invariant=True: documents have the bits that they have alone, through every function that takes it."""

import numpy as np
import pytest
import torch
from document_bits import LENGTHS, both_ways, causal, documents_that_differ, in_a_layer, inputs, same_bits, under

import flashmask
from flashmask import RowIndices, masks
from flashmask.transformers._attention import flashmask_attention_forward

pytestmark = pytest.mark.kernels

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64], ids=str)
def test_documents_have_the_bits_that_they_have_alone(dtype):
    assert documents_that_differ(under(masks.causal_document(LENGTHS)), causal, dtype) == []


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_changed_scores_keep_the_promise(dtype):
    """Distances count tokens, not the places that tiles lie on."""
    changes = {"softcap": 2.0, "alibi_slopes": torch.tensor([0.5, 0.25, 0.125, 0.01])}
    packed = under(masks.causal_document(LENGTHS), **changes)
    assert documents_that_differ(packed, lambda n: under(masks.causal(n, n), **changes), dtype) == []


def test_they_have_others_without_it():
    mask = masks.causal_document(LENGTHS)
    assert documents_that_differ(under(mask, invariant=False), lambda n: under(masks.causal(n, n), invariant=False))


def test_every_form_of_a_mask_gives_them():
    mask = masks.causal_document(LENGTHS)
    rows = RowIndices(torch.from_numpy(mask.to_startend_row_indices()[0]), mask.to_startend_row_indices()[1])
    dense = torch.from_numpy(mask.to_dense())
    q, k, v, _ = inputs(sum(LENGTHS))
    plan = flashmask.plan(mask, q, k, v, invariant=True)
    assert plan.invariant
    assert not flashmask.plan(mask, q, k, v).invariant
    bits = flashmask.plan(mask, q, k, v, form="bits", invariant=True)

    def with_plan(plan):
        return lambda q, k, v: flashmask.attention(q, k, v, plan=plan, return_lse=True)

    for packed in (under(rows), under(dense), with_plan(plan), with_plan(bits)):
        assert documents_that_differ(packed, causal) == []


def test_the_other_functions_give_them():
    ends = torch.tensor([0, *LENGTHS]).cumsum(0).int()
    rows = torch.repeat_interleave(ends[1:], torch.tensor(LENGTHS)).int()[None, None, :, None]

    def of_row_indices(q, k, v):
        return flashmask.flashmask_attention(q, k, v, rows, causal=True, return_softmax_lse=True, invariant=True)

    def of_lengths(q, k, v):
        o, lse = flashmask.varlen_attention(q[0], k[0], v[0], ends, ends, causal=True, return_lse=True, invariant=True)
        return o[None], lse[None]

    def of_flash_attention(q, k, v):
        given = {"causal": True, "return_attn_probs": True, "invariant": True}
        o, lse, _ = flashmask.flash_attn_varlen_func(q[0], k[0], v[0], ends, ends, **given)
        return o[None], lse[None]

    def alone(_):
        return lambda q, k, v: flashmask.flash_attn_func(q, k, v, causal=True, return_attn_probs=True, invariant=True)[
            :2
        ]

    for packed in (of_row_indices, of_lengths, of_flash_attention):
        assert documents_that_differ(packed, causal) == []
    assert documents_that_differ(of_lengths, alone) == []


def test_numpy_arrays_have_them():
    q, k, v, _ = (each.numpy() for each in inputs(sum(LENGTHS)))
    packed = flashmask.attention(q, k, v, masks.causal_document(LENGTHS), invariant=True)
    own = [each[:, 100:357] for each in (q, k, v)]
    assert np.array_equal(packed[:, 100:357], flashmask.attention(*own, masks.causal(257, 257), invariant=True))
    with pytest.raises(ValueError, match="beside a plan that is not invariant"):
        flashmask.attention(*own, plan=flashmask.plan(masks.causal(257, 257), *own), invariant=True)


def test_a_layer_of_transformers_gives_them():
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    from flashmask.transformers import register

    register()
    register("flashmask-invariant", invariant=True)
    of_call = {"function": flashmask_attention_forward, "invariant": True}
    of_name = {"function": ALL_ATTENTION_FUNCTIONS["flashmask-invariant"]}
    for given in (of_call, of_name):
        assert (
            documents_that_differ(in_a_layer(LENGTHS, **given), lambda n, given=given: in_a_layer([n], **given)) == []
        )


def test_a_compiled_call_gives_them():
    mask = masks.causal_document(LENGTHS)
    packed = torch.compile(under(mask), backend="aot_eager", fullgraph=True)
    assert documents_that_differ(packed, causal) == []


def test_any_number_of_threads_gives_them():
    before = torch.get_num_threads()
    try:
        given = inputs(sum(LENGTHS))
        found = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(both_ways(under(masks.causal_document(LENGTHS)), *given))
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(same_bits(a, b) for a, b in zip(found[0], other, strict=True))


def test_it_differs_from_the_grid_by_rounding_alone():
    given = inputs(sum(LENGTHS))
    mask = masks.causal_document(LENGTHS)
    for a, b in zip(both_ways(under(mask), *given), both_ways(under(mask, invariant=False), *given), strict=True):
        torch.testing.assert_close(a, b, atol=2e-5, rtol=2e-5)


def test_what_no_document_has_alone_is_refused():
    q, k, v, _ = inputs(300)
    mask = masks.causal_document([100, 200])
    with pytest.raises(NotImplementedError, match="the gradient of a sink is a sum over the whole call"):
        flashmask.attention(q, k, v, mask, sinks=torch.zeros(4, requires_grad=True), invariant=True)
    flashmask.attention(q, k, v, mask, sinks=torch.zeros(4), invariant=True)
    with pytest.raises(NotImplementedError, match="invariant and reorder were asked for together"):
        flashmask.plan(mask, q, k, v, reorder=True, invariant=True)
    blocks = torch.ones(1, 1, 3, 3, dtype=torch.int32).tril()
    with pytest.raises(NotImplementedError, match="invariant and a block map beside intervals"):
        flashmask.flashmask_attention(q, k, v, block_mask=blocks, causal=True, invariant=True)
    rows = RowIndices(torch.tensor([100] * 100 + [300] * 200, dtype=torch.int32)[None, None, :, None], True)
    with pytest.raises(NotImplementedError, match="a document begins at row 100; let all begin at multiples of 8"):
        flashmask.flashmask_attention(q, k, v, rows.startend_row_indices, causal=True, dropout=0.1, invariant=True)
    with pytest.raises(TypeError, match="invariant"):
        flashmask.attention(q, k, v, mask, invariant=1)
