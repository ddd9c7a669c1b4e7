# SPDX-License-Identifier: Apache-2.0
"""Cost of the bits of a document: invariant=True beside deterministic=True, on a GPU.

Causal documents of one length, real samples of data/, and Alpaca's, in 32,768 tokens, 32 heads over 8, head dim 128,
bfloat16. Both take turns, each launched ten times back to back; the numbers are median milliseconds. Last, what plans
take: the host until one is made, of a mask on the host that no plan was made for, and the GPU for one of row indices
there, without and with invariant.

python bench/invariance.py [--tokens 32768] [--dim 128]
"""

import argparse
import math
from functools import cache, partial

import torch
from comparison.clock import in_turns, on_the_gpu, on_the_host, one_way
from comparison.data import alpaca, sample

import flashmask
from flashmask import masks
from flashmask._abi.header import Options
from flashmask._plans.call import Call
from flashmask._torch.plans.device_plan import plan_of_rows

HEADS, KV_HEADS = 32, 8
WAYS = "forward", "backward"


def packs(tokens: int) -> dict[str, list[int]]:
    """Lengths that fill the tokens, by name."""
    equal = {
        f"{length:,} tokens each": [length] * (tokens // length) + [tokens % length] * (tokens % length > 0)
        for length in (250, 1000, 4000)
    }
    samples = {"a sample": sample(tokens).lengths} if tokens in (8192, 32768, 131072) else {}
    return {**equal, **samples, "Alpaca": alpaca(tokens).lengths}


def measure(name: str, lengths: list[int], dim: int) -> None:
    tokens = sum(lengths)
    q, k, v, grad = (
        torch.randn(1, tokens, heads, dim, device="cuda", dtype=torch.bfloat16)
        for heads in (HEADS, KV_HEADS, KV_HEADS, HEADS)
    )
    leaves = [t.requires_grad_() for t in (q, k, v)]
    mask = masks.causal_document(lengths)
    plans = {option: flashmask.plan(mask, *leaves, **{option: True}) for option in ("deterministic", "invariant")}
    columns = f"{name:18} {len(lengths):5} documents"
    for way in WAYS:
        calls = {
            option: one_way(way, partial(flashmask.attention, *leaves, plan=plan), leaves, grad)
            for option, plan in plans.items()
        }
        found = in_turns(calls)
        ratio = found["invariant"] / found["deterministic"]
        columns += f"   {way} {found['deterministic']:.3f} {found['invariant']:.3f} ({ratio:.2f})"
    made = on_the_host(lambda: flashmask.plan(masks.causal_document(lengths), *leaves, invariant=True), 3)
    there = " ".join(f"{on_the_gpu(partial(plan_there, lengths, leaves, each)) or math.nan:.3f}" for each in (0, 1))
    print(f"{columns}   plan {made:.1f} ms, on the GPU {there}", flush=True)


def plan_there(lengths: list[int], leaves: list[torch.Tensor], invariant: int) -> object:
    """Makes the plan of a mask whose row indices are on the GPU."""
    rows = row_indices(tuple(lengths))
    problem = Call().problem([t.shape for t in leaves], "bfloat16")._replace(device=str(leaves[0].device))
    options = Options(deterministic=1, invariant=invariant)
    documents = rows.most_documents or 0
    return plan_of_rows(rows.startend_row_indices, rows.causal, problem, options, most_documents=documents)


@cache
def row_indices(lengths: tuple[int, ...]) -> flashmask.RowIndices:
    return masks.from_cu_seqlens(torch.tensor([0, *lengths], device="cuda").cumsum(0), sum(lengths))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=32768, help="(default: %(default)s)")
    parser.add_argument("--dim", type=int, default=128, help="head dim (default: %(default)s)")
    given = parser.parse_args()
    torch.manual_seed(0)
    print(
        f"{torch.cuda.get_device_name()}: {given.tokens:,} tokens, head dim {given.dim}; ms, deterministic, invariant"
    )
    for name, lengths in packs(given.tokens).items():
        measure(name, lengths, given.dim)


if __name__ == "__main__":
    main()
