# SPDX-License-Identifier: Apache-2.0
"""flashmask.jax.linear_attention(): o and gradients against the dense formula, transforms, and what is refused."""

import pytest

jax = pytest.importorskip("jax", reason="scripts/test jax runs this where JAX is")
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

import flashmask  # noqa: E402
import flashmask.jax  # noqa: E402
from flashmask import masks  # noqa: E402

BATCH, TOKENS, HEADS = 2, 70, 4  # more than one step of 64 tokens
MASKS = {
    "causal": None,
    "documents": masks.causal_document([20, 30], TOKENS),  # the rest is padding
    "shared prompt": masks.shared_question([(10, [20, 25]), (15, [])], TOKENS),
}


def inputs(dtype=np.float32, key_heads=HEADS):
    """q, k, v, log_forget and log_input; entry 1 is not entry 0."""
    random = np.random.default_rng(0)
    q, k = (0.5 * random.standard_normal((BATCH, TOKENS, key_heads, 8)) for _ in range(2))
    v = random.standard_normal((BATCH, TOKENS, HEADS, 16))
    forget, into = -0.2 * random.random((BATCH, TOKENS, HEADS)), random.standard_normal((BATCH, TOKENS, HEADS))
    return [*(x.astype(dtype) for x in (q, k, v)), *(x.astype(np.float32) for x in (forget, into))]


def by_formula(q, k, v, forget, into, mask, normalize):
    """The definition: every weight, in the arrays' precision; tokens' paths begin where their documents do."""
    seen = np.tril(np.ones((TOKENS, TOKENS), bool)) if mask is None else mask.to_dense()[0, 0]
    # A row's weight of a column: the forget gates of what it sees behind the column, itself included.
    behind = seen[:, None, :] & (np.arange(TOKENS)[None, :] > np.arange(TOKENS)[:, None])[None]  # [row, column, token]
    weight = jnp.exp(jnp.einsum("ijt,bth->bhij", behind.astype(np.float32), forget) + into.swapaxes(1, 2)[:, :, None])
    times = HEADS // q.shape[2]
    score = jnp.einsum("bihd,bjhd->bhij", *(jnp.repeat(x, times, 2) for x in (q, k))) * q.shape[3] ** -0.5
    score = jnp.where(seen, weight * score, 0)
    o = jnp.einsum("bhij,bjhd->bihd", score, v)
    return o / jnp.maximum(abs(score.sum(-1)), 1).swapaxes(1, 2)[..., None] if normalize else o


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("key_heads", [HEADS, 2])
def test_o_and_gradients_are_the_formulas(name, normalize, key_heads):
    given, mask = inputs(key_heads=key_heads), MASKS[name]
    weights = np.random.default_rng(1).standard_normal((BATCH, TOKENS, HEADS, 16))

    def loss(attend):
        return lambda *arrays: (attend(*arrays, mask, normalize=normalize) * weights).sum()

    ours, theirs = (
        jax.value_and_grad(loss(attend), argnums=(0, 1, 2, 3, 4))(*map(jnp.asarray, given))
        for attend in (flashmask.jax.linear_attention, by_formula)
    )
    for found, expected in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * float(abs(expected).max()))


def test_o_has_the_bits_of_numpys_call():
    for dtype in (np.float32, np.float16):
        given = inputs(dtype)
        o = jax.jit(lambda *arrays: flashmask.jax.linear_attention(*arrays, MASKS["documents"]))(*given)
        assert (np.asarray(o) == flashmask.linear_attention(*given, MASKS["documents"])).all()


def test_a_decay_per_head_and_heads_of_q_alone():
    q, k, v, forget, _ = inputs()
    per_head = forget[0, 0]
    o = flashmask.jax.linear_attention(q, k[:, :, :2], v[:, :, :2], per_head)
    k, v = (np.repeat(x[:, :, :2], 2, 2) for x in (k, v))
    same = flashmask.jax.linear_attention(q, k, v, np.broadcast_to(per_head, forget.shape))
    assert (o == same).all()
    gradient = jax.grad(lambda decay: flashmask.jax.linear_attention(q, k, v, decay).sum())(jnp.asarray(per_head))
    assert gradient.shape == (HEADS,)


def test_vmap_joins_the_batch():
    q, k, v, *gates = inputs()
    each = masks.stack_batch([masks.causal_document(lengths) for lengths in ([20, 50], [40, 30])])  # a mask per entry

    def attend(q):
        return flashmask.jax.linear_attention(q, k, v, *gates, each)

    both = jax.vmap(attend)(jnp.stack([q, 2 * q]))
    assert (both[0] == attend(q)).all() and (both[1] == attend(2 * q)).all()
    gradients = jax.vmap(jax.grad(lambda q: attend(q).sum()))(jnp.stack([q, 2 * q]))
    assert (gradients[0] == jax.grad(lambda q: attend(q).sum())(q)).all()


def test_what_is_refused():
    q, k, v, *gates = inputs()
    attend = flashmask.jax.linear_attention
    with pytest.raises(TypeError, match=r"mask is .*; expected a Mask of flashmask.masks"):
        attend(q, k, v, mask=jnp.ones((TOKENS, TOKENS), bool))
    with pytest.raises(ValueError, match=r"expected \(1 or 2, 1, 70, 70\)"):
        attend(q, k, v, mask=masks.causal(8, 8))
    with pytest.raises(NotImplementedError, match="more than two ranges of masked rows"):
        attend(q, k, v, mask=masks.from_dense(np.random.default_rng(0).random((TOKENS, TOKENS)) < 0.5))
    with pytest.raises(ValueError, match="log_input has shape"):
        attend(q, k, v, gates[0], gates[1][:, :3])
    with pytest.raises(Exception, match=r"column \d+"):  # an error of XLA's with the library's sentence
        attend(q, k, v, mask=masks.sliding_window(TOKENS, TOKENS, 8)).block_until_ready()
    with pytest.raises(NotImplementedError, match="differentiable once"):
        jax.grad(lambda q: jax.grad(lambda q: attend(q, k, v).sum())(q).sum())(jnp.asarray(q))
    jax.config.update("jax_enable_x64", True)
    try:
        with pytest.raises(NotImplementedError, match="q, k and v are float64"):
            attend(*(np.float64(x) for x in (q, k, v)))
    finally:
        jax.config.update("jax_enable_x64", False)
