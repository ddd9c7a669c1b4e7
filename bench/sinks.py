# SPDX-License-Identifier: Apache-2.0
"""Cost of attention sinks on a GPU, in gpt-oss's window layers, beside FlexAttention, which rescales by lse.

131,072 tokens, 64 query heads of 64 over 8, a window of 128 keys, bfloat16. Contestants take turns, each launched ten
times back to back; the numbers are median milliseconds.

python bench/sinks.py
"""

from collections.abc import Callable

import torch
from comparison.clock import in_turns, one_way
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import flashmask
from flashmask import masks

TOKENS, HEADS, KV_HEADS, DIM, WINDOW = 131072, 64, 8, 64, 128
WAYS = ("forward", "backward", "both")


def rescaled_flex() -> Callable[..., Tensor]:
    """FlexAttention as Transformers uses it for gpt-oss, compiled as a whole; tensors are (batch, heads, tokens,
    dim)."""
    blocks = create_block_mask(
        lambda b, h, i, j: (j <= i) & (i - j < WINDOW), None, None, TOKENS, TOKENS, device="cuda", _compile=True
    )

    def attend(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor) -> Tensor:
        o, lse = flex_attention(q, k, v, block_mask=blocks, enable_gqa=True, return_lse=True)
        of_rows = sinks.view(1, -1, 1, 1).expand(*lse.shape, 1)
        joint = torch.logsumexp(torch.cat([lse[..., None], of_rows], dim=-1), dim=-1, keepdim=True)
        return o * torch.exp(lse[..., None] - joint).to(o.dtype)

    compiled: Callable[..., Tensor] = torch.compile(attend, fullgraph=True)
    return compiled


def main() -> None:
    torch.manual_seed(0)
    q, k, v, grad = (
        torch.randn(1, TOKENS, heads, DIM, device="cuda", dtype=torch.bfloat16)
        for heads in (HEADS, KV_HEADS, KV_HEADS, HEADS)
    )
    leaves = [t.requires_grad_() for t in (q, k, v)]
    mask = masks.sliding_window(TOKENS, TOKENS, WINDOW)
    of_heads = torch.randn(HEADS, device="cuda", requires_grad=True)
    given = {
        "without": None,
        "float32": of_heads,
        "of rows": torch.randn(1, HEADS, TOKENS, device="cuda", requires_grad=True),
    }
    flex = rescaled_flex()
    theirs = [*(t.detach().transpose(1, 2).contiguous().requires_grad_() for t in leaves), of_heads]
    for way in WAYS:
        calls = {
            name: one_way(
                way,
                lambda sinks=sinks: flashmask.attention(q, k, v, mask, sinks=sinks),
                [*leaves, *([] if sinks is None else [sinks])],
                grad,
            )
            for name, sinks in given.items()
        }
        calls["FlexAttention"] = one_way(way, lambda: flex(*theirs), theirs, grad.transpose(1, 2).contiguous())
        print(f"{way:9}" + "".join(f"  {name} {taken:.3f}" for name, taken in in_turns(calls).items()), flush=True)


if __name__ == "__main__":
    main()
