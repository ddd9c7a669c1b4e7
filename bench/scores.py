# SPDX-License-Identifier: Apache-2.0
"""Cost of softcap, ALiBi, biases and max_scores on a GPU beside calls without them, and others with the same scores.

2 × 8,192 tokens, 64 heads of 64, 32 of 128 or 16 of 256, bfloat16, full and causal: softcap and ALiBi beside
FlexAttention; a bias of each score, shared by the batch, and one by distance, full, beside FlexAttention and SDPA's
efficient kernel, without and with their gradients. Pair biases: 4 heads of 32, N rows of N tokens with one bias
(1, 4, N, N), beside cuEquivariance's kernel too where cuequivariance_ops_torch is installed. Functions of scores, which
are compiled, beside FlexAttention, and chains that are compiled beside mma.sync's own kernels for the same without a
factor. Learning: functions that read what learns, with its gradient and without. Contestants take turns, each launched
ten times back to back; the numbers are median milliseconds. Plans by mma.sync's kernels stand for GPUs that are not
Hopper's.

python bench/scores.py [--dims 64,128,256] [--rows changes,biases,pairs,functions,learning] [--seconds 5]
                       [--without-flex]
"""

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from comparison.clock import in_turns, one_way
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

import flashmask
from flashmask import masks, scores

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


def measure(dim: int, causal: bool, seconds: float, with_flex: bool) -> None:
    torch._dynamo.reset()
    heads = 4096 // dim
    q, k, v, grad = (
        torch.randn(BATCH, TOKENS, heads, dim, device="cuda", dtype=torch.bfloat16).requires_grad_() for _ in range(4)
    )
    leaves, slopes = [q, k, v], 2.0 ** -torch.linspace(1, 8, heads, device="cuda")
    mask = masks.causal(TOKENS, TOKENS) if causal else masks.full(TOKENS, TOKENS)
    flex = of_flex(slopes, causal) if with_flex else {}
    theirs = [t.detach().transpose(1, 2).contiguous().requires_grad_() for t in leaves]
    for way in ("forward", "backward"):
        calls = {}
        for family in ("", "sm80."):
            for name, given in (("plain", {}), ("softcap", {"softcap": SOFTCAP}), ("ALiBi", {"alibi": True})):
                plan = flashmask.plan(mask, q, k, v, kernel=family, **given)
                of_call = {"alibi_slopes": slopes} if "alibi" in given else {}
                call = partial(flashmask.attention, q, k, v, plan=plan, **of_call)
                calls[f"{family}{name}"] = one_way(way, call, leaves, grad.detach())
                if way == "forward" and name == "plain":
                    calls[f"{family}max_scores"] = partial(call, return_max_scores=True)
        for name, attend in flex.items():
            calls[name] = one_way(way, partial(attend, *theirs), theirs, grad.detach().transpose(1, 2).contiguous())
        print_row(f"{dim} {'causal' if causal else 'full':6} {way:9}", calls, seconds)


def print_row(name: str, calls: dict[str, Callable[[], Any]], seconds: float) -> None:
    found = "".join(f"  {name} {taken:.3f}" for name, taken in in_turns(calls, seconds=seconds).items())
    print(f"{name}{found}", flush=True)


