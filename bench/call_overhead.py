"""What a call costs beside the computing: attention of 1 x 16 x 1 x 8 float32, one thread, eager mode.

python bench/call_overhead.py
"""

import statistics
import time
from collections.abc import Callable

import torch
from torch.nn.functional import scaled_dot_product_attention

import flashmask

CALLS = 2000
REPEATS = 25


def microseconds(call: Callable[[], object]) -> str:
    """Median and minimum of REPEATS means over CALLS calls."""
    times = []
    for _ in range(REPEATS + 1):
        begin = time.perf_counter()
        for _ in range(CALLS):
            call()
        times.append((time.perf_counter() - begin) / CALLS * 1e6)
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
    torch.set_num_threads(1)
    q, k, v, grad = (torch.randn(1, 16, 1, 8) for _ in range(4))
    leaves = [t.clone().requires_grad_() for t in (q, k, v)]
    mask = flashmask.masks.causal(16, 16)
    plan = flashmask.plan(mask, q, k, v)
    functions = {
        "attention, plan": lambda *t: flashmask.attention(*t, plan=plan),
        "attention, mask": lambda *t: flashmask.attention(*t, mask),
        "scaled_dot_product_attention": scaled_dot_product_attention,
        "an autograd.Function that copies": Copies.apply,
    }
    print("microseconds, median and minimum    no gradient      recorded   with backward")
    for name, function in functions.items():
        columns = (
            microseconds(lambda f=function: f(q, k, v)),
            microseconds(lambda f=function: f(*leaves)),
            microseconds(lambda f=function: torch.autograd.grad(f(*leaves), leaves, grad)),
        )
        print(f"{name:<33}", *columns, sep="  ")


if __name__ == "__main__":
    main()
