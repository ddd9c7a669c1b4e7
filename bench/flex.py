# SPDX-License-Identifier: Apache-2.0
"""Time to make a mask of a FlexAttention predicate that changes in each step: masks.from_mask_mod.

Five predicates, one batch entry, as many keys as queries; the captured tensors are new in each call, as ids of
documents are in training. Prints the median of the calls in milliseconds: on a CPU the processor's time of one thread,
on a GPU the time until the mask is there, then the time until the call returns, the GPU's own time, and how often one
call launches and waits. --peer also times torch.compile(create_block_mask), --peer-eager create_block_mask as it is,
which takes 17 GB at 128K.

--step times attention instead: forward, and forward and backward, of 4,096 tokens in 12 causal documents that differ
from step to step, 8 heads of 64, float32 on one thread, the mask made anew each time, beside SDPA with booleans.

--attention times attention on a GPU, forward and backward together, in bfloat16 beside compiled FlexAttention, at
shapes of PyTorch's own benchmark of it, under causal documents and a causal window of 1,024 keys; masks are
made before.

python bench/flex.py [--tokens 8192 32768 131072] [--masks documents ...] [--device cuda] [--peer] [--peer-eager]
python bench/flex.py --step [--calls 11]
python bench/flex.py --attention [--seconds 2]
"""

import argparse
import statistics
import time
from functools import partial

import torch
import torch.nn.attention.flex_attention as flex
from torch.nn.attention.flex_attention import create_block_mask
from torch.nn.functional import scaled_dot_product_attention

from flashmask import flex_attention, masks


