# SPDX-License-Identifier: Apache-2.0
"""Linear attention on a GPU, beside flash-linear-attention where it is installed (pip install fla-core einops).

Heads of 128 × 128 with gates per token, of one document and of packed ones, with a decay per head, and as mLSTM has
them, beside mlstm_kernels where that is installed; xLSTM-7B's heads of 256 × 512; Mamba-2's of 128 × 64 in packed
documents; a tree beside repeated prompts; few heads of a long document. bfloat16. Contestants take turns, each launched
ten times back to back; the numbers are median milliseconds, and peak GB beyond the inputs. Last, errors of gradients
against the definition in double precision. A contestant that refuses a case is printed with its reason; the first
backward of a shape in Triton takes minutes, in which it tunes and compiles, so choose --cases.

python bench/linear.py [--seconds 2] [--cases gates,decay,mlstm,wide,mamba,tree,few,errors]
    [--ways forward,both]
"""

import argparse
import math
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import torch
from comparison.clock import in_turns, one_way
from torch import Tensor
from torch.nn.functional import logsigmoid

import flashmask
from flashmask import masks

try:
    from fla.ops.retention import chunk_retention
    from fla.ops.simple_gla import chunk_simple_gla
except ImportError:
    chunk_simple_gla = chunk_retention = None
try:
    from mlstm_kernels.torch.chunkwise.triton_xl_chunk.fwbw import mlstm_chunkwise__xl_chunk
except ImportError:
    mlstm_chunkwise__xl_chunk = None

Attend = Callable[..., Tensor]
T = TypeVar("T")


