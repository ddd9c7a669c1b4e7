# SPDX-License-Identifier: Apache-2.0
"""What the tests of a GPU need: the device, tensors there, and the reason where there is none."""

import pytest
import torch
from attention_oracle import assert_within_bound, random_inputs, softmax_attention, value_and_gradients

from flashmask._info import kernels

KERNELS = [kernel for kernel in kernels() if kernel["device"] == "cuda"]


def why_not():
    """Why nothing can run on a GPU here; "" when it can."""
    if not KERNELS:
        return "this build has no kernels for a GPU"
    if not torch.cuda.is_available():
        return "there is no CUDA device"
    return "" if any(kernel["runs"] for kernel in KERNELS) else KERNELS[0]["why_not"]


needs_gpu = pytest.mark.skipif(bool(why_not()), reason=why_not())


def inputs(batch, rows, columns, heads, kv_heads, dim, value_dim=None, dtype=torch.bfloat16, seed=0):
    """q, k, v, grad_o and grad_lse on the device."""
    made = random_inputs(batch, rows, columns, heads, kv_heads, dim, value_dim or dim, seed)
    return [*(t.to(dtype).cuda() for t in made[:4]), made[4].cuda()]


def check(compute, given, visible, scale=None, gradients=False):
    """Holds o and lse of compute(q, k, v), and its gradients, against float64 and the dtype's naive computation."""
    dtype = given[0].dtype
    seen = None if visible is None else visible.cuda()

    def by_formula(q, k, v):
        return softmax_attention(q, k, v, seen, scale)

    if gradients:
        found, exact, naive = (
            value_and_gradients(function, given[:3], *given[3:], kind)
            for function, kind in ((compute, dtype), (by_formula, torch.float64), (by_formula, dtype))
        )
    else:
        found, naive = compute(*given[:3]), by_formula(*given[:3])
        exact = by_formula(*(t.double() for t in given[:3]))
    assert_within_bound(found, exact, naive, dtype)
    return found
