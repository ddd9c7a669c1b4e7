# SPDX-License-Identifier: Apache-2.0
"""A layer with a state, of Qwen3-Next's sizes, over the ranks of a group, beside one GPU: time, memory, errors.

Projection, short convolution, rule, gated norm, projection. The rules are flashmask.linear_attention and, where
flash-linear-attention is installed and runs, its gated delta rule; the masks one document, five, and a shared prompt.

Rank 0 says on stderr what it is about to do, with the seconds since the start. The first call of flash-linear-attention
compiles and tunes its kernels, for minutes: rank 0 does it first, and the others then find them in Triton's cache.

torchrun --nproc-per-node 2 bench/state_layers.py
torchrun --nproc-per-node 2 bench/state_layers.py --rules linear  # no flash-linear-attention, nothing to compile
torchrun --nproc-per-node 2 bench/state_layers.py --device cpu --tokens 256 --heads 4 --width 32 --hidden 64
torchrun --nproc-per-node 2 bench/state_layers.py --hosts  # only what a layer and its parts take of the host
torchrun --nproc-per-node 2 bench/state_layers.py --hosts --device cpu --heads 4 --width 8 --hidden 16
"""

import argparse
import importlib.util
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.functional import logsigmoid, rms_norm, silu

import flashmask
import flashmask.distributed as fmd
from flashmask import masks, recurrent

BEGAN = time.perf_counter()
RULES = ("linear", "delta")


def rules_of(text):
    """Reads "linear,delta"."""
    rules = text.split(",")
    if not set(rules) <= set(RULES):
        raise argparse.ArgumentTypeError(f"{text!r} names other rules; expected some of {','.join(RULES)}")
    return rules


parser = argparse.ArgumentParser()
parser.add_argument("--device", default="cuda")
parser.add_argument("--tokens", type=int, default=131072)
parser.add_argument("--heads", type=int, default=32)
parser.add_argument("--width", type=int, default=128)
parser.add_argument("--hidden", type=int, default=2048)
parser.add_argument("--calls", type=int, default=5)
parser.add_argument("--hosts", action="store_true", help="only the host time of a layer and of its parts")
parser.add_argument("--rules", type=rules_of, help="some of linear,delta; default: those that run here")
given = parser.parse_args()
on_gpu = given.device == "cuda"
dtype = torch.bfloat16 if on_gpu else torch.float32
H, D, G = given.heads, given.width, given.heads // 2


def say(text):
    if dist.get_rank() == 0:
        print(f"{time.perf_counter() - BEGAN:.0f} s: {text}", file=sys.stderr, flush=True)


# ---- rules ----


def why_no_delta_rule():
    """Says why flash-linear-attention does not run here; empty if it does."""
    if not on_gpu:
        return "the device is a CPU; its kernels are for GPUs"
    if importlib.util.find_spec("fla") is None:
        return "it is not installed"
    try:
        import fla.ops.gated_delta_rule  # noqa: F401
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def delta_rule(q, k, v, g, beta, cu_seqlens, initial_state, output_final_state):
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule

    return chunk_gated_delta_rule(
        q,
        k,
        v,
        g=g,
        beta=beta,
        initial_state=initial_state,
        output_final_state=output_final_state,
        use_qk_l2norm_in_kernel=True,
        cu_seqlens=cu_seqlens,
    )


