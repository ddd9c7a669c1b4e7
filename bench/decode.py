# SPDX-License-Identifier: Apache-2.0
"""Attention of new tokens to a cache, in microseconds: decode_attention(), without splits, and PyTorch's SDPA.

GPU time is that of a CUDA graph of layers, each with keys of its own, so that none finds them in the L2 cache. Host
time is that of a call in eager mode, while the GPU is behind. Heads 32 over 8, head dim 128, bfloat16.

python bench/decode.py [--quick]
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch.nn.functional import scaled_dot_product_attention

import flashmask

HEADS, KV_HEADS, DIM = 32, 8, 128
BYTES = 3 << 30  # bytes of keys and values that are read in turn
BYTES_A_MICROSECOND = 4.3e6  # bytes that an H200 reads per microsecond


def tree_of(nodes: int) -> list[int]:
    """Parents of a tree: a root with ten children, then fewer and fewer children per node, as drafters order them."""
    parents = [-1]
    children = [10, 8, 6, 5, 4, 3, 3, 2, 2, 2]
    node = 0
    while len(parents) < nodes:
        parents += [node] * min(children[min(node, 9)], nodes - len(parents))
        node += 1
    return parents


TREES = {"causal 1": (1, None), "causal 16": (16, None), "MEDUSA 64": (64, tree_of(64)), "EAGLE 60": (60, tree_of(60))}
SHAPES = ((1, 4096), (1, 32768), (1, 131072), (8, 4096), (8, 32768))
"""Requests, and keys of each."""


def graph_microseconds(layers: list[Callable[[], object]]) -> tuple[float, float]:
    """Microseconds of a layer after the first, and what the first takes in addition: the mask and plan that all
    share."""
    one, all_layers = (_graph_microseconds(some) for some in (layers[:1], layers))
    each = (all_layers - one) / (len(layers) - 1)
    return each, one - each


def _graph_microseconds(layers: list[Callable[[], object]]) -> float:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for layer in layers:
            layer()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for layer in layers:
            layer()
    times = []
    for _ in range(9):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1000)
    return statistics.median(times[1:])


def host_microseconds(layer: Callable[[], object]) -> float:
    """Host microseconds of a call whose mask and plan already exist."""
    times = []
    for _ in range(5):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(20):
            layer()
        times.append((time.perf_counter() - begin) * 1e6 / 20)
    torch.cuda.synchronize()
    return statistics.median(times)


def measured(q: torch.Tensor, caches: list[tuple[torch.Tensor, torch.Tensor]], attend: Callable[..., object]) -> str:
    """Text with microseconds of a layer on the GPU, of the first layer in addition, and on the host."""
    layers = [lambda k=k, v=v: attend(q, k, v) for k, v in caches]
    try:
        each, first = graph_microseconds(layers)
        return f"{each:7.1f} +{first:6.1f} {host_microseconds(layers[0]):6.1f}"
    except (RuntimeError, NotImplementedError, torch.OutOfMemoryError) as reason:
        print(f"  {type(reason).__name__}: {str(reason)[:150]}")
        torch.cuda.synchronize()
        return f"{'-':>7}  {'-':>6} {'-':>6}"


def sdpa(lengths: torch.Tensor | None) -> Callable[..., object]:
    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> object:
        mask = None
        if lengths is not None:
            last = lengths[:, None] - q.shape[1] + torch.arange(q.shape[1], device=k.device)  # [batch, rows]
            mask = (torch.arange(k.shape[1], device=k.device) <= last[..., None])[:, None]
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        return scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)

    return attend


def decode(lengths: torch.Tensor, tree: list[int] | None, splits: int | None) -> Callable[..., object]:
    return lambda q, k, v: flashmask.decode_attention(q, k, v, lengths, tree, splits=splits)


def report(name: str, rows: int, tree: list[int] | None, batch: int, keys: int) -> None:
    kind = {"dtype": torch.bfloat16, "device": "cuda"}
    size = batch * keys * KV_HEADS * DIM * 4
    count = max(3, min(24, BYTES // size))
    caches = [tuple(torch.randn(batch, keys, KV_HEADS, DIM, **kind) for _ in range(2)) for _ in range(count)]
    q = torch.randn(batch, rows, HEADS, DIM, **kind)
    lengths = torch.full((batch,), keys, device="cuda")
    contestants = [decode(lengths, tree, None), decode(lengths, tree, 1)]
    if tree is None:
        contestants += [sdpa(lengths)] if rows > 1 else [sdpa(lengths), sdpa(None)]
    columns = " | ".join(measured(q, caches, each) for each in contestants)
    print(f"{name:9} {batch} {keys:7}: {size / BYTES_A_MICROSECOND:6.1f} | {columns}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="128K keys alone")
    quick = parser.parse_args().quick
    print(
        "GPU, the first layer beside, host: bytes alone | decode | one part | causal: SDPA with lengths | one row: SDPA"
    )
    for name, (rows, tree) in TREES.items():
        for batch, keys in SHAPES[2:3] if quick else SHAPES:
            report(name, rows, tree, batch, keys)


if __name__ == "__main__":
    main()
