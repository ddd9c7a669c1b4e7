# SPDX-License-Identifier: Apache-2.0
"""Tensors on the device "meta", which have shapes and no values: every call says what comes out, and no more."""

import pytest
import torch
from attention_oracle import random_inputs

import flashmask
from flashmask import masks

N = 70
DOCUMENTS = [0, 30, N]


def rows_of(device, vectors=1):
    return torch.full((1, 1, N, vectors), N, dtype=torch.int32, device=device)


def booleans(device, *lead):
    return torch.ones(*lead, N, N, dtype=torch.bool, device=device)


# What attention() takes for a mask, made on a device.
MASKS = {
    "none": lambda device: None,
    "intervals": lambda device: masks.causal_document([30, 40], N),
    "bits": lambda device: masks.dilated_window(N, N, 3, 3, 2),
    "heads": lambda device: masks.stack_heads([masks.causal(N, N), masks.full(N, N)]),
    "block map": lambda device: masks.causal(N, N) & flashmask.BlockMap((N, N), 32, torch.ones(3, 3, dtype=torch.bool)),
    "row indices": lambda device: flashmask.RowIndices(rows_of(device), causal=True),
    "cu_seqlens": lambda device: masks.from_cu_seqlens(torch.tensor(DOCUMENTS, device=device), N),
    "document ids": lambda device: masks.from_document_ids(torch.zeros(N, dtype=torch.int64, device=device)),
    "position ids": lambda device: masks.from_position_ids(torch.zeros(N, dtype=torch.int64, device=device)),
    "tree": lambda device: masks.from_tree(*torch.tensor([[-1], [N]], device=device), N),
    "booleans": booleans,
    "booleans of heads": lambda device: booleans(device, 1, 4),
}


def of_the_papers(**options):
    """flashmask_attention() with options, of which functions of a device are called."""

    def call(q, k, v):
        given = {name: value(q.device) if callable(value) else value for name, value in options.items()}
        return flashmask.flashmask_attention(q, k, v, return_softmax_lse=True, **given)

    return call


def varlen(**options):
    def call(q, k, v):
        cu_seqlens = torch.tensor(DOCUMENTS, dtype=torch.int32, device=q.device)
        return flashmask.varlen_attention(q[0], k[0], v[0], cu_seqlens, cu_seqlens, return_lse=True, **options)

    return call


def with_plan(q, k, v):
    plan = flashmask.plan(masks.causal(N, N), q, k, v)
    return flashmask.attention(q, k, v, plan=plan, return_lse=True)


def heads_first(q, k, v):
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    return flashmask.attention(q, k, v, masks.causal(N, N), layout="bhsd", return_lse=True)


def merged(q, k, v):
    parts = (k[:, :30], v[:, :30]), (k[:, 30:], v[:, 30:])
    return flashmask.merge(*(t for part in parts for t in flashmask.attention(q, *part, return_lse=True)))


CALLS = {
    **{
        f"attention, {name}": lambda q, k, v, make=make: flashmask.attention(q, k, v, make(q.device), return_lse=True)
        for name, make in MASKS.items()
    },
    "attention, plan": with_plan,
    "attention, bhsd": heads_first,
    "merge": merged,
    "decode_attention": lambda q, k, v: flashmask.decode_attention(q, k, v, splits=3, return_lse=True),
    "decode_attention, one request": lambda q, k, v: flashmask.decode_attention(q[:1], k[:1], v[:1], return_lse=True),
    "flashmask_attention": of_the_papers(),
    "flashmask_attention, rows": of_the_papers(startend_row_indices=rows_of, causal=True),
    "flashmask_attention, 4 vectors": of_the_papers(startend_row_indices=lambda device: rows_of(device, 4)),
    "flashmask_attention, window": of_the_papers(window_size=5),
    "flashmask_attention, dropout": of_the_papers(causal=True, dropout=0.1),
    "flashmask_attention, blocks": of_the_papers(
        startend_row_indices=rows_of,
        causal=True,
        block_mask=lambda device: torch.ones(1, 1, 1, 1, dtype=torch.int32, device=device),
    ),
    "varlen_attention": varlen(causal=True),
    "varlen_attention, window and dropout": varlen(window_size=(4, 0), dropout_p=0.1),
}


def told(tensors):
    return [(tuple(t.shape), t.dtype, t.stride()) for t in tensors]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", CALLS)
def test_meta_tensors_get_the_shapes_of_real_ones(name, dtype):
    found = []
    for device in ("cpu", "meta"):
        q, k, v = (t.to(device, dtype).requires_grad_() for t in random_inputs(2, N, N, 4, 2, 16, 8)[:3])
        outputs = CALLS[name](q, k, v)
        gradients = torch.autograd.grad([t.sum() for t in outputs], (q, k, v))
        with torch.no_grad():
            plain = CALLS[name](q, k, v)
        assert {t.device.type for t in (*outputs, *gradients, *plain)} == {device}
        found.append((told(outputs), told(gradients), told(plain)))
    assert found[0] == found[1]


def test_values_are_asked_for_beside_values():
    q, k, v = random_inputs(2, N, N, 4, 2, 16, 8)[:3]
    with pytest.raises(ValueError, match="mask is on meta; expected cpu, the device of q"):
        flashmask.flashmask_attention(q, k, v, rows_of("meta"), causal=True)
    with pytest.raises(ValueError, match="k is on meta; expected cpu, the device of q"):
        flashmask.attention(q, k.to("meta"), v)
    for mask in (flashmask.RowIndices(rows_of("meta"), causal=True), booleans("meta")):
        with pytest.raises(ValueError, match="mask is on meta, and has no values that a plan could be made of"):
            flashmask.plan(mask, q, k, v)


def test_dtypes_that_differ_are_refused_on_meta_too():
    q, k, v = (t.to("meta") for t in random_inputs(2, N, N, 4, 2, 16, 8)[:3])
    with pytest.raises(TypeError, match="query, key and value have dtypes"):
        flashmask.flashmask_attention(q, k.bfloat16(), v)