def compile_delta_rule(ranks: int) -> None:
    """Compiles what layers will call: with the heads of one process and of a rank, with initial states and without."""
    for turn in ("rank 0 compiles", "the others read what it compiled"):
        if (turn[:6] == "rank 0") == (dist.get_rank() == 0):
            for heads in (H, H // ranks):
                for forked in [False] if given.hosts else [False, True]:
                    say(f"delta: {turn}, {heads} heads{', forked' * forked}")
                    call_delta_rule(heads, forked)
        wait()
        dist.barrier()


def call_delta_rule(heads, forked):
    """One forward and backward over three nodes, of which the last two continue the first one if `forked`."""
    mask = masks.shared_question([(128, [128, 128])], 384) if forked else masks.causal_document([200, 184], 384)
    shapes = (max(heads // 2, 1), D), (max(heads // 2, 1), D), (heads, D), (heads,), (heads,)
    q, k, v, g, beta = (torch.randn(1, 384, *shape).to(given.device, dtype).requires_grad_() for shape in shapes)
    o = recurrent.over_nodes(delta_rule, flashmask.nodes(mask), q, k, v, logsigmoid(g.float()), beta.sigmoid())
    o.sum().backward()


# ---- a layer ----


class Layer(nn.Module):
    """Projection, short convolution, rule, gated norm, projection."""

    def __init__(self, rule):
        super().__init__()
        self.rule = rule
        self.into = nn.Linear(given.hidden, 2 * G * D + 2 * H * D + 2 * H, bias=False)
        self.conv = nn.Parameter(torch.randn(2 * G * D + H * D, 4) * 0.3)
        self.norm = nn.Parameter(torch.ones(D))
        self.out = nn.Linear(H * D, given.hidden, bias=False)

    def forward(self, hidden, where):
        over = isinstance(where, fmd.Sharding)
        x, z, a, b = self.into(hidden).split([2 * G * D + H * D, H * D, H, H], -1)
        x = silu(
            fmd.causal_conv(x, self.conv, sharding=where)
            if over
            else recurrent.causal_conv(x, self.conv, nodes=where.nodes)
        )
        q, k, v = x.split([G * D, G * D, H * D], -1)
        q, k, v = q.unflatten(-1, (G, D)), k.unflatten(-1, (G, D)), v.unflatten(-1, (H, D))
        g = logsigmoid(a.float())
        if self.rule == "linear":
            if over:
                o = fmd.linear_attention(q, k, v, g, sharding=where)
            else:
                o = flashmask.linear_attention(q, k, v, g, mask=where.mask)
        else:
            given_ = q, k, v, g, b.sigmoid()
            if over:
                o = fmd.over_nodes(delta_rule, where, *given_)
            else:
                o = recurrent.over_nodes(delta_rule, where.nodes, *given_)
        o = rms_norm(o.to(hidden.dtype), (D,), self.norm) * silu(z.unflatten(-1, (H, D)))
        return self.out(o.flatten(2))


# ---- measurements ----


class Whole:
    def __init__(self, mask):
        self.mask, self.nodes = mask, flashmask.nodes(mask)


def wait():
    if on_gpu:
        torch.cuda.synchronize()


def both_ways(layer, hidden, where, grad):
    layer.zero_grad()
    out = layer(hidden, where)
    out.backward(grad)
    return out


def median_ms(compute):
    times = []
    for _ in range(given.calls + 2):
        wait()
        dist.barrier()
        began = time.perf_counter()
        compute()
        wait()
        times.append((time.perf_counter() - began) * 1e3)
    slowest = torch.tensor(sorted(times[2:])[given.calls // 2], device=given.device)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return float(slowest)


def host_us(compute):
    """Host time of a call, while the device keeps up: the best of some, which no wait for the device is in."""
    best = 1e9
    for _ in range(200 if given.hosts else 12):
        wait()
        dist.barrier()
        began = time.perf_counter()
        compute()
        best = min(best, (time.perf_counter() - began) * 1e6)
    return best


def measure(rule, name, mask, group):
    torch.manual_seed(0)
    layer = Layer(rule).to(given.device, dtype)
    tokens = mask.shape.rows
    draw = torch.Generator().manual_seed(1)
    hidden = torch.randn(1, tokens, given.hidden, generator=draw).to(given.device, dtype)
    grad = torch.randn(1, tokens, given.hidden, generator=draw).to(given.device, dtype)
    whole = Whole(mask)
    say(f"{rule}, {name}, {tokens:,} tokens: one process beside all ranks, results")
    sharding = fmd.shard(mask, group, query_heads=1, kv_heads=1, head_dim=64, partition="contiguous")
    alone = hidden.clone().requires_grad_()
    mine, mine_grad = sharding.shard(hidden).requires_grad_(), sharding.shard(grad)
    expected = both_ways(layer, alone, whole, grad).detach()
    gradients = {key: each.grad.float().clone() for key, each in layer.named_parameters()}
    found = both_ways(layer, mine, sharding, mine_grad).detach()
    errors = [far(found, sharding.shard(expected)), far(mine.grad, sharding.shard(alone.grad))]
    for key, each in layer.named_parameters():
        total = each.grad.float()
        dist.all_reduce(total)
        errors.append(far(total, gradients[key]))
    worst = torch.tensor(errors, device=given.device)
    dist.all_reduce(worst, dist.ReduceOp.MAX)
    same = torch.tensor(float(torch.equal(found, sharding.shard(expected))), device=given.device)
    dist.all_reduce(same, dist.ReduceOp.MIN)
    del expected, found, gradients
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    say(f"{rule}, {name}: time of one process")
    one = median_ms(lambda: both_ways(layer, alone, whole, grad))
    peak_one = torch.cuda.max_memory_allocated() / 2**30 if on_gpu else 0
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    say(f"{rule}, {name}: time of all ranks")
    two = median_ms(lambda: both_ways(layer, mine, sharding, mine_grad))
    peak_two = torch.cuda.max_memory_allocated() / 2**30 if on_gpu else 0
    row = f"{rule:8} {name:10} {tokens:8,} {one:9.2f} {two:9.2f} {one / two:6.2f} {peak_one:7.1f} {peak_two:7.1f}"
    return (
        row + f"  {float(worst[0]):.1e} {float(worst[1]):.1e} {float(worst[2:].max()):.1e} {'yes' if same else 'no':>4}"
    )


def far(a, b):
    return float((a.float() - b.float()).abs().max() / b.float().abs().max())


def hosts(rule, group, with_parts):
    """Host time of a layer, and of its parts that know ranks, at a length whose kernels take no time."""
    torch.manual_seed(0)
    layer, mask = Layer(rule).to(given.device, dtype), masks.causal_document([300, 212], 512)
    hidden = torch.randn(1, 512, given.hidden).to(given.device, dtype)
    sharding = fmd.shard(mask, group, query_heads=1, kv_heads=1, head_dim=64, partition="contiguous")
    whole, mine = Whole(mask), sharding.shard(hidden)
    x = torch.randn(1, 512, len(layer.conv)).to(given.device, dtype)
    heads = [torch.randn(1, 512, *shape).to(given.device, dtype) for shape in ((G, D), (G, D), (H, D), (H,))]
    for_rule = [each.requires_grad_() for each in (*heads[:3], logsigmoid(heads[3].float()))]
    held = [each.detach()[:, : mine.shape[1]].clone().requires_grad_() for each in (x, *for_rule)]
    x.requires_grad_()
    parts = {
        "layer": (lambda: layer(hidden, whole), lambda: layer(mine, sharding)),
        "causal_conv": (
            lambda: recurrent.causal_conv(x, layer.conv, nodes=whole.nodes),
            lambda: fmd.causal_conv(held[0], layer.conv, sharding=sharding),
        ),
        "over_nodes": (
            lambda: recurrent.over_nodes(values, whole.nodes, *for_rule),
            lambda: fmd.over_nodes(values, sharding, *held[1:]),
        ),
        "linear_attention": (
            lambda: flashmask.linear_attention(*for_rule, mask=mask),
            lambda: fmd.linear_attention(*held[1:], sharding=sharding),
        ),
    }
    lines = [
        f"{rule}: host, us    one process, forward    both   over ranks, forward    both   without sending    both"
    ]
    for name in parts if with_parts else ["layer"]:
        say(f"{rule}: host time, {name}")
        one, ranks = parts[name]
        times = [*both_hosts(one), *both_hosts(ranks)]
        send = dist.all_to_all_single
        dist.all_to_all_single = lambda *arguments, **options: None
        try:
            times += both_hosts(ranks)
        finally:
            dist.all_to_all_single = send
        of_parts = zip(times[::2], times[1::2], (20, 21, 17), strict=True)
        lines.append(f"{name:18}" + "".join(f" {forward:{width}.0f} {both:7.0f}" for forward, both, width in of_parts))
    return "\n".join(lines)


def both_hosts(compute):
    return host_us(compute), host_us(lambda: compute().sum().backward())


def values(q, k, v, g, cu_seqlens, initial_state, output_final_state):
    """A rule that takes no time."""
    return v, None


@record  # torchrun then ends with the error of the rank that failed first
def main():
    why = why_no_delta_rule()
    if why and given.rules and "delta" in given.rules:
        parser.error(f"--rules names delta, which flash-linear-attention computes: {why}; leave it out")
    rules = given.rules or [each for each in RULES if each != "delta" or not why]
    rank = int(os.environ["LOCAL_RANK"])
    if on_gpu:
        torch.cuda.set_device(rank)
    dist.init_process_group("nccl" if on_gpu else "gloo", device_id=torch.device("cuda", rank) if on_gpu else None)
    torch.set_num_threads(1)
    group, n = dist.group.WORLD, given.tokens
    lengths = [n // 3, n // 5, n // 9, n // 4]
    lengths.append(n - sum(lengths))
    shapes = {"one": masks.causal(n, n), "documents": masks.causal_document(lengths, n)}
    shapes["forked"] = masks.shared_question([(n // 8, [n // 8] * 7)], n)
    say(describe(why))
    lines = []
    for number, rule in enumerate(rules):
        if rule == "delta":
            compile_delta_rule(dist.get_world_size())
        for name, mask in ({} if given.hosts else shapes).items():
            lines.append(measure(rule, name, mask, group))
            say(lines[-1])
        lines.append(hosts(rule, group, with_parts=given.hosts and number == 0))  # parts are the same under all rules
        say(lines[-1])
    if rank == 0:
        print(f"\n{describe(why)}")
        if not given.hosts:
            print("rule     mask         tokens   one, ms  all, ms  times  GiB, 1  GiB, n", end="   ")
            print("o, dx, dw away; same bits of o")
        print("\n".join(lines))
    dist.destroy_process_group()


def describe(why):
    device = torch.cuda.get_device_name() if on_gpu else "CPU"
    machine = f"{dist.get_world_size()} x {device}, torch {torch.__version__}"
    without = f"\nno delta rule of flash-linear-attention: {why}" if why else ""
    return f"{machine}, {H} heads of {D}, hidden {given.hidden}, {dtype}{without}"


main()
