# SPDX-License-Identifier: Apache-2.0
"""Trains a block of AlphaFold's triangle attention, and compares its gradients with a dense formula in float64.

    python examples/pair_bias.py             # two steps on a CPU, in seconds

A representation of pairs, z [residues, residues, channels], is updated along its rows (AlphaFold 2, algorithm 13; Boltz
and OpenFold have the same): every row is a sequence of residues of its own, and all rows add one bias to their scores,
which comes from z as well:

    scores of row i [heads, j, k] = q[i, j] · k[i, k] / √dim + bias[heads, j, k]

So the rows are the batch, and the bias is (1, heads, residues, residues): nothing of the size of all rows' scores is
made, neither of the bias nor of its gradient. The last residues are padding, which the mask hides.

After each step's backward the loss and all gradients are compared with those of the dense formula over the same block
in float64. Where a tensor differs by more than 1e-5 of its largest number the exit status is 1.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Callable

import torch
from torch import Tensor, nn

import flashmask
from flashmask import scores

RESIDUES, PADDING = 88, 8
CHANNELS, HEADS, DIM = 64, 4, 32
LIMIT = 1e-5

Attend = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


class TriangleAttention(nn.Module):
    """Gated attention along the rows of z [rows, residues, channels], with a bias that all rows share."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(CHANNELS)
        self.qkv = nn.Linear(CHANNELS, 3 * HEADS * DIM, bias=False)
        self.bias = nn.Linear(CHANNELS, HEADS, bias=False)
        self.gate, self.out = nn.Linear(CHANNELS, HEADS * DIM), nn.Linear(HEADS * DIM, CHANNELS)

    def forward(self, z: Tensor, attend: Attend) -> Tensor:
        x = self.norm(z)
        q, k, v = self.qkv(x).unflatten(-1, (3 * HEADS, DIM)).chunk(3, -2)
        bias = self.bias(x).permute(2, 0, 1)[None]
        update: Tensor = self.out(torch.sigmoid(self.gate(x)) * attend(q, k, v, bias).flatten(-2))
        return z + update


class Block(nn.Module):
    """Along rows, which begin at a residue, then along columns, which end at one."""

    def __init__(self) -> None:
        super().__init__()
        self.starting, self.ending = TriangleAttention(), TriangleAttention()

    def forward(self, z: Tensor, attend: Attend) -> Tensor:
        z = self.starting(z, attend)
        z = self.ending(z.transpose(0, 1), attend)
        return z.transpose(0, 1)


def dense(mask: flashmask.Mask) -> Attend:
    """Attention by its formula, with the scores of all rows."""
    hidden = ~torch.as_tensor(mask.to_dense())

    def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        of_rows = torch.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5 + bias
        weights = of_rows.masked_fill(hidden, -torch.inf).softmax(-1).nan_to_num()  # rows of padding see nothing
        return torch.einsum("bhqk,bkhd->bqhd", weights, v)

    return attend


def differentiate(block: Block, z: Tensor, wanted: Tensor, attend: Attend) -> tuple[Tensor, list[Tensor]]:
    """Returns the loss over pairs of residues that are no padding, and its gradients by z and all parameters."""
    z = z.detach().requires_grad_()
    loss = (block(z, attend) - wanted)[:RESIDUES, :RESIDUES].square().mean()
    return loss.detach(), list(torch.autograd.grad(loss, [z, *block.parameters()]))


def distance(found: Tensor, expected: Tensor) -> float:
    """Returns the largest difference, as a share of the largest number."""
    return ((found - expected).abs().max() / expected.abs().max()).item()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2)
    steps = parser.parse_args(arguments).steps
    torch.manual_seed(0)
    block = Block()
    optimizer = torch.optim.AdamW(block.parameters(), lr=1e-3)
    mask = flashmask.masks.document([RESIDUES], RESIDUES + PADDING)

    def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        return flashmask.attention(q, k, v, mask, score=scores.bias(bias))

    worst = 0.0
    for step in range(steps):
        z, wanted = torch.randn(2, RESIDUES + PADDING, RESIDUES + PADDING, CHANNELS).unbind()
        loss, gradients = differentiate(block, z, wanted, attend)
        exact = copy.deepcopy(block).double()
        expected, of_dense = differentiate(exact, z.double(), wanted.double(), dense(mask))
        apart = max(map(distance, [loss, *gradients], [expected, *of_dense]))
        worst = max(worst, apart)
        print(
            f"step {step}: loss {loss:.6f}, the dense formula's {expected:.6f}; gradients {apart:.1e} of theirs apart"
        )
        for parameter, gradient in zip(block.parameters(), gradients[1:], strict=True):
            parameter.grad = gradient
        optimizer.step()
    print("the same as the dense formula" if worst <= LIMIT else f"further apart than {LIMIT}")
    return 0 if worst <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
