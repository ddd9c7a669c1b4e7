# SPDX-License-Identifier: Apache-2.0
"""The same calls by PyTorch."""

from functools import partial

import jax.numpy as jnp
import numpy as np
import torch
from jax_cases import weights

import flashmask
import flashmask.jax as fm


def operand(mask):
    """A Mask as an array that may be traced."""
    if mask.form == "bits":
        return jnp.asarray(mask.to_dense())
    values, causal = mask.to_startend_row_indices()
    return fm.RowIndices(jnp.asarray(values), causal, rows=mask.shape.rows)


def as_torch(array, dtype=None, device="cpu"):
    numbers = np.array(array, np.float64 if array.dtype == np.float64 else np.float32)
    return torch.from_numpy(numbers).to(device, dtype or getattr(torch, str(array.dtype)))


def results_of_torch(attend, arrays, fourth=None, dtype=None, device="cpu", name="sinks"):
    """What results() says, by a function of torch tensors that returns o and lse. `dtype`: what it computes in.

    `fourth`: one more array, which it takes as `name`.
    """
    given = (*arrays, *(() if fourth is None else (fourth,)))
    leaves = [as_torch(array, dtype, device).requires_grad_() for array in given]
    o, lse = attend(**dict(zip(("q", "k", "v", name), leaves, strict=False)))
    of_o = as_torch(weights(o.shape, np.float32), o.dtype, device)
    of_lse = as_torch(weights(lse.shape, np.float32), lse.dtype, device).masked_fill(~lse.isfinite(), 0)
    gradients = torch.autograd.grad([o, lse], leaves, [of_o, of_lse])
    return [each.detach().cpu() for each in (o, lse, *gradients)]


def our_torch(mask, **options):
    return partial(flashmask.attention, mask=mask, return_lse=True, **options)