def normal(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(*shape, device="cuda", dtype=dtype)


def peak_of(launch: Callable[[], object]) -> float:
    """GB beyond what is allocated before."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    launch()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 1e9


def attempt(launch: Callable[[], T]) -> tuple[T | None, str]:
    """Launches once; returns what it gives, or None and the first line of the error."""
    try:
        return launch(), ""
    except RuntimeError as error:
        return None, str(error).partition("\n")[0]


def gradients(attend: Attend, leaves: list[Tensor], grad: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(attend(*leaves), leaves, grad)


WAYS = ["forward", "both"]


def measure(case: str, seconds: float, contestants: dict[str, tuple[Attend, list[Tensor]]]) -> None:
    """Prints the times of each way; a contestant has leaves of its own."""
    for way in WAYS:
        launches, found = {}, {}
        for name, (attend, leaves) in contestants.items():
            grad = torch.randn_like(leaves[2])  # o has the shape of v
            launch = one_way(way, partial(attend, *leaves), leaves, grad)
            given, reason = attempt(launch)
            if given is None:
                found[name] = f"does not run: {reason}"
            else:
                launches[name] = launch
        for name, time in in_turns(launches, seconds=seconds).items():
            found[name] = f"{time:.3f} ({peak_of(launches[name]):.2f} GB)"
        print(f"{case:28} {way:8}", *(f"{name} {found[name]}" for name in contestants), sep="  ", flush=True)


def leaves_of(*tensors: Tensor) -> list[Tensor]:
    return [t.detach().clone().requires_grad_() for t in tensors]


def measure_gates(seconds: float) -> None:
    q, k, v = (normal(1, 8192, 96, 128) for _ in range(3))
    g = logsigmoid(normal(1, 8192, 96, dtype=torch.float32) + 3)
    lengths = packed_lengths(8192, 300)
    for name, documents in (("", [8192]), (f", {len(lengths)} documents", lengths)):
        attend = partial(flashmask.linear_attention, mask=masks.causal_document(documents, 8192))
        contestants: dict[str, tuple[Attend, list[Tensor]]] = {"flashmask": (attend, leaves_of(q, k, v, g))}
        if chunk_simple_gla is not None:
            ends = torch.tensor([0, *documents], device="cuda").cumsum(0)
            of_fla = partial(chunk_simple_gla, cu_seqlens=ends, cu_seqlens_cpu=ends.cpu()) if name else chunk_simple_gla
            contestants["simple GLA"] = (lambda *t, f=of_fla: f(*t)[0], leaves_of(q, k, v, g))
        measure(f"8,192 x 96, gates{name}", seconds, contestants)


def measure_decay(seconds: float) -> None:
    q, k, v = (normal(1, 8192, 96, 128) for _ in range(3))
    decay = torch.log(1 - 2.0 ** (-5 - torch.arange(96, device="cuda", dtype=torch.float32)))
    contestants = {"flashmask": (lambda *t: flashmask.linear_attention(*t, decay), leaves_of(q, k, v))}
    if chunk_retention is not None:
        contestants["retention"] = (lambda *t: chunk_retention(*t)[0], leaves_of(q, k, v))
    measure("8,192 x 96, 128 x 128, decay", seconds, contestants)


def measure_mlstm_heads(case: str, seconds: float, batch: int, heads: int, key_dim: int, value_dim: int) -> None:
    q, k = (normal(batch, 8192, heads, key_dim) for _ in range(2))
    v = normal(batch, 8192, heads, value_dim)
    open_gate = normal(batch, 8192, heads, dtype=torch.float32) + 3
    given = normal(batch, 8192, heads, dtype=torch.float32) * 2 - 10
    attend = partial(flashmask.linear_attention, normalize=True)
    ours = leaves_of(q, k, v, logsigmoid(open_gate), given)
    contestants: dict[str, tuple[Attend, list[Tensor]]] = {"flashmask": (attend, ours)}
    if mlstm_chunkwise__xl_chunk is not None:
        peer = partial(mlstm_chunkwise__xl_chunk, autocast_kernel_dtype=torch.bfloat16)
        theirs = leaves_of(*(t.transpose(1, 2).contiguous() for t in (q, k, v, given, open_gate)))
        contestants["xl_chunk"] = (peer, theirs)
    measure(case, seconds, contestants)


def measure_mlstm(seconds: float) -> None:
    measure_mlstm_heads("8,192 x 96, 128 x 128, mLSTM", seconds, 1, 96, 128, 128)


def measure_wide(seconds: float) -> None:
    measure_mlstm_heads("4 x 8,192 x 8, 256 x 512", seconds, 4, 8, 256, 512)


def measure_few(seconds: float) -> None:
    for heads in (1, 4, 8, 16, 24, 32):
        q, k, v = (normal(1, 32768, heads, 128) for _ in range(3))
        g = logsigmoid(normal(1, 32768, heads, dtype=torch.float32) + 3)
        contestants = {"flashmask": (flashmask.linear_attention, leaves_of(q, k, v, g))}
        if chunk_simple_gla is not None:
            contestants["simple GLA"] = (lambda *t: chunk_simple_gla(*t)[0], leaves_of(q, k, v, g))
        measure(f"32,768 x {heads}, gates", seconds, contestants)


def packed_lengths(total: int, mean: int) -> list[int]:
    """Lengths from an exponential distribution."""
    generator, lengths = torch.Generator().manual_seed(0), []
    while (left := total - sum(lengths)) > 0:
        drawn = -mean * math.log(1 - torch.rand((), generator=generator).item())
        lengths.append(min(left, 1 + int(drawn)))
    return lengths


def measure_mamba(seconds: float) -> None:
    tokens, heads, groups = 16384, 128, 8
    q, k = normal(1, tokens, groups, 128), normal(1, tokens, groups, 128)
    v = normal(1, tokens, heads, 64)
    g = -8e-3 * torch.exp(2 * normal(1, tokens, heads, dtype=torch.float32))
    lengths = packed_lengths(tokens, 300)
    for name, documents in (("one document", [tokens]), (f"{len(lengths)} documents", lengths)):
        mask = masks.causal_document(documents, tokens)
        attend = partial(flashmask.linear_attention, mask=mask, scale=1.0)
        contestants: dict[str, tuple[Attend, list[Tensor]]] = {"flashmask": (attend, leaves_of(q, k, v, g))}
        if chunk_simple_gla is not None:
            ends = torch.tensor([0, *documents], device="cuda").cumsum(0)
            of_fla: Any = partial(chunk_simple_gla, scale=1.0, cu_seqlens=ends, cu_seqlens_cpu=ends.cpu())
            repeated = leaves_of(*(t.repeat_interleave(heads // groups, 2) for t in (q, k)), v, g)
            contestants["simple GLA"] = (lambda *t, f=of_fla: f(*t)[0], repeated)
        measure(f"Mamba-2, {name}", seconds, contestants)


def measure_tree(seconds: float) -> None:
    prompt, answers, answer = 2000, 8, 750
    mask = masks.shared_question([(prompt, [answer] * answers)], prompt + answers * answer)
    q, k, v = (normal(1, prompt + answers * answer, 32, 128) for _ in range(3))
    g = logsigmoid(normal(1, q.shape[1], 32, dtype=torch.float32) + 3)
    contestants = {"flashmask": (partial(flashmask.linear_attention, mask=mask), leaves_of(q, k, v, g))}
    repeated = [
        torch.cat(
            [part for i in range(answers) for part in (t[:, :prompt], t[:, prompt + i * answer :][:, :answer])], 1
        )
        for t in (q, k, v, g)
    ]
    documents = [prompt + answer] * answers
    flat = masks.causal_document(documents, sum(documents))
    contestants["repeated"] = (partial(flashmask.linear_attention, mask=flat), leaves_of(*repeated))
    if chunk_simple_gla is not None:
        ends = torch.tensor([0, *documents], device="cuda").cumsum(0)
        of_fla = partial(chunk_simple_gla, cu_seqlens=ends, cu_seqlens_cpu=ends.cpu())
        contestants["simple GLA, repeated"] = (lambda *t: of_fla(*t)[0], leaves_of(*repeated))
    measure("2,000 + 8 x 750, 32 heads", seconds, contestants)


def definition(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    """Gates alone, without a mask beyond causality."""
    sums = g.cumsum(1).transpose(1, 2)
    exponents = sums[..., :, None] - sums[..., None, :]
    see = torch.ones(q.shape[1], q.shape[1], dtype=torch.bool, device=q.device).tril()
    weights = torch.where(see, exponents, -torch.inf).exp() * q.shape[3] ** -0.5
    return torch.einsum("bhij,bjhc->bihc", weights * torch.einsum("bihd,bjhd->bhij", q, k), v)


def measure_errors(_: float) -> None:
    """Median errors as shares of the median gradient."""
    for memory in (3, 20, 1000):
        given = [
            *(normal(1, 4096, 1, 128) for _ in range(3)),
            logsigmoid(normal(1, 4096, 1).float() + math.log(memory)),
        ]
        grad = normal(1, 4096, 1, 128)
        doubles = [t.double().requires_grad_() for t in given]
        exact = torch.autograd.grad(definition(*doubles), doubles, grad.double())
        attends: dict[str, Attend] = {"flashmask": flashmask.linear_attention}
        if chunk_simple_gla is not None:
            attends["simple GLA"] = lambda *t: chunk_simple_gla(*t)[0]
        for name, attend in attends.items():
            found, reason = attempt(partial(gradients, attend, leaves_of(*given), grad))
            parts = [f"does not run: {reason}"]
            if found is not None:
                errors = [(a.double() - b).abs().median() / b.abs().median() for a, b in zip(found, exact, strict=True)]
                parts = [f"{part} {error:.1e}" for part, error in zip(("q", "k", "v", "gates"), errors, strict=True)]
            print(f"memory of {memory} tokens, median errors of gradients, {name}:", *parts, sep="  ", flush=True)


CASES = {
    "gates": measure_gates,
    "decay": measure_decay,
    "mlstm": measure_mlstm,
    "wide": measure_wide,
    "few": measure_few,
    "mamba": measure_mamba,
    "tree": measure_tree,
    "errors": measure_errors,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2, help="per table row (default: %(default)s)")
    parser.add_argument("--cases", default=",".join(CASES), help="by commas (default: %(default)s)")
    parser.add_argument("--ways", default=",".join(WAYS), help="by commas (default: %(default)s)")
    given = parser.parse_args()
    WAYS[:] = given.ways.split(",")
    torch.manual_seed(0)
    print(torch.cuda.get_device_name(), "torch", torch.__version__, flush=True)
    for case in given.cases.split(","):
        torch.cuda.empty_cache()
        CASES[case](given.seconds)


if __name__ == "__main__":
    main()
