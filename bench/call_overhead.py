# SPDX-License-Identifier: Apache-2.0
"""Overhead of a call beyond the computation, in eager mode.

Attention of 1 x 16 x 1 x 8 float32 on one thread of the CPU, or of 1 x 16 x 1 x 64 bfloat16 on a GPU, whose kernels
finish before the host launches the next.

python bench/call_overhead.py [--device cuda]
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch.nn.functional import scaled_dot_product_attention

import flashmask

CALLS = {"cpu": 2000, "cuda": 500}
REPEATS = {"cpu": 25, "cuda": 9}


def microseconds(device: str, call: Callable[[], object]) -> str:
    """Median and minimum of means over many calls; a dash if no kernel serves the call."""
    times = []
    try:
        call()
    except NotImplementedError:
        return f"{'-':>6} {'-':>6}"
    for _ in range(REPEATS[device] + 1):
        begin = time.perf_counter()
        for _ in range(CALLS[device]):
            call()
        times.append((time.perf_counter() - begin) / CALLS[device] * 1e6)
        if device == "cuda":
            torch.cuda.synchronize()
    return f"{statistics.median(times[1:]):6.1f} {min(times[1:]):6.1f}"


class Copies(torch.autograd.Function):
    """The least that an autograd.Function of three tensors in Python can do."""

    @staticmethod
    def forward(ctx, q, k, v):
        return q.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad, grad, grad


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=CALLS, default="cpu")
    device = parser.parse_args().device
    torch.set_num_threads(1)
    kind = {"dtype": torch.bfloat16, "device": device} if device == "cuda" else {}
    q, k, v, grad = (torch.randn(1, 16, 1, 64 if device == "cuda" else 8, **kind) for _ in range(4))
    leaves = [t.clone().requires_grad_() for t in (q, k, v)]
    mask = flashmask.masks.causal(16, 16)
    plan = flashmask.plan(mask, q, k, v)
    rows = flashmask.masks.from_cu_seqlens(torch.tensor([0, 9, 16], device=device), 16)
    functions = {
        "attention, plan": lambda *t: flashmask.attention(*t, plan=plan),
        "attention, mask": lambda *t: flashmask.attention(*t, mask),
        "attention, row indices": lambda *t: flashmask.attention(*t, rows),
        "scaled_dot_product_attention": scaled_dot_product_attention,
        "an autograd.Function that copies": Copies.apply,
    }
    print("microseconds, median and minimum    no gradient      recorded   with backward")
    for name, function in functions.items():
        columns = (
            microseconds(device, lambda f=function: f(q, k, v)),
            microseconds(device, lambda f=function: f(*leaves)),
            microseconds(device, lambda f=function: torch.autograd.grad(f(*leaves), leaves, grad)),
        )
        print(f"{name:<33}", *columns, sep="  ")


if __name__ == "__main__":
    main()
