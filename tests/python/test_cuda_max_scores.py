# SPDX-License-Identifier: Apache-2.0
"""return_max_scores on a GPU: against float64, and with gradients, compile, documents and changes of scores."""

import pytest
import torch
from attention_oracle import scores_of
from cuda_device import inputs, needs_gpu
from mask_families import FAMILIES, N, visible

import flashmask
from flashmask import masks

pytestmark = needs_gpu
HEADS = 4


def given(dtype=torch.bfloat16, dim=64, tokens=N):
    return inputs(2, tokens, tokens, HEADS, 2, dim, dtype=dtype)[:3]


def check(found, q, k, mask=None, **changes):
    seen = None if mask is None else visible(mask).cuda()
    wanted = scores_of(q.double(), k.double(), seen, **changes).amax(-1)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_family_has_the_maxima_of_the_formula(name, dtype):
    mask, (q, k, v) = FAMILIES[name](), given(dtype)
    _, lse, found = flashmask.attention(q, k, v, mask, return_lse=True, return_max_scores=True)
    check(found, q, k, mask)
    torch.testing.assert_close(lse, flashmask.attention(q, k, v, mask, return_lse=True)[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dim", [40, 64, 96, 128, 192, 256, 512])
@pytest.mark.parametrize("tokens", [300, 3000])
def test_head_dims_and_long_rows_and_documents(dim, tokens):
    if dim == 512 and torch.cuda.get_device_capability()[0] not in (8, 9, 10):
        pytest.skip("needs the shared memory of an A100, H100 or B200")
    q, k, v = given(dim=dim, tokens=tokens)
    for mask in (masks.causal(tokens, tokens), masks.causal_document([tokens // 10] * 10, tokens)):
        for invariant in (False, True):
            found = flashmask.attention(q, k, v, mask, return_max_scores=True, invariant=invariant)[1]
            check(found, q, k, mask)


def test_steps_that_the_kernels_maxima_lag_behind_count():
    tokens = 4096
    q, v = torch.zeros(1, tokens, 1, 64), torch.randn(1, tokens, 1, 64)
    q[..., 0] = 1
    k = torch.zeros_like(q)
    k[..., 0] = 4.0 * (torch.arange(tokens) // 256)[None, :, None]
    q, k, v = (each.bfloat16().cuda() for each in (q, k, v))
    mask = masks.causal(tokens, tokens)
    found = flashmask.attention(q, k, v, mask, scale=1.0, return_max_scores=True)[1]
    torch.testing.assert_close(found[0, 0].cpu(), 4.0 * (torch.arange(tokens) // 256), rtol=1e-6, atol=0)


def test_gradients_and_compile():
    tensors = [each.requires_grad_() for each in given(tokens=1000, dim=128)]
    mask = masks.causal(1000, 1000)

    def run(q, k, v, also):
        o, *found = flashmask.attention(q, k, v, mask, deterministic=True, return_lse=True, return_max_scores=also)
        return o, *found

    with_maxima, without = run(*tensors, True), run(*tensors, False)
    assert not with_maxima[2].requires_grad
    for a, b in zip(
        *(torch.autograd.grad(each[0].float().square().sum(), tensors) for each in (with_maxima, without)), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=0.02, atol=0.02)
    compiled = torch.compile(run, fullgraph=True)(*tensors, True)
    assert torch.equal(compiled[2], with_maxima[2])


def test_changes_of_scores_where_a_kernel_serves_them():
    q, k, v = given(tokens=300)
    mask = masks.causal(300, 300)
    plan = flashmask.plan(mask, q, k, v, softcap=2.0, kernel="sm80")
    found = flashmask.attention(q, k, v, plan=plan, softcap=2.0, return_max_scores=True)[1]
    check(found, q, k, mask, softcap=2.0)
    if torch.cuda.get_device_capability() == (9, 0):
        with pytest.raises(NotImplementedError, match="max_scores is given for a problem with dropout or a change"):
            flashmask.attention(q, k, v, mask, softcap=2.0, return_max_scores=True)
