# SPDX-License-Identifier: Apache-2.0
"""What calls of flashmask.jax cost, beside PyTorch's of the same library and JAX's own attention.

Needs JAX and PyTorch.

    python bench/jax_calls.py                # on a CPU: a call that has nothing to do, and packed documents
    python bench/jax_calls.py --device cuda  # on a GPU: 32K tokens, causal and packed

Prints a table: the median and the least time of a compiled call, in milliseconds, forward and forward with backward.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np


class Row(NamedTuple):
    """What is timed: functions that run it once, forward, and forward with backward, and wait for the result."""

    name: str
    forward: Callable[[], Any]
    both: Callable[[], Any]


class Case(NamedTuple):
    """Sizes, and the documents' lengths; one document: causal attention."""

    title: str
    shape: tuple[int, int, int, int]
    kv_heads: int
    documents: list[int]


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--seconds", type=float, default=2.0, help="how long each call is repeated")
    return parser.parse_args()


def cases(device: str) -> list[Case]:
    if device == "cpu":
        lengths = [300, 200, 500, 48, 600, 400]
        return [Case("nothing to do", (1, 16, 1, 8), 1, [16]), Case("packed", (1, sum(lengths), 4, 64), 4, lengths)]
    lengths = np.random.default_rng(0).multinomial(32768 - 24, np.full(24, 1 / 24)) + 1
    return [
        Case("nothing to do", (1, 16, 1, 64), 1, [16]),
        Case("causal", (1, 32768, 16, 128), 16, [32768]),
        Case("packed", (1, 32768, 16, 128), 16, lengths.tolist()),
    ]


def arrays(case: Case) -> list[np.ndarray]:
    batch, tokens, heads, dim = case.shape
    random = np.random.default_rng(0)
    sizes = (heads, case.kv_heads, case.kv_heads, heads)  # q, k, v and the gradient of o
    return [random.standard_normal((batch, tokens, each, dim), np.float32) for each in sizes]


def jax_rows(case: Case, device: str) -> Iterator[Row]:
    import jax
    import jax.numpy as jnp

    import flashmask
    import flashmask.jax

    tokens = case.shape[1]
    *qkv, grad = (jnp.asarray(each, jnp.bfloat16 if device == "cuda" else jnp.float32) for each in arrays(case))
    ends = jnp.asarray(np.cumsum([0, *case.documents]), jnp.int32)
    mask = flashmask.masks.causal_document(case.documents, tokens)

    def row(name: str, attend: Callable[..., Any], *given: Any) -> Row:
        def both(*every: Any) -> Any:
            o, pull = jax.vjp(lambda *tensors: attend(*tensors, *every[3:-1]), *every[:3])
            return o, pull(every[-1])

        forward, both = jax.jit(attend), jax.jit(both)
        return Row(
            name,
            lambda: jax.block_until_ready(forward(*qkv, *given)),
            lambda: jax.block_until_ready(both(*qkv, *given, grad)),
        )

    def traced(q: Any, k: Any, v: Any, ends: Any) -> Any:
        indices = flashmask.jax.from_cu_seqlens(ends, tokens)
        return flashmask.jax.attention(q, k, v, plan=flashmask.jax.plan(indices, q, k, v))

    yield row("an addition", lambda q, k, v: q + 1)
    yield row("flashmask.jax, constant mask", lambda q, k, v: flashmask.jax.attention(q, k, v, mask))
    yield row("flashmask.jax, traced cu_seqlens", traced, ends)
    if len(case.documents) == 1:
        own = {"implementation": "cudnn"} if device == "cuda" else {}
        yield row("jax.nn, causal", lambda *qkv: jax.nn.dot_product_attention(*qkv, is_causal=True, **own))
        return

    ids = jnp.asarray(np.repeat(np.arange(len(case.documents)), case.documents))
    position = jnp.arange(tokens)
    visible = ((ids[:, None] == ids) & (position[:, None] >= position))[None, None]
    own = {"implementation": "cudnn"} if device == "cuda" else {}
    yield row("jax.nn, dense mask", lambda q, k, v, m: jax.nn.dot_product_attention(q, k, v, mask=m, **own), visible)
    if device == "cuda":
        yield row("cuDNN, packed (private)", packed_by_cudnn, ends)


def packed_by_cudnn(q: Any, k: Any, v: Any, ends: Any) -> Any:
    """JAX hands packed sequences to cuDNN in a function that it does not export."""
    from jax._src.cudnn.fused_attention_stablehlo import MaskType, dot_product_attention

    lengths = (ends[1:] - ends[:-1])[None]
    return dot_product_attention(
        *(q, k, v, None, None, lengths, lengths, ends[None], ends[None]),
        scale=q.shape[-1] ** -0.5,
        mask_type=MaskType.PADDING_CAUSAL,
    )


def torch_rows(case: Case, device: str) -> Iterator[Row]:
    import torch

    import flashmask

    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    *qkv, grad = (torch.from_numpy(each).to(device, dtype) for each in arrays(case))
    mask = flashmask.masks.causal_document(case.documents, case.shape[1])
    leaves = [each.clone().requires_grad_() for each in qkv]

    def wait(result: Any) -> Any:
        if device == "cuda":
            torch.cuda.synchronize()
        return result

    yield Row(
        "PyTorch's call of flashmask",
        lambda: wait(flashmask.attention(*qkv, mask)),
        lambda: wait(torch.autograd.grad(flashmask.attention(*leaves, mask), leaves, grad)),
    )


def timed(run: Callable[[], Any], seconds: float) -> tuple[float, float]:
    """The median and the least time of a call in milliseconds, by turns of at least a hundredth of a second."""
    run()
    began = time.perf_counter()
    run()
    calls = max(1, round(0.01 / (time.perf_counter() - began)))
    turns, end = [], time.perf_counter() + seconds
    while not turns or time.perf_counter() < end:
        began = time.perf_counter()
        for _ in range(calls):
            run()
        turns.append((time.perf_counter() - began) / calls * 1e3)
    return statistics.median(turns), min(turns)


def main() -> None:
    given = parsed()
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # PyTorch needs memory too
    for case in cases(given.device):
        print(f"\n{case.title}: {' x '.join(map(str, case.shape))}, {len(case.documents)} documents")
        print(f"{'':36}{'forward':>21}{'and backward':>21}")
        for rows in (jax_rows, torch_rows):
            for row in rows(case, given.device):
                try:
                    numbers = [f"{number:10.4f}" for run in row[1:] for number in timed(run, given.seconds)]
                except Exception as reason:  # a contestant that this machine or version does not have
                    numbers = [f"  does not run: {str(reason).splitlines()[0][:80]}"]
                print(f"{row.name:36}{' '.join(numbers)}", flush=True)


if __name__ == "__main__":
    main()
