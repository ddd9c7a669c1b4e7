# SPDX-License-Identifier: Apache-2.0
"""backend="cudnn" beside calling cudnn.flex_attention directly, and beside our kernels, on a GPU.

Causal documents of 8,192 tokens, 32 query heads over 8 of 128, bfloat16. GPU time is the median of contestants in
turns; host time is that of a forward and a backward in eager mode, while the GPU is behind; a plan is what a new mask
costs.

python bench/cudnn_backend.py
"""

import statistics
import time
from collections.abc import Callable

import cudnn.flex_attention
import torch
from comparison.clock import in_turns, on_the_host, one_way
from torch import Tensor

import flashmask
from flashmask import masks

LENGTHS = (900, 2300, 128, 1700, 64, 2100, 1000)


def host_microseconds(work: Callable[[], object]) -> float:
    """Median host microseconds of a call, of ten in a row."""
    times = []
    for _ in range(15):
        torch.cuda.synchronize()
        torch.cuda._sleep(200_000_000)
        begin = time.perf_counter()
        for _ in range(10):
            work()
        times.append((time.perf_counter() - begin) * 1e5)
    torch.cuda.synchronize()
    return statistics.median(times)


def main() -> None:
    tokens = sum(LENGTHS)
    mask = masks.causal_document(LENGTHS)
    shapes = (32, 8, 8)
    leaves = [
        torch.randn(1, tokens, heads, 128, device="cuda", dtype=torch.bfloat16, requires_grad=True) for heads in shapes
    ]
    grad = torch.randn_like(leaves[0])
    ends = torch.from_numpy(mask.to_row_ranges()).cuda()
    plan = cudnn.flex_attention.create_mask_plan(ends, *leaves)

    def direct() -> Tensor:
        o: Tensor = cudnn.flex_attention.flex_attn_func(*leaves, mask_plan=plan)
        return o

    def behind() -> Tensor:
        return flashmask.attention(*leaves, mask, backend="cudnn")

    def ours() -> Tensor:
        return flashmask.attention(*leaves, mask, backend="flashmask")

    contestants = {"cudnn directly": direct, 'backend="cudnn"': behind, "our kernels": ours}
    for name, attend in contestants.items():
        far = float((attend() - ours()).detach().abs().max())
        print(f"{name}: differs from ours by at most {far:.4f}")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {tokens:,} tokens, {len(LENGTHS)} documents")
    for way in ("forward", "both"):
        launches = {name: one_way(way, attend, leaves, grad) for name, attend in contestants.items()}
        times, host = in_turns(launches, 10, 4), {name: host_microseconds(each) for name, each in launches.items()}
        for name in contestants:
            ratio = times[name] / times["cudnn directly"]
            print(f"{way:8} {name:16} {times[name]:.3f} ms ({ratio:.3f} of directly), host {host[name]:.0f} us")
    with torch.no_grad():
        made = on_the_host(lambda: cudnn.flex_attention.create_mask_plan(ends, *leaves, build_backward=True))
        fresh = iter([masks.causal_document([*LENGTHS[:-1], 1000 - n, n]) for n in range(1, 8)])
        behind_new = on_the_host(lambda: flashmask.attention(*leaves, next(fresh), backend="cudnn"))
    print(f"a plan directly {made:.2f} ms; a forward with a new mask behind our call {behind_new:.2f} ms")


if __name__ == "__main__":
    main()
