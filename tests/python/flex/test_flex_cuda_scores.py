# SPDX-License-Identifier: Apache-2.0
"""flex_attention() on a GPU: score_mods and masks in bfloat16 against the dense formula in double precision."""

import pytest
import torch
from cuda_device import needs_gpu
from flex_oracle import flex_formula, tensors
from score_mods import SERVED, N
from torch.nn.attention.flex_attention import create_block_mask

from flashmask import flex_attention, masks

pytestmark = needs_gpu


def causal(b, h, i, j):
    return i >= j


def copies(captured, frozen, device, dtype):
    made = {}
    for name, each in captured.items():
        learns = each.is_floating_point() and name not in frozen
        made[name] = (each.to(device, dtype) if each.is_floating_point() else each.to(device)).requires_grad_(learns)
    return made


def assert_near(found, expected, bound=0.03):
    error = (found.cpu().double() - expected).nan_to_num().abs().max()
    assert error <= bound * max(1.0, expected.nan_to_num(posinf=0, neginf=0).abs().max())


@pytest.mark.parametrize("masked", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("name", SERVED)
def test_score_mods(name, masked):
    torch.manual_seed(0)
    case = SERVED[name]
    captured = case.captured()
    ours = copies(captured, case.frozen, "cuda", torch.float32)
    exact = copies(captured, case.frozen, "cpu", torch.float64)
    doubles = [each.detach().bfloat16().double().requires_grad_() for each in tensors(dim=64)]
    qkv = [each.detach().bfloat16().cuda().requires_grad_() for each in doubles]
    mask = create_block_mask(causal, None, None, N, N, device="cuda") if masked else None
    visible = torch.ones(N, N, dtype=torch.bool).tril() if masked else None
    o, lse = flex_attention(*qkv, case.make(ours), mask, return_lse=True)
    expected = flex_formula(*doubles, case.make(exact), visible)
    assert_near(o, expected[0])
    assert_near(lse, expected[1])
    names = [name for name, each in exact.items() if each.requires_grad]
    found = torch.autograd.grad(o.float().square().sum(), [*qkv, *(ours[each] for each in names)], allow_unused=True)
    leaves = [*doubles, *(exact[each] for each in names)]
    for a, b in zip(found, torch.autograd.grad(expected[0].square().sum(), leaves, allow_unused=True), strict=True):
        if a is not None:
            assert_near(a, b)


def test_gradients_of_a_captured_tensor_repeat():
    q, k, v = (torch.randn(1, 4, 512, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    table, kinds = torch.randn(3, 4, device="cuda", requires_grad=True), torch.randint(0, 3, (512, 512), device="cuda")

    def gradient():
        o = flex_attention(q, k, v, lambda s, b, h, i, j: s + table[kinds[i, j], h], masks.causal(512, 512))
        return torch.autograd.grad(o.square().sum(), table)[0]

    first = gradient()
    assert all(torch.equal(gradient(), first) for _ in range(4))


def test_booleans_on_the_device_beside_a_score_mod_that_hides():
    q, k, v = (torch.randn(1, 4, N, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    booleans = torch.ones(N, N, device="cuda", dtype=torch.bool).tril()
    o = flex_attention(q, k, v, lambda s, b, h, i, j: torch.where(i - j < 9, s, -torch.inf), booleans)
    assert torch.equal(o, flex_attention(q, k, v, None, masks.causal(N, N) & masks.window(N, N, 8, None)))
