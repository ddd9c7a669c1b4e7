# SPDX-License-Identifier: Apache-2.0
"""invariant=True on a GPU: documents have the bits that they have alone, through every function that takes it."""

import pytest
import torch
from cuda_device import needs_gpu
from document_bits import both_ways, causal, documents_that_differ, in_a_layer, inputs, same_bits, under

import flashmask
from flashmask import RowIndices, masks
from flashmask.transformers._attention import flashmask_attention_forward

pytestmark = needs_gpu

LENGTHS = [100, 257, 64, 1, 1190]
TOKENS = sum(LENGTHS)


def differing(packed, alone=causal, dtype=torch.bfloat16, dim=64):
    return documents_that_differ(packed, alone, dtype, LENGTHS, device="cuda", dim=dim)


def ends_of(lengths):
    return torch.tensor([0, *lengths], device="cuda").cumsum(0).int()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("dim", [24, 64, 80, 128, 192, 256, 512])
def test_documents_have_the_bits_that_they_have_alone(dim, dtype):
    assert differing(under(masks.causal_document(LENGTHS)), dtype=dtype, dim=dim) == []


def test_they_have_others_without_it():
    mask = masks.causal_document(LENGTHS)
    without = {"invariant": False, "deterministic": True}
    assert differing(under(mask, **without), lambda n: under(masks.causal(n, n), **without))


def test_every_form_of_a_mask_gives_them():
    mask = masks.causal_document(LENGTHS)
    on_device = masks.from_cu_seqlens(ends_of(LENGTHS), TOKENS)
    q, k, v, _ = inputs(TOKENS, torch.bfloat16, device="cuda", dim=64)
    plan = flashmask.plan(mask, q, k, v, invariant=True)
    assert isinstance(on_device, RowIndices)
    for packed in (under(on_device), lambda q, k, v: flashmask.attention(q, k, v, plan=plan, return_lse=True)):
        assert differing(packed) == []

    def in_bits(mask):
        def attend(q, k, v):
            plan = flashmask.plan(mask, q, k, v, form="bits", invariant=True)
            return flashmask.attention(q, k, v, plan=plan, return_lse=True)

        return attend

    assert differing(in_bits(mask), lambda n: in_bits(masks.causal(n, n))) == []


def test_softcap_and_sinks_keep_the_promise():
    changes = {"softcap": 2.0, "sinks": torch.tensor([0.5, -1.0, 2.0, 0.0], device="cuda")}
    packed = under(masks.causal_document(LENGTHS), **changes)
    assert differing(packed, lambda n: under(masks.causal(n, n), **changes)) == []


def test_the_other_functions_give_them():
    ends = ends_of(LENGTHS)
    rows = masks.from_cu_seqlens(ends, TOKENS).startend_row_indices

    def of_row_indices(q, k, v):
        return flashmask.flashmask_attention(q, k, v, rows, causal=True, return_softmax_lse=True, invariant=True)

    def of_lengths(q, k, v):
        o, lse = flashmask.varlen_attention(q[0], k[0], v[0], ends, ends, causal=True, return_lse=True, invariant=True)
        return o[None], lse[None]

    for packed in (of_row_indices, of_lengths):
        assert differing(packed) == []


def test_a_layer_of_transformers_gives_them():
    def attend(lengths):
        return in_a_layer(lengths, flashmask_attention_forward, "cuda", invariant=True)

    from flashmask.transformers import register

    register()
    assert differing(attend(LENGTHS), lambda n: attend([n])) == []