def efficient(bias: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    expanded = bias.expand(q.shape[0], -1, -1, -1)
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
        return scaled_dot_product_attention(q, k, v, attn_mask=expanded)


def of_cuequivariance() -> dict[str, Callable[..., Tensor]]:
    """cuEquivariance's triangle attention, where it is installed."""
    try:
        from cuequivariance_ops_torch import triangle_attention
    except ImportError:
        return {}
    return {"cuEquivariance": lambda bias, q, k, v: triangle_attention(q[None], k[None], v[None], bias[None])[0]}


def flex_of(read: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    """FlexAttention with a bias that read(bias, head, row, column) finds."""

    return flex_by(lambda bias: lambda s, b, h, i, j: s + read(bias, h, i, j))


def flex_by(make: Callable[[Tensor], Callable[..., Tensor]]) -> Callable[..., Tensor]:
    """FlexAttention with the function that is made of a tensor."""

    def attend(of: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return flex_attention(q, k, v, score_mod=make(of))

    return torch.compile(attend, dynamic=False)


def changed(make: Callable[[Tensor], Any], mask: Any, of: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Any:
    return flashmask.attention(q, k, v, mask, score=make(of))


def measure_biases(
    name: str, shape: tuple[int, int, int, int], by_distance: bool, seconds: float, with_flex: bool
) -> None:
    """shape: batch, tokens, heads, head dim. The bias is shared by the batch."""
    torch._dynamo.reset()
    _, tokens, heads, _ = shape
    q, k, v, grad = (torch.randn(shape, device="cuda", dtype=torch.bfloat16).requires_grad_() for _ in range(4))
    of_bias = (1, heads, 1, 2 * tokens - 1) if by_distance else (1, heads, tokens, tokens)
    bias = torch.randn(of_bias, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    kind = "distance_bias" if by_distance else "bias"
    given = {kind: bias} | ({"distance_origin": tokens - 1} if by_distance else {})
    theirs = [t.detach().transpose(1, 2).contiguous().requires_grad_() for t in (q, k, v)]
    others = {}
    with_flex = with_flex and bias.numel() <= 1 << 31  # larger ones end in an illegal memory access
    if by_distance and with_flex:
        others["FlexAttention"] = flex_of(lambda b, h, i, j: b[0, h, 0, i - j + tokens - 1])
    if not by_distance:
        if with_flex:
            others["FlexAttention"] = flex_of(lambda b, h, i, j: b[0, h, i, j])
        others["SDPA efficient"] = efficient
        if shape[3] == 32:
            others |= of_cuequivariance()
    mask = masks.full(tokens, tokens)
    ours = {
        f"{family}{what}": partial(
            flashmask.attention, q, k, v, plan=flashmask.plan(mask, q, k, v, kernel=family, **options), **of_call
        )
        for family in ("", "sm80.")
        for what, options, of_call in (("plain", {}, {}), (kind, {kind: True}, given))
    }
    their_grad = grad.detach().transpose(1, 2).contiguous()
    for way, with_gradient in (("forward", False), ("backward", False), ("backward", True)):
        of_ours = [q, k, v, bias] if with_gradient else [q, k, v]
        bias.requires_grad_(with_gradient)
        calls = {
            label: one_way(way, call, of_ours if kind in label else [q, k, v], grad.detach())
            for label, call in ours.items()
        }
        for label, attend in others.items():
            leaves = [*theirs, bias] if with_gradient else theirs
            calls[label] = one_way(way, partial(attend, bias, *theirs), leaves, their_grad)
        print_row(f"{name} {kind} {way}{' with its gradient' if with_gradient else ''}", calls, seconds)


def functions_that_learn(heads: int) -> dict[str, tuple[Tensor, Callable[..., Any], Callable[..., Any]]]:
    """What learns, what makes our change of it, and FlexAttention's function."""

    def gated(gate: Tensor) -> Callable[..., Tensor]:
        return lambda s, b, h, i, j: s * s.abs() * gate[h]

    def by_table(table: Tensor) -> Callable[..., Tensor]:
        return lambda s, b, h, i, j: torch.where(s > 0, s, s * table[h, i - j + TOKENS - 1])

    def capped(bias: Tensor) -> Callable[..., Tensor]:
        return lambda s, b, h, i, j: SOFTCAP * torch.tanh((s + bias[0, h, i, j]) / SOFTCAP)

    def made(*shape: int) -> Tensor:
        return torch.randn(shape, device="cuda")

    return {
        "gate of heads": (made(heads), gated, gated),
        "table of distances": (made(heads, 2 * TOKENS - 1), by_table, by_table),
        "bias, then softcap": (
            made(1, heads, TOKENS, TOKENS).bfloat16(),
            lambda bias: flashmask.scores.bias(bias) | flashmask.scores.softcap(SOFTCAP),
            capped,
        ),
    }


def measure_learning(dim: int, seconds: float, with_flex: bool) -> None:
    heads = 4096 // dim
    q, k, v, grad = (
        torch.randn(BATCH, TOKENS, heads, dim, device="cuda", dtype=torch.bfloat16).requires_grad_() for _ in range(4)
    )
    mask = masks.full(TOKENS, TOKENS)
    theirs = [t.detach().transpose(1, 2).contiguous().requires_grad_() for t in (q, k, v)]
    their_grad = grad.detach().transpose(1, 2).contiguous()
    for name, (of, ours, function) in functions_that_learn(heads).items():
        torch._dynamo.reset()
        attend = flex_by(function)
        for way, learns in (("forward", False), ("backward", False), ("backward", True)):
            of.requires_grad_(learns)
            leaves = [of] if learns else []
            calls = {
                "plain": one_way(way, partial(flashmask.attention, q, k, v, mask), [q, k, v], grad.detach()),
                name: one_way(way, partial(changed, ours, mask, of, q, k, v), [q, k, v, *leaves], grad.detach()),
            }
            if with_flex:
                calls["FlexAttention"] = one_way(way, partial(attend, of, *theirs), [*theirs, *leaves], their_grad)
            print_row(f"{dim} {name} {way}{' with its gradient' if learns else ''}", calls, seconds)


def functions(heads: int) -> dict[str, Callable[..., Tensor]]:
    """What FlexAttention's users write, by captured tensors and by distances."""
    document = torch.arange(TOKENS, device="cuda") // 1024
    gate = torch.linspace(0.5, 1.5, heads, device="cuda")
    return {
        "squares": lambda s, b, h, i, j: s * s.abs(),
        "silu": lambda s, b, h, i, j: torch.nn.functional.silu(s),
        "cosine": lambda s, b, h, i, j: s * (1 + 0.1 * torch.cos(i - j)),
        "by document": lambda s, b, h, i, j: torch.where(document[i] == document[j], s, s - 10.0),
        "gated": lambda s, b, h, i, j: torch.where(document[i] == document[j], s * gate[h], s * 0.5),
    }


def measure_functions(dim: int, seconds: float, with_flex: bool) -> None:
    heads = 4096 // dim
    leaves = [
        torch.randn(BATCH, TOKENS, heads, dim, device="cuda", dtype=torch.bfloat16).requires_grad_() for _ in range(3)
    ]
    grad, mask = torch.randn_like(leaves[0]), masks.full(TOKENS, TOKENS)
    theirs = [t.detach().transpose(1, 2).contiguous().requires_grad_() for t in leaves]
    for name, function in functions(heads).items():
        torch._dynamo.reset()
        flex = torch.compile(partial(flex_attention, score_mod=function), dynamic=False)
        for way in ("forward", "backward"):
            calls = {}
            for family in ("", "sm80."):
                for what, score in (("plain", None), ("function", function)):
                    plan = flashmask.plan(mask, *leaves, kernel=family, score=score)
                    call = partial(flashmask.attention, *leaves, plan=plan, score=score)
                    calls[f"{family}{what}"] = one_way(way, call, leaves, grad)
            if with_flex:
                calls["FlexAttention"] = one_way(way, partial(flex, *theirs), theirs, grad.transpose(1, 2).contiguous())
            print_row(f"{dim} {name} {way}", calls, seconds)


def measure_chains(dim: int, seconds: float) -> None:
    """Kernels that are compiled for a change and a factor, beside the library's own without the factor."""
    heads = 4096 // dim
    leaves = [
        torch.randn(BATCH, TOKENS, heads, dim, device="cuda", dtype=torch.bfloat16).requires_grad_() for _ in range(3)
    ]
    grad, mask = torch.randn_like(leaves[0]), masks.full(TOKENS, TOKENS)
    slopes = 2.0 ** -torch.linspace(1, 8, heads, device="cuda")
    bias = torch.randn(1, heads, TOKENS, TOKENS, device="cuda", dtype=torch.bfloat16)
    table = torch.randn(1, heads, 1, 2 * TOKENS - 1, device="cuda", dtype=torch.bfloat16)
    changes = {
        "softcap": scores.softcap(SOFTCAP),
        "ALiBi": scores.alibi(slopes),
        "bias": scores.bias(bias),
        "table": scores.distance(table, TOKENS - 1),
    }
    for name, change in changes.items():
        for way in ("forward", "backward"):
            calls = {}
            for label, score in (("own", change), ("compiled", change | scores.multiply(0.75))):
                plan = flashmask.plan(mask, *leaves, kernel="sm80.", score=score)
                call = partial(flashmask.attention, *leaves, plan=plan, score=score)
                calls[label] = one_way(way, call, leaves, grad)
            print_row(f"{dim} {name} {way}", calls, seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dims", default="64,128,256", help="head dims, by commas (default: %(default)s)")
    parser.add_argument(
        "--rows", default="changes,biases,pairs,functions", help="what to measure (default: %(default)s)"
    )
    parser.add_argument("--seconds", type=float, default=5, help="for each row (default: %(default)s)")
    parser.add_argument(
        "--without-flex", action="store_true", help="leave out FlexAttention, which takes minutes to compile"
    )
    torch.manual_seed(0)
    given = parser.parse_args()
    how = given.seconds, not given.without_flex
    rows = given.rows.split(",")
    for dim in map(int, given.dims.split(",")):
        for causal in (False, True) if "changes" in rows else ():
            measure(dim, causal, *how)
        for by_distance in (False, True) if "biases" in rows else ():
            measure_biases(str(dim), (BATCH, TOKENS, 4096 // dim, dim), by_distance, *how)
        if "learning" in rows:
            measure_learning(dim, *how)
        if "functions" in rows:
            measure_functions(dim, *how)
            measure_chains(dim, given.seconds)
    for tokens in (384, 768) if "pairs" in rows else ():
        measure_biases(f"pairs of {tokens}", (tokens, tokens, 4, 32), False, *how)


if __name__ == "__main__":
    main()
