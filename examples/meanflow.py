# SPDX-License-Identifier: Apache-2.0
"""Trains a small diffusion transformer on packed images with MeanFlow's loss, and compares it with dense attention.

    python examples/meanflow.py             # three steps on a CPU, in seconds

MeanFlow (Geng et al. 2025) learns the mean velocity u(z, r, t) of a flow between two times. Its target needs the
derivative of u along the flow, which torch.func.jvp carries through the network beside u itself:

    u, du = jvp(u, (z, r, t), (v, 0, 1))        loss = |u − (v − (t − r) du)|², where du is a constant

Images of different sizes lie behind one another in one sequence, and none sees another: a document mask. After each
step's backward the loss and all gradients are compared with those of the dense formula over the same mask. Where they
differ by more than 1e-5 the exit status is 1.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

import flashmask

SIZES = (64, 144, 100, 256)  # patches of each image
CHANNELS, WIDTH, HEADS, LAYERS = 4, 64, 4, 2
LIMIT = 1e-5

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


def dense(mask: flashmask.Mask) -> Attend:
    """Attention by its formula, with a boolean for every pair of tokens."""
    hidden = ~torch.as_tensor(mask.to_dense())

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        return torch.einsum("bhqk,bkhd->bqhd", weights, v)

    return attend


class Layer(nn.Module):
    """A transformer layer that times modulate (Peebles and Xie 2022)."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.modulation = nn.Linear(WIDTH, 4 * WIDTH)
        self.norm = nn.LayerNorm(WIDTH, elementwise_affine=False)

    def forward(self, x: Tensor, times: Tensor, attend: Attend) -> Tensor:
        shift, scale, of_attention, of_mlp = self.modulation(silu(times)).chunk(4, -1)
        q, k, v = self.qkv(self.norm(x) * (1 + scale) + shift).unflatten(-1, (3 * HEADS, -1)).chunk(3, -2)
        x = x + of_attention * self.out(attend(q, k, v).flatten(-2))
        return x + of_mlp * self.down(silu(self.up(self.norm(x))))


class MeanVelocity(nn.Module):
    """u(z, r, t) [1, tokens, channels] of patches z that flow from time t to time r, both [1, tokens, 1]."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(CHANNELS, WIDTH), nn.Linear(WIDTH, CHANNELS)
        self.times = nn.Linear(2 * WIDTH, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))

    def forward(self, z: Tensor, r: Tensor, t: Tensor, attend: Attend) -> Tensor:
        rates = torch.logspace(0, 1, WIDTH // 2)  # from 1 to 10
        waves = torch.cat([wave(time * rates) for time in (t, t - r) for wave in (torch.sin, torch.cos)], -1)
        x, times = self.into(z), self.times(waves)
        for layer in self.layers:
            x = layer(x, times, attend)
        return self.out(x)


def draw_batch(seed: int) -> tuple[Tensor, ...]:
    """Returns images and noise [1, tokens, channels], and for each image its times r ≤ t, [1, tokens, 1]."""
    draw = torch.Generator().manual_seed(seed)
    tokens, sizes = sum(SIZES), torch.tensor(SIZES)
    images, noise = (torch.randn(1, tokens, CHANNELS, generator=draw) for _ in range(2))
    times = torch.rand(len(SIZES), 2, generator=draw).sort(-1).values.repeat_interleave(sizes, 0)
    return images, noise, times[None, :, :1], times[None, :, 1:]


def loss_of(model: MeanVelocity, batch: tuple[Tensor, ...], attend: Attend) -> Tensor:
    """MeanFlow's loss."""
    images, noise, r, t = batch
    z, v = (1 - t) * images + t * noise, noise - images
    along = v, torch.zeros_like(r), torch.ones_like(t)
    u, du = torch.func.jvp(lambda *moved: model(*moved, attend), (z, r, t), along)
    return (u - (v - (t - r) * du).detach()).square().mean()


def differentiate(model: MeanVelocity, batch: tuple[Tensor, ...], attend: Attend) -> tuple[Tensor, list[Tensor]]:
    """Returns the loss, and its gradients by all parameters."""
    loss = loss_of(model, batch, attend)
    return loss.detach(), list(torch.autograd.grad(loss, list(model.parameters())))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=3)
    steps = parser.parse_args(arguments).steps
    torch.manual_seed(0)
    model = MeanVelocity()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    mask = flashmask.masks.document(list(SIZES))

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return flashmask.attention(q, k, v, mask)

    worst = 0.0
    for step in range(steps):
        batch = draw_batch(step)
        loss, gradients = differentiate(model, batch, attend)
        expected, of_dense = differentiate(model, batch, dense(mask))
        apart = max((a - b).abs().max().item() for a, b in zip([loss, *gradients], [expected, *of_dense], strict=True))
        worst = max(worst, apart)
        print(f"step {step}: loss {loss:.6f}, the dense formula's {expected:.6f}; gradients at most {apart:.1e} apart")
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter.grad = gradient
        optimizer.step()
    print("the same as the dense formula" if worst <= LIMIT else f"further apart than {LIMIT}")
    return 0 if worst <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