def test_a_compiled_call_and_a_graph_give_them():
    mask = masks.causal_document(LENGTHS)
    assert differing(torch.compile(under(mask), fullgraph=True)) == []
    q, k, v, _ = inputs(TOKENS, torch.bfloat16, device="cuda", dim=64)
    expected = flashmask.attention(q, k, v, mask, invariant=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o = flashmask.attention(q, k, v, mask, invariant=True)
    o.zero_()
    graph.replay()
    assert same_bits(o, expected)


def test_documents_found_on_the_gpu_have_them_without_a_wait():
    ends = ends_of(LENGTHS)

    def packed(q, k, v):
        torch.cuda.set_sync_debug_mode("error")
        try:
            return under(masks.from_cu_seqlens(ends, TOKENS))(q, k, v)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    for dim in (64, 128, 256, 512):
        assert differing(packed, dim=dim) == []


def test_a_graph_gives_them_to_documents_that_change():
    ends, others = ends_of(LENGTHS), [64, 900, 3, 545, 100]
    q, k, v, _ = inputs(TOKENS, torch.bfloat16, device="cuda", dim=128)

    def attend():
        return flashmask.attention(q, k, v, masks.from_cu_seqlens(ends, TOKENS), invariant=True)

    attend()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o = attend()
    for lengths in (LENGTHS, others):
        ends.copy_(ends_of(lengths))
        graph.replay()
        assert same_bits(o, flashmask.attention(q, k, v, masks.causal_document(lengths, TOKENS), invariant=True))


def test_it_differs_from_the_grid_by_rounding_alone():
    given = inputs(TOKENS, torch.bfloat16, device="cuda", dim=128)
    mask = masks.causal_document(LENGTHS)
    for a, b in zip(both_ways(under(mask), *given), both_ways(under(mask, invariant=False), *given), strict=True):
        torch.testing.assert_close(a, b, atol=3e-2, rtol=3e-2)


def test_what_lies_beside_a_document_changes_nothing():
    q, k, v, grad = inputs(TOKENS, torch.bfloat16, device="cuda", dim=128)
    spoiled = [each.clone() for each in (q, k, v, grad)]
    for each in spoiled:
        each[:, :100] = 1e4
        each[:, -7:] = -1e4
    mask = masks.causal_document([100, TOKENS - 107, 7])
    for a, b in zip(both_ways(under(mask), q, k, v, grad), both_ways(under(mask), *spoiled), strict=True):
        assert same_bits(a[:, 100:-7], b[:, 100:-7])


def test_what_no_document_has_alone_is_refused():
    q, k, v, _ = inputs(300, torch.bfloat16, device="cuda", dim=64)
    mask = masks.causal_document([100, 200])
    with pytest.raises(NotImplementedError, match="the gradient of a sink is a sum over the whole call"):
        flashmask.attention(q, k, v, mask, sinks=torch.zeros(4, device="cuda", requires_grad=True), invariant=True)
    with pytest.raises(NotImplementedError, match="invariant and reorder were asked for together"):
        flashmask.plan(mask, q, k, v, reorder=True, invariant=True)
    with pytest.raises(ValueError, match="invariant and a bias of scores were asked for together on cuda:0"):
        flashmask.attention(q, k, v, mask, alibi_slopes=torch.ones(4, device="cuda"), invariant=True)
    rows = masks.from_cu_seqlens(ends_of([100, 200]), 300).startend_row_indices
    with pytest.raises(ValueError, match="invariant and dropout were asked for together on cuda:0"):
        flashmask.flashmask_attention(q, k, v, rows, causal=True, dropout=0.1, invariant=True)
    blocks = torch.ones(1, 1, 3, 3, dtype=torch.int32, device="cuda").tril()
    with pytest.raises(NotImplementedError, match="invariant and a block map beside intervals"):
        flashmask.flashmask_attention(q, k, v, block_mask=blocks, causal=True, invariant=True)
    seen = torch.ones(1, 1, 300, 300, dtype=torch.bool, device="cuda").tril()
    with pytest.raises(NotImplementedError, match="invariant=True came beside booleans on cuda:0"):
        flashmask.attention(q, k, v, seen, invariant=True)
    with (
        pytest.raises(RuntimeError, match="needs to know at most how many documents"),
        torch.cuda.graph(torch.cuda.CUDAGraph()),
    ):
        flashmask.flashmask_attention(q, k, v, rows, causal=True, invariant=True)
