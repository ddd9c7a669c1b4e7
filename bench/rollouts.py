# SPDX-License-Identifier: Apache-2.0
"""Rollouts of one prompt on a GPU: attention over their tree, beside copying the keys and values of each path.

64 answers to a prompt of 2,048 tokens, 32 heads over 8 of 128, bfloat16: FlashMask under masks.from_tree, made once as
all layers of a model share it; and what TRL's "tree_fa3" does with FlashAttention 3, here with the FlashAttention 2 in
PyTorch: gather the keys and values of the path from the root to each answer, and take each as a sequence of its own.
Results are compared before anything is timed.

python bench/rollouts.py [--answers 512]
"""

import argparse
import statistics
from functools import partial

import torch
from torch.nn.attention.varlen import varlen_attn

from flashmask import attention, masks

PROMPT, COUNT, HEADS, KEY_HEADS, DIM = 2048, 64, 32, 8, 128
MIB = 2**20


class Tree:
    """A prompt and the answers to it, and what TRL would gather."""

    def __init__(self, answer):
        lengths = torch.tensor([PROMPT] + [answer] * COUNT)
        parents = torch.tensor([-1] + [0] * COUNT)
        self.tokens = int(lengths.sum())
        self.rows = masks.from_tree(parents.cuda(), lengths.cuda(), self.tokens)
        prompt = torch.arange(PROMPT)
        answers = torch.arange(PROMPT, self.tokens).view(COUNT, answer)
        paths = [prompt, *(torch.cat([prompt, own]) for own in answers)]
        self.gathered = torch.cat(paths).cuda()
        self.longest = max(PROMPT, answer), PROMPT + answer
        self.ends = [self.cumulative(lengths), self.cumulative(torch.tensor([len(path) for path in paths]))]

    @staticmethod
    def cumulative(lengths):
        return torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).int().cuda()


def on_the_tree(q, k, v, tree):
    return attention(q, k, v, tree.rows)


def on_copied_paths(q, k, v, tree):
    k, v = (each[0].index_select(0, tree.gathered) for each in (k, v))
    return varlen_attn(q[0], k, v, *tree.ends, *tree.longest, window_size=(-1, 0))[None]


def inputs(tokens):
    torch.manual_seed(0)
    heads = (HEADS, KEY_HEADS, KEY_HEADS, HEADS)
    q, k, v, grad = (torch.randn(1, tokens, n, DIM, device="cuda", dtype=torch.bfloat16) for n in heads)
    return [each.requires_grad_() for each in (q, k, v)], grad


def both_ways(way, leaves, grad, tree):
    o = way(*leaves, tree)
    return o, *torch.autograd.grad(o, leaves, grad)


def milliseconds(call, seconds=1.5):
    """Median milliseconds of calls back to back."""
    for _ in range(3):
        call()
    times = []
    while sum(times) < seconds * 1e3:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def peak(call):
    """Peak of the bytes held in addition to those held before, results included."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def measured(way, leaves, grad, tree):
    """Milliseconds forward and in both directions, and the peak of both in MiB."""
    both = partial(both_ways, way, leaves, grad, tree)
    held = peak(both) / MIB
    with torch.no_grad():
        forward = milliseconds(partial(way, *leaves, tree))
    return forward, milliseconds(both), held


def away(one, other):
    """The largest relative difference of o, dq, dk and dv."""
    return max(float((a - b).float().norm() / b.float().norm()) for a, b in zip(one, other, strict=True))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--answers", type=int, nargs="*", default=[128, 256, 512, 1024], help="tokens of each answer")
    print("| answers | tokens, copied keys | forward, ms | both directions, ms | peak, MiB |")
    for answer in parser.parse_args().answers:
        tree = Tree(answer)
        leaves, grad = inputs(tree.tokens)
        ways = (on_the_tree, on_copied_paths)
        difference = away(*(both_ways(way, leaves, grad, tree) for way in ways))
        assert difference < 0.02, f"the two ways differ by {difference:.3f}"
        ours, copied = (measured(way, leaves, grad, tree) for way in ways)
        cells = " | ".join(f"{a:.2f}, {b:.2f}: {b / a:.2f}" for a, b in zip(ours, copied, strict=True))
        print(f"| {answer} | {tree.tokens}, {len(tree.gathered)} | {cells} |")


if __name__ == "__main__":
    main()
