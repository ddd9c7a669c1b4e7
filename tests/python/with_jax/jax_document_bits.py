# SPDX-License-Identifier: Apache-2.0
"""Documents of a pack and alone: whether flashmask.jax gives them the same bits."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

import flashmask.jax as fm
from flashmask import masks

LENGTHS = [100, 1, 93]
TOKENS = sum(LENGTHS)


def given_to(tokens=TOKENS, dtype=jnp.float32, batch=1, dim=24):
    """q, k, v and the gradient of o."""
    random = np.random.default_rng(0)
    return [jnp.asarray(random.standard_normal((batch, tokens, heads, dim)).astype(dtype)) for heads in (4, 2, 2, 4)]


def both_ways(attend):
    """Returns a function of q, k, v and the gradient of o: o, lse with rows on axis 1, and the gradients of q, k, v."""

    def run(q, k, v, grad):
        (o, lse), pull = jax.vjp(attend, q, k, v)
        return o, lse.swapaxes(1, 2), *pull((grad, grad[..., 0].swapaxes(1, 2).astype(lse.dtype)))

    return run


def under(mask=None, **options):
    """Attention under a mask, invariant unless `options` say otherwise; returns o and lse."""
    return lambda q, k, v: fm.attention(q, k, v, mask, return_lse=True, **{"invariant": True, **options})


def every_third(lengths):
    """Documents in which a row sees every third key up to itself: a mask of bits."""
    token, document = np.arange(sum(lengths)), np.repeat(np.arange(len(lengths)), lengths)
    distance = token[:, None] - token
    return masks.from_dense((document[:, None] == document) & (distance >= 0) & (distance % 3 == 0))


@functools.cache
def causal(length):
    """A causal document alone, both ways."""
    return jax.jit(both_ways(under(masks.causal(length, length))))


def of_every_third(length):
    """A document of every_third() alone, both ways."""
    return jax.jit(both_ways(under(every_third([length]))))


def documents_that_differ(found, given, lengths=LENGTHS, alone=causal):
    """Names the documents to which `found`, what both_ways() says of a pack, does not give the bits they have alone."""
    different, begin = [], 0
    for length in lengths:
        own = alone(length)(*(each[:, begin : begin + length] for each in given))
        if not all(_same_bits(a[:, begin : begin + length], b) for a, b in zip(found, own, strict=True)):
            different.append(length)
        begin += length
    return different


def _same_bits(a, b):
    a, b = (np.asarray(each, np.float32) for each in (a, b))  # exact: no wider dtype comes here
    return np.array_equal(a, b) and np.array_equal(np.signbit(a), np.signbit(b))
