# SPDX-License-Identifier: Apache-2.0
"""Time to make a mask of a FlexAttention predicate that changes in each step: masks.from_mask_mod.

Five predicates, one batch entry, as many keys as queries; the captured tensors are new in each call, as ids of
documents are in training. Prints the median of the calls in milliseconds: on a CPU the processor's time of one thread.
--peer also times torch.compile(create_block_mask), --peer-eager create_block_mask as it is, which takes 17 GB at 128K.

--step times attention instead: forward, and forward and backward, of 4,096 tokens in 12 causal documents that differ
from step to step, 8 heads of 64, float32 on one thread, the mask made anew each time, beside SDPA with booleans.

python bench/flex.py [--tokens 8192 32768 131072] [--device cuda] [--peer] [--peer-eager]
python bench/flex.py --step [--calls 11]
"""

import argparse
import statistics
import time

import torch
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


def milliseconds(build, predicates, device):
    """The median over the predicates, each of which is built once; the first is not counted."""
    clock = time.process_time if device == "cpu" else time.perf_counter
    taken = []
    for mask_mod in predicates:
        synchronise(device)
        begin = clock()
        build(mask_mod)
        synchronise(device)
        taken.append(clock() - begin)
    return 1e3 * statistics.median(taken[1:])


def synchronise(device):
    if device != "cpu":
        torch.cuda.synchronize()


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
    parser.add_argument("--step", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.step:
        print_steps(asked.calls)
        return
    compiled = torch.compile(create_block_mask) if asked.peer else None
    for tokens in asked.tokens:
        sizes = (None, None, tokens, tokens)
        ways = {"from_mask_mod": lambda mod, sizes=sizes: masks.from_mask_mod(mod, *sizes, device=asked.device)}
        if asked.peer:
            ways["compiled"] = lambda mod, sizes=sizes: compiled(mod, *sizes, device=asked.device)
        if asked.peer_eager:
            ways["eager"] = lambda mod, sizes=sizes: create_block_mask(mod, *sizes, device=asked.device)
        for name, family in MASKS.items():
            generator = torch.Generator().manual_seed(0)
            predicates = [family(tokens, asked.device, generator) for _ in range(asked.calls + 1)]
            times = {way: milliseconds(build, predicates, asked.device) for way, build in ways.items()}
            print(f"{name:22} {tokens:7}", *(f"{way} {took:8.2f} ms" for way, took in times.items()), flush=True)


if __name__ == "__main__":
    main()