def lengths_of(tokens, mean, generator):
    """Lengths of documents that fill the tokens."""
    drawn = torch.randint(mean // 4, 2 * mean, (8 * tokens // mean + 1,), generator=generator)
    ends = drawn.cumsum(0)
    lengths = drawn[ends <= tokens]
    left = tokens - int(lengths.sum())
    return torch.cat([lengths, torch.tensor([left])]) if left else lengths


def ids_and_positions(tokens, generator):
    lengths = lengths_of(tokens, 700, generator)
    ids = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    return ids, torch.arange(tokens) - (lengths.cumsum(0) - lengths)[ids]


def documents(tokens, device, generator):
    ids = ids_and_positions(tokens, generator)[0].to(device)
    return lambda b, h, q, kv: (ids[q] == ids[kv]) & (q >= kv)


def positions_and_window(tokens, device, generator):
    ids, at = (each.to(device) for each in ids_and_positions(tokens, generator))
    return lambda b, h, q, kv: (ids[q] == ids[kv]) & (at[q] >= at[kv]) & (at[q] - at[kv] < 512)


def image_blocks(tokens, device, generator):
    lengths = lengths_of(tokens, 300, generator)
    number = torch.arange(len(lengths))
    block = torch.where(number % 2 == 1, number, -1)[torch.repeat_interleave(number, lengths)].to(device)
    return lambda b, h, q, kv: (q >= kv) | ((block[q] == block[kv]) & (block[q] >= 0))


def shared_prefix(tokens, device, generator):
    """Answers to a prompt, each of which sees the prompt and itself; several prompts are packed."""
    ids, _ = ids_and_positions(tokens, generator)
    prompt, first = ids // 5, ids % 5 == 0
    ids, prompt, first = ids.to(device), prompt.to(device), first.to(device)
    return lambda b, h, q, kv: (q >= kv) & (prompt[q] == prompt[kv]) & ((ids[q] == ids[kv]) | first[kv])


def block_diffusion(tokens, device, generator):
    """Noised tokens, then clean ones, as BD3-LM trains: noised blocks see themselves and the clean blocks before."""
    half, size = tokens // 2, 16
    start = int(torch.randint(1, 8, (), generator=generator))
    block = ((torch.arange(half) + start) // size).repeat(2).to(device)

    def mask_mod(b, h, q, kv):
        clean_q, clean_kv = q >= half, kv >= half
        same = (block[q] == block[kv]) & (clean_q == clean_kv)
        before = (block[q] > block[kv]) & clean_kv & ~clean_q
        causal = (block[q] >= block[kv]) & clean_kv & clean_q
        return same | before | causal

    return mask_mod


MASKS = {
    "documents": documents,
    "positions and window": positions_and_window,
    "image blocks": image_blocks,
    "shared prefix": shared_prefix,
    "block diffusion": block_diffusion,
}


def processor_time(build, predicates):
    """The median over the predicates, each of which is built once; the first is not counted."""
    taken = []
    for mask_mod in predicates:
        begin = time.process_time()
        build(mask_mod)
        taken.append(time.process_time() - begin)
    return f"{1e3 * statistics.median(taken[1:]):8.2f} ms"


def times_on_the_gpu(build, predicates):
    """What one call takes, the first not counted: until the work is done, until it returns, and on the GPU."""
    done, returned = [], []
    for mask_mod in predicates:
        torch.cuda.synchronize()
        begin = time.perf_counter()
        build(mask_mod)
        returned.append(time.perf_counter() - begin)
        torch.cuda.synchronize()
        done.append(time.perf_counter() - begin)
    until = [1e3 * statistics.median(times[1:]) for times in (done, returned)]
    on_gpu, launches, waits = profiled(partial(build, predicates[-1]))
    return f"{until[0]:7.3f} ms ({until[1]:.3f} returns, {on_gpu:.3f} on the GPU, {launches} launches, {waits} waits)"


def profiled(call):
    """Milliseconds of work on the GPU, kernels, copies and fills, and how often the host waits, of one call."""
    kinds = torch.profiler.ProfilerActivity
    with torch.profiler.profile(activities=[kinds.CPU, kinds.CUDA]) as profile:
        call()
    events = profile.events()
    work = [each for each in events if each.device_type == torch.autograd.DeviceType.CUDA]
    waits = sum(each.name in ("cudaStreamSynchronize", "cudaEventSynchronize") for each in events)
    return 1e-3 * sum(each.time_range.elapsed_us() for each in work), len(work), waits


def mask_of(mask_mod, B, H, Q_LEN, KV_LEN, device):
    """masks.from_mask_mod(), whose arguments are named as those of create_block_mask()."""
    return masks.from_mask_mod(mask_mod, B, H, Q_LEN, KV_LEN, device=device)


def print_masks(asked):
    timed = processor_time if asked.device == "cpu" else times_on_the_gpu
    for tokens in asked.tokens:
        for name in asked.masks:
            torch._dynamo.reset()  # one compiled function per row, for its shapes
            compiled = torch.compile(create_block_mask, dynamic=False)
            makers = {"from_mask_mod": mask_of}
            makers |= {"compiled": compiled} if asked.peer else {}
            makers |= {"eager": create_block_mask} if asked.peer_eager else {}
            generator = torch.Generator().manual_seed(0)
            predicates = [MASKS[name](tokens, asked.device, generator) for _ in range(asked.calls + 1)]
            print(f"{name:20} {tokens:7}", end="", flush=True)
            for way, make in makers.items():
                build = partial(make, B=None, H=None, Q_LEN=tokens, KV_LEN=tokens, device=asked.device)
                try:
                    found = timed(build, predicates)
                except RuntimeError as error:  # inductor does not compile every mask_mod
                    found = f"does not run: {type(error).__name__}"
                print(f"  {way} {found}", end="", flush=True)
            print(flush=True)


SHAPES = [(16, 16, 16, 4096, 64), (16, 16, 2, 4096, 64), (8, 16, 16, 4096, 128)]
"""Batch, heads of q and of k and v, tokens, head dim."""


def print_attention(seconds):
    from comparison.clock import in_turns, one_way

    for batch, heads, kv_heads, tokens, dim in SHAPES:
        ids = ids_and_positions(tokens, torch.Generator().manual_seed(0))[0].cuda()
        predicates = {
            "causal documents": lambda b, h, q, kv, ids=ids: (ids[q] == ids[kv]) & (q >= kv),
            "sliding window": lambda b, h, q, kv: (q >= kv) & (q - kv < 1024),
        }
        shapes = [(batch, each, tokens, dim) for each in (heads, kv_heads, kv_heads)]
        qkv = [torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True) for shape in shapes]
        grad = torch.randn_like(qkv[0])
        for name, mask_mod in predicates.items():
            torch._dynamo.reset()
            blocks = create_block_mask(mask_mod, None, None, tokens, tokens, device="cuda")
            mask = masks.from_mask_mod(mask_mod, None, None, tokens, tokens, device="cuda")
            ways = {
                "flashmask": partial(flex_attention, *qkv, block_mask=mask, enable_gqa=True),
                "FlexAttention": partial(
                    torch.compile(flex.flex_attention, dynamic=False), *qkv, block_mask=blocks, enable_gqa=True
                ),
            }
            found = in_turns({way: one_way("both", call, qkv, grad) for way, call in ways.items()}, seconds=seconds)
            ratio = found["FlexAttention"] / found["flashmask"]
            taken = "  ".join(f"{way} {each:.3f} ms" for way, each in found.items())
            print(f"{batch} x {tokens}, {heads}:{kv_heads} heads of {dim}, {name:16}  {taken}  {ratio:.2f}", flush=True)


def by_flex_attention(qkv, ids):
    tokens = len(ids)
    mask = masks.from_mask_mod(lambda b, h, q, kv: (ids[q] == ids[kv]) & (q >= kv), None, None, tokens, tokens)
    return flex_attention(*qkv, block_mask=mask)


def by_flex_attention_and_block_mask(qkv, ids):
    tokens = len(ids)
    mask_mod = lambda b, h, q, kv: (ids[q] == ids[kv]) & (q >= kv)  # noqa: E731
    return flex_attention(*qkv, block_mask=create_block_mask(mask_mod, None, None, tokens, tokens, device="cpu"))


def by_booleans(qkv, ids):
    return scaled_dot_product_attention(*qkv, attn_mask=(ids[:, None] == ids).tril())


def print_steps(calls, tokens=4096, documents=12):
    """The median CPU milliseconds of each way; they take turns."""
    generator = torch.Generator().manual_seed(0)
    qkv = [torch.randn(1, 8, tokens, 64, generator=generator, requires_grad=True) for _ in range(3)]
    grad = torch.randn(1, 8, tokens, 64, generator=generator)
    ways = [by_booleans, by_flex_attention, by_flex_attention_and_block_mask]
    taken = {(way, both): [] for way in ways for both in (False, True)}
    for _ in range(calls + 1):
        cuts = torch.randperm(tokens - 1, generator=generator)[: documents - 1] + 1
        ids = torch.zeros(tokens, dtype=torch.int64).index_fill(0, cuts, 1).cumsum(0)
        for (way, both), times in taken.items():
            begin = time.process_time()
            o = way(qkv, ids)
            if both:
                torch.autograd.grad(o, qkv, grad)
            times.append(time.process_time() - begin)
    for way in ways:
        times = [1e3 * statistics.median(taken[way, both][1:]) for both in (False, True)]
        print(f"{way.__name__:34} forward {times[0]:8.1f} ms, both ways {times[1]:8.1f} ms", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[8192, 32768, 131072])
    parser.add_argument("--calls", type=int, default=11)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--peer", action="store_true")
    parser.add_argument("--peer-eager", action="store_true")
    parser.add_argument("--masks", nargs="+", default=list(MASKS), choices=MASKS)
    parser.add_argument("--step", action="store_true")
    parser.add_argument("--attention", action="store_true")
    parser.add_argument("--seconds", type=float, default=2)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.step:
        print_steps(asked.calls)
    elif asked.attention:
        print_attention(asked.seconds)
    else:
        print_masks(asked)


if __name__ == "__main__":
    main()
