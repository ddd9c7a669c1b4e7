# SPDX-License-Identifier: Apache-2.0
"""masks.from_mask_mod() and from_block_mask() on a GPU: the masks that the same predicates make on the CPU."""

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask

import flashmask
from flashmask import masks

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")

N = 300
PREDICATES = {
    "ranges of rows": (lambda ids, h: lambda b, _, q, kv: (ids[b, q] == ids[b, kv]) & (q >= kv), True),
    "ranges per head": (lambda ids, h: lambda b, head, q, kv: (q - kv).abs() < h[head], True),
    "ranges of columns": (lambda ids, h: lambda b, _, q, kv: ((q - kv).abs() < 9) | ((q - kv).abs() == 40), False),
    "pairs": (lambda ids, h: lambda b, _, q, kv: (q * kv) % 3 == 0, False),
    "pairs in two ranges": (lambda ids, h: lambda b, _, q, kv: (q - kv) * 0.5 >= 3, True),
    "pairs without symbols": (lambda ids, h: lambda b, _, q, kv: torch.stack([q, kv]).sum() > 250, True),
}


def of(name, device):
    make, _ = PREDICATES[name]
    return make((torch.arange(N) // torch.tensor([[70], [45]])).to(device), torch.tensor([3, 50, 2]).to(device))


@pytest.mark.parametrize("name", PREDICATES)
def test_a_predicate_makes_the_same_mask_on_the_device(name):
    made = masks.from_mask_mod(of(name, "cuda"), 2, 3, N, N, device="cuda")
    assert isinstance(made, flashmask.RowIndices) == PREDICATES[name][1]
    if isinstance(made, flashmask.RowIndices):
        assert made.startend_row_indices.device == torch.device("cuda", torch.cuda.current_device())
        made = made.to_mask()
    assert made == masks.from_mask_mod(of(name, "cpu"), 2, 3, N, N)


@pytest.mark.parametrize("name", PREDICATES)
def test_a_block_mask_makes_the_same_mask_on_the_device(name):
    made = masks.from_block_mask(create_block_mask(of(name, "cuda"), 2, 3, N, N, device="cuda"))
    made = made.to_mask() if isinstance(made, flashmask.RowIndices) else made
    assert made == masks.from_block_mask(create_block_mask(of(name, "cpu"), 2, 3, N, N, device="cpu"))


def test_captured_tensors_on_the_cpu_are_refused():
    with pytest.raises(ValueError, match="a captured tensor is on cpu, the mask on cuda:0; move it there"):
        masks.from_mask_mod(of("ranges of rows", "cpu"), 2, 3, N, N, device="cuda")
