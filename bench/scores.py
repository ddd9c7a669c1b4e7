# SPDX-License-Identifier: Apache-2.0
"""Cost of softcap and ALiBi on a GPU, beside the same calls without them, and FlexAttention with the same scores.

2 × 8,192 tokens, 64 heads of 64, 32 of 128 or 16 of 256, bfloat16, full and causal. Contestants take turns, each
launched ten times back to back; the numbers are median milliseconds. Plans by mma.sync's kernels stand for GPUs that
are not Hopper's.

python bench/scores.py [--dims 64,128,256]
"""

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from comparison.clock import in_turns, one_way
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import flashmask
from flashmask import masks

BATCH, TOKENS, SOFTCAP = 2, 8192, 50.0


def of_flex(slopes: Tensor, causal: bool) -> dict[str, Callable[..., Tensor]]:
    """FlexAttention with each change, one compiled function per change and mask."""

    def capped(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return SOFTCAP * torch.tanh(score / SOFTCAP)

    def biased(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return score - slopes[h] * (i - j).abs()

    def attend(change: Any, blocks: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return flex_attention(q, k, v, score_mod=change, block_mask=blocks)

    blocks = create_block_mask(lambda b, h, i, j: j <= i, None, None, TOKENS, TOKENS, device="cuda")
    return {
        f"FlexAttention, {name}": torch.compile(partial(attend, change, blocks if causal else None), dynamic=False)
        for name, change in (("softcap", capped), ("ALiBi", biased))
    }


def measure(dim: int, causal: bool) -> None:
    torch._dynamo.reset()
    heads = 4096 // dim
    q, k, v, grad = (
        torch.randn(BATCH, TOKENS, heads, dim, device="cuda", dtype=torch.bfloat16).requires_grad_() for _ in range(4)
    )
    leaves, slopes = [q, k, v], 2.0 ** -torch.linspace(1, 8, heads, device="cuda")
    mask = masks.causal(TOKENS, TOKENS) if causal else masks.full(TOKENS, TOKENS)
    flex = of_flex(slopes, causal)
    theirs = [t.detach().transpose(1, 2).contiguous().requires_grad_() for t in leaves]
    for way in ("forward", "backward"):
        calls = {}
        for family in ("", "sm80."):
            for name, given in (("plain", {}), ("softcap", {"softcap": SOFTCAP}), ("ALiBi", {"alibi": True})):
                plan = flashmask.plan(mask, q, k, v, kernel=family, **given)
                of_call = {"alibi_slopes": slopes} if "alibi" in given else {}
                call = partial(flashmask.attention, q, k, v, plan=plan, **of_call)
                calls[f"{family}{name}"] = one_way(way, call, leaves, grad.detach())
        for name, attend in flex.items():
            calls[name] = one_way(way, partial(attend, *theirs), theirs, grad.detach().transpose(1, 2).contiguous())
        found = "".join(f"  {name} {taken:.3f}" for name, taken in in_turns(calls).items())
        print(f"{dim} {'causal' if causal else 'full':6} {way:9}{found}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dims", default="64,128,256", help="head dims, by commas (default: %(default)s)")
    torch.manual_seed(0)
    for dim in map(int, parser.parse_args().dims.split(",")):
        for causal in (False, True):
            measure(dim, causal)


if __name__ == "__main__":
    main()
