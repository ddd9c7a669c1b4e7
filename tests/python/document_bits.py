# SPDX-License-Identifier: Apache-2.0
"""Documents of a pack and alone: whether attention gives them the same bits."""

from types import SimpleNamespace

import torch

import flashmask
from flashmask import masks

LENGTHS = [100, 257, 64, 1, 190]


def inputs(tokens, dtype=torch.float32, seed=0, device="cpu", dim=24):
    """q, k, v and the gradient of o."""
    torch.manual_seed(seed)
    return [torch.randn(1, tokens, heads, dim).to(dtype).to(device) for heads in (4, 2, 2, 4)]


def both_ways(attend, q, k, v, grad):
    """o, lse with rows on axis 1, and the gradients of q, k and v."""
    leaves = [each.detach().clone().requires_grad_() for each in (q, k, v)]
    o, lse = attend(*leaves)
    gradients = torch.autograd.grad([o, lse], leaves, [grad, grad[..., 0].transpose(1, 2).to(lse.dtype)])
    return o, lse.transpose(1, 2), *gradients


def same_bits(a, b):
    return torch.equal(a, b) and torch.equal(torch.signbit(a), torch.signbit(b))


def documents_that_differ(packed, alone, dtype=torch.float32, lengths=LENGTHS, **sizes):
    """Packs the documents, computes each alone, and names those with other bits. `sizes`: as inputs() takes them."""
    given = inputs(sum(lengths), dtype, **sizes)
    of_all = both_ways(packed, *given)
    different, begin = [], 0
    for length in lengths:
        own = both_ways(alone(length), *(each[:, begin : begin + length] for each in given))
        if not all(same_bits(a[:, begin : begin + length], b) for a, b in zip(of_all, own, strict=True)):
            different.append(length)
        begin += length
    return different


def under(mask, **options):
    """Attention under a mask, invariant unless `options` say otherwise; returns o and lse."""
    return lambda q, k, v: flashmask.attention(q, k, v, mask, return_lse=True, **{"invariant": True, **options})


def causal(length):
    """Invariant attention of a document alone; returns o and lse."""
    return under(masks.causal(length, length))


def in_a_layer(lengths, function, device="cpu", **asked):
    """Attention of documents as a layer of Transformers calls `function`; returns o, and values for lse."""
    layer = torch.nn.Module().eval()
    layer.config, layer.is_causal = SimpleNamespace(_attn_implementation="flashmask"), True
    positions = torch.cat([torch.arange(n) for n in lengths])[None].to(device)

    def run(q, k, v):
        given = (x.transpose(1, 2) for x in (q, k, v))
        o, _ = function(layer, *given, None, position_ids=positions, **asked)
        return o, o[..., 0].transpose(1, 2)

    return run
