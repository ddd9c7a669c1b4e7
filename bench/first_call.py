# SPDX-License-Identifier: Apache-2.0
"""Seconds that the first call takes on a GPU whose driver has compiled nothing yet.

Each call runs in a process of its own, forward and backward, with the driver's cache off. Timed from when PyTorch has
used the GPU to when the gradients are there, which counts loading the library and, where the build has no machine code
for the GPU, what the driver compiles. "none" is a kernel of PyTorch's instead. Exits with 1 if a call takes longer than
--most seconds.

python bench/first_call.py [--calls softcap,linear] [--most 3] [--json]
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

# Calls import flashmask, since loading the library is a part of the first one.
TOKENS, HEADS = 1024, 4


def tensors(dim: int, dtype: torch.dtype = torch.bfloat16) -> list[Any]:
    shape = 1, TOKENS, HEADS, dim
    return [torch.randn(shape, device="cuda", dtype=dtype, requires_grad=True) for _ in range(3)]


def attend(dim: int, kind: str = "causal", dtype: torch.dtype = torch.bfloat16, **options: Any) -> Callable[[], Any]:
    def call() -> Any:
        import flashmask
        from flashmask import masks

        made = {
            "causal": lambda: masks.causal(TOKENS, TOKENS),
            "documents": lambda: masks.causal_document([600, 300, 124]),
            "bits": lambda: masks.from_dense(torch.rand(TOKENS, TOKENS).lt(0.5).numpy()),
        }
        given = {name: value() if callable(value) else value for name, value in options.items()}
        return flashmask.attention(*tensors(dim, dtype), made[kind](), **given)

    return call


def slopes() -> Any:
    return torch.linspace(0.1, 0.5, HEADS, device="cuda")


def bias(rows: int, columns: int) -> Callable[[], Any]:
    def make() -> Any:
        return torch.randn(1, HEADS, rows, columns, device="cuda", requires_grad=True)

    return make


def sinks() -> Any:
    return torch.randn(HEADS, device="cuda", requires_grad=True)


def dropped() -> Any:
    import flashmask

    return flashmask.flashmask_attention(*tensors(128), causal=True, dropout=0.1)


def linear(dim: int, gates: bool) -> Callable[[], Any]:
    def call() -> Any:
        import flashmask

        forget = torch.nn.functional.logsigmoid(torch.randn(1, TOKENS, HEADS, device="cuda")) if gates else None
        return flashmask.linear_attention(*tensors(dim), forget)

    return call


def decoded() -> Any:
    import flashmask

    q, k, v = (t.detach() for t in tensors(128))
    return flashmask.decode_attention(q[:, :1], k, v, torch.tensor([TOKENS], device="cuda"))


def varlen() -> Any:
    import flashmask

    ends = torch.tensor([0, 600, 900, TOKENS], device="cuda", dtype=torch.int32)
    return flashmask.varlen_attention(*(t[0] for t in tensors(128)), ends, ends, causal=True)


def nothing() -> Any:
    return torch.randn(64, 64, device="cuda", requires_grad=True).exp()


CALLS: dict[str, Callable[[], Any]] = {
    "none": nothing,
    **{f"{dim} dims": attend(dim) for dim in (64, 96, 128, 192, 256, 320)},
    "float16, 128 dims": attend(128, dtype=torch.float16),
    "documents, 128 dims": attend(128, "documents"),
    "bits, 128 dims": attend(128, "bits"),
    "deterministic, 128 dims": attend(128, deterministic=True),
    "deterministic, 256 dims": attend(256, deterministic=True),
    "invariant, 128 dims": attend(128, "documents", invariant=True),
    "dropout, 128 dims": dropped,
    "sinks, 128 dims": attend(128, sinks=sinks),
    **{f"softcap, {dim} dims": attend(dim, softcap=50.0) for dim in (64, 128, 256)},
    "softcap, float16, 128 dims": attend(128, dtype=torch.float16, softcap=50.0),
    **{f"ALiBi, {dim} dims": attend(dim, alibi_slopes=slopes) for dim in (64, 128, 256)},
    **{f"bias, {dim} dims": attend(dim, bias=bias(TOKENS, TOKENS)) for dim in (32, 64, 128, 256)},
    "bias and softcap, 128 dims": attend(128, bias=bias(TOKENS, TOKENS), softcap=50.0),
    "distances, 128 dims": attend(128, distance_bias=bias(1, TOKENS)),
    "linear, 64 dims": linear(64, False),
    "linear, 128 dims": linear(128, False),
    "linear, gates, 128 dims": linear(128, True),
    "varlen, 128 dims": varlen,
    "decode, 128 dims": decoded,
}


def time_call(name: str) -> float:
    torch.cuda.init()
    torch.zeros(1, device="cuda").add_(1).item()
    began = time.perf_counter()
    o = CALLS[name]()
    if o.requires_grad:
        o.float().sum().backward()
    torch.cuda.synchronize()
    return time.perf_counter() - began


def in_a_process(name: str) -> float:
    done = subprocess.run(
        [sys.executable, __file__, "--only", name],
        env={**os.environ, "CUDA_CACHE_DISABLE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        sys.exit(f"{name}: {done.stderr.strip().splitlines()[-1]}")
    return float(done.stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", default="", help="parts of the names of calls, comma separated; default: all")
    parser.add_argument("--most", type=float, default=3.0, help="seconds that no call may exceed (default: 3)")
    parser.add_argument("--json", action="store_true", help="print the seconds as JSON")
    parser.add_argument("--only", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.only:
        print(time_call(given.only))
        return
    wanted = [name for name in CALLS if any(part in name for part in given.calls.split(","))]
    if not wanted:
        parser.error(f"--calls {given.calls}: no call has that in its name; there are {', '.join(CALLS)}")
    took = {}
    for name in wanted:
        took[name] = in_a_process(name)
        if not given.json:
            print(f"{name:28} {took[name]:6.1f} s", flush=True)
    if given.json:
        print(json.dumps(took))
    slow = [name for name, seconds in took.items() if seconds > given.most]
    if slow:
        sys.exit(f"longer than {given.most:g} s: {', '.join(slow)}")


if __name__ == "__main__":
    main()
