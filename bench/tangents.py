# SPDX-License-Identifier: Apache-2.0
"""Cost of forward-mode derivatives on a GPU, by mma.sync's kernels, beside SDPA's math backend.

16,384 tokens, bfloat16, 24 heads of 128 or 48 of 64: packed images (documents of 256 to 4,096 tokens), causal and full;
the forward alone, the tangents of q, k and v alone, and both by torch.func.jvp, all by mma.sync's kernels. Then packed
images of 24 heads of 128 in 4,096 to 16,384 tokens beside torch.func.jvp of scaled_dot_product_attention under
SDPBackend.MATH with a dense mask, where that fits, and the most memory that either takes besides its inputs.
Contestants take turns, each launched ten times back to back; the numbers are median milliseconds.

python bench/tangents.py [--seconds 5]
"""

import argparse
from collections.abc import Callable

import torch
from comparison.clock import in_turns
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import flashmask
from flashmask import masks
from flashmask._plans.call import Call

TOKENS = 16384
IMAGES = [256, 1024, 4096, 512, 2048, 256]  # half of the tokens, once and again


def images(tokens: int) -> list[int]:
    """Returns the lengths of documents that fill so many tokens."""
    found: list[int] = []
    while sum(found) < tokens:
        found.append(min(IMAGES[len(found) % len(IMAGES)], tokens - sum(found)))
    return found


def inputs(tokens: int, heads: int, dim: int) -> tuple[list[Tensor], list[Tensor]]:
    """q, k and v, and their tangents."""
    made = [torch.randn(1, tokens, heads, dim, device="cuda", dtype=torch.bfloat16) for _ in range(6)]
    return made[:3], made[3:]


def print_costs(name: str, mask: flashmask.Mask, heads: int, dim: int, seconds: float) -> None:
    primals, along = inputs(TOKENS, heads, dim)
    plan = flashmask.plan(mask, *primals, kernel="sm80")
    o, lse = flashmask.attention(*primals, plan=plan, return_lse=True)
    call = Call(mask=plan.tensor)

    def forward(*tensors: Tensor) -> Tensor:
        o: Tensor = flashmask.attention(*tensors, plan=plan)
        return o

    taken = in_turns(
        {
            "forward": lambda: forward(*primals),
            "tangents": lambda: torch.ops.flashmask.forward_tangents(*primals, o, lse, *along, *call),
            "of v": lambda: torch.ops.flashmask.forward_tangents(*primals, o, lse, None, None, along[2], *call),
            "jvp": lambda: torch.func.jvp(forward, tuple(primals), tuple(along)),
        },
        seconds=seconds,
    )
    both = taken["forward"] + taken["tangents"]
    print(
        f"{name:8} d {dim:3}" + "".join(f"  {each} {ms:.3f}" for each, ms in taken.items()),
        f" both ÷ forward {both / taken['forward']:.2f}, jvp ÷ forward {taken['jvp'] / taken['forward']:.2f}",
        flush=True,
    )


def memory_of(run: Callable[[], object]) -> float:
    """Returns the most GiB that a run takes besides what there was."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**30


def print_beside_math(tokens: int, seconds: float) -> None:
    primals, along = inputs(tokens, 24, 128)
    lengths = images(tokens)
    mask = masks.document(lengths, tokens)
    document = torch.arange(len(lengths), device="cuda").repeat_interleave(torch.tensor(lengths, device="cuda"))
    seen = document[:, None] == document[None]
    theirs = [[t.transpose(1, 2).contiguous() for t in each] for each in (primals, along)]

    def math(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            return scaled_dot_product_attention(q, k, v, attn_mask=seen)

    runs: dict[str, Callable[[], object]] = {
        "flashmask": lambda: torch.func.jvp(
            lambda *each: flashmask.attention(*each, mask), tuple(primals), tuple(along)
        ),
        "math": lambda: torch.func.jvp(math, *map(tuple, theirs)),
    }
    gib = {}
    for name, run in list(runs.items()):
        try:
            run()
            gib[name] = memory_of(run)
        except torch.OutOfMemoryError:
            del runs[name]
            print(f"images of {tokens:,} tokens: {name} does not fit")
    torch.cuda.empty_cache()
    taken = in_turns(runs, seconds=seconds)
    line = "".join(f"  {name} {ms:.3f} ms, {gib[name]:.2f} GiB" for name, ms in taken.items())
    ratio = f"  math ÷ flashmask {taken['math'] / taken['flashmask']:.1f}" if "math" in taken else ""
    print(f"images of {tokens:,} tokens:{line}{ratio}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=5, help="for each row")
    seconds = parser.parse_args().seconds
    torch.manual_seed(0)
    print(torch.cuda.get_device_name())
    for heads, dim in ((24, 128), (48, 64)):
        for name, mask in (
            ("images", masks.document(images(TOKENS), TOKENS)),
            ("causal", masks.causal(TOKENS, TOKENS)),
            ("full", masks.full(TOKENS, TOKENS)),
        ):
            print_costs(name, mask, heads, dim, seconds)
    for tokens in (4096, 8192, 16384):
        print_beside_math(tokens, seconds)


if __name__ == "__main__":
    main()
