# SPDX-License-Identifier: Apache-2.0
"""Trains a small decoder with JAX on packed documents and another on padded ones, one to a row, and compares losses.

python examples/train_packed_jax.py  # 20 steps on a CPU, in seconds; exit status 1 where losses differ by 1e-4
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

import flashmask.jax

VOCABULARY, WIDTH, DIM, TOKENS, DOCUMENTS = 32, 64, 16, 256, 6
LAYER = {"q": 64, "k": 32, "v": 32, "o": 64, "up": 64, "down": 64}  # four query heads, two key heads


def loss_of(attend, weights, tokens, positions, targets):
    """The mean loss of the tokens that have a target; -1 is none."""
    x = weights["embed"][tokens] + jnp.sin(positions[..., None] / 8.0 ** (jnp.arange(WIDTH) / 16))
    for layer in weights["layers"]:
        normed = x / jnp.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)
        q, k, v = ((normed @ layer[name]).reshape(*tokens.shape, -1, DIM) for name in "qkv")
        x = x + attend(q, k, v).reshape(x.shape) @ layer["o"]
        x = x + jax.nn.gelu(x @ layer["up"]) @ layer["down"]
    log_probs = jnp.take_along_axis(jax.nn.log_softmax(x @ weights["embed"].T), targets[..., None], -1)[..., 0]
    return -jnp.where(targets >= 0, log_probs, 0).sum() / (targets >= 0).sum()


def packed_loss(weights, tokens, positions, targets):
    mask = flashmask.jax.from_position_ids(positions)  # inside the program: one is compiled for every packing
    return loss_of(partial(flashmask.jax.attention, mask=mask), weights, tokens, positions, targets)


padded_loss = partial(loss_of, partial(jax.nn.dot_product_attention, is_causal=True))


@partial(jax.jit, static_argnums=0)
def step(loss, weights, *batch):
    value, gradients = jax.value_and_grad(loss)(weights, *batch)
    return value, jax.tree.map(lambda weight, gradient: weight - 0.3 * gradient, weights, gradients)


def documents(random):
    """Tokens, positions and targets of documents of random lengths that count upwards by three."""
    lengths = 1 + random.multinomial(TOKENS - DOCUMENTS, np.full(DOCUMENTS, 1 / DOCUMENTS))
    counts = [(random.integers(VOCABULARY) + 3 * np.arange(length + 1)) % VOCABULARY for length in lengths]
    return [[each[:-1] for each in counts], [np.arange(length) for length in lengths], [each[1:] for each in counts]]


def pad(rows, fill):
    return np.stack([np.pad(row, (0, TOKENS - len(row)), constant_values=fill) for row in rows])


def main():
    random, apart = np.random.default_rng(0), 0.0
    layers = [{name: random.normal(0, 0.1, (WIDTH, columns)) for name, columns in LAYER.items()} for _ in range(2)]
    given = {"embed": random.normal(0, 0.1, (VOCABULARY, WIDTH)), "layers": layers}
    models, losses = [jax.tree.map(jnp.float32, given)] * 2, [0.0] * 2
    for number in range(20):
        batch = documents(random)
        packed, padded = [np.concatenate(rows)[None] for rows in batch], list(map(pad, batch, (0, 0, -1)))
        for i, (loss, arrays) in enumerate(((packed_loss, packed), (padded_loss, padded))):
            losses[i], models[i] = step(loss, models[i], *arrays)
        apart = max(apart, abs(losses[0] - losses[1]))
        print(f"step {number:2}: loss {losses[0]:.6f} packed, {losses[1]:.6f} padded")
    print(f"the losses are {apart:.1e} apart at most")
    return int(apart > 1e-4)


if __name__ == "__main__":
    raise SystemExit(main())
