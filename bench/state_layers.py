# SPDX-License-Identifier: Apache-2.0
"""A layer with a state, of Qwen3-Next's sizes, over the ranks of a group, beside one GPU: time, memory, errors.

Projection, short convolution, rule, gated norm, projection. The rules are flashmask.linear_attention and, where
flash-linear-attention is installed and runs, its gated delta rule; the masks one document, five, and a shared prompt.

torchrun --nproc-per-node 2 bench/state_layers.py
torchrun --nproc-per-node 2 bench/state_layers.py --device cpu --tokens 256 --heads 4 --width 32 --hidden 64
torchrun --nproc-per-node 2 bench/state_layers.py --hosts  # only what a layer and its parts take of the host
torchrun --nproc-per-node 2 bench/state_layers.py --hosts --device cpu --heads 4 --width 8 --hidden 16
"""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import logsigmoid, rms_norm, silu

import flashmask
import flashmask.distributed as fmd
from flashmask import masks, recurrent

try:
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule
except Exception as error:
    chunk_gated_delta_rule, why = None, f"{type(error).__name__}: {error}"

parser = argparse.ArgumentParser()
parser.add_argument("--device", default="cuda")
parser.add_argument("--tokens", type=int, default=131072)
parser.add_argument("--heads", type=int, default=32)
parser.add_argument("--width", type=int, default=128)
parser.add_argument("--hidden", type=int, default=2048)
parser.add_argument("--calls", type=int, default=5)
parser.add_argument("--hosts", action="store_true")
given = parser.parse_args()
on_gpu = given.device == "cuda"
dtype = torch.bfloat16 if on_gpu else torch.float32
H, D, G = given.heads, given.width, given.heads // 2


def delta_rule(q, k, v, g, beta, cu_seqlens, initial_state, output_final_state):
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
    one = median_ms(lambda: both_ways(layer, alone, whole, grad))
    peak_one = torch.cuda.max_memory_allocated() / 2**30 if on_gpu else 0
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    two = median_ms(lambda: both_ways(layer, mine, sharding, mine_grad))
    peak_two = torch.cuda.max_memory_allocated() / 2**30 if on_gpu else 0
    row = f"{rule:8} {name:10} {tokens:8,} {one:9.2f} {two:9.2f} {one / two:6.2f} {peak_one:7.1f} {peak_two:7.1f}"
    return (
        row + f"  {float(worst[0]):.1e} {float(worst[1]):.1e} {float(worst[2:].max()):.1e} {'yes' if same else 'no':>4}"
    )


def far(a, b):
    return float((a.float() - b.float()).abs().max() / b.float().abs().max())


def hosts(rule, group):
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
    for name in parts if given.hosts else ["layer"]:
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


def main():
    began = time.perf_counter()
    dist.init_process_group("nccl" if on_gpu else "gloo")
    rank = dist.get_rank()
    if on_gpu:
        torch.cuda.set_device(rank)
    torch.set_num_threads(1)
    group, n = dist.group.WORLD, given.tokens
    rules = ["linear"] + (["delta"] if chunk_gated_delta_rule else [])
    lengths = [n // 3, n // 5, n // 9, n // 4]
    lengths.append(n - sum(lengths))
    shapes = {"one": masks.causal(n, n), "documents": masks.causal_document(lengths, n)}
    shapes["forked"] = masks.shared_question([(n // 8, [n // 8] * 7)], n)
    lines = []
    for rule in reversed(rules):
        for name, mask in ({} if given.hosts else shapes).items():
            try:
                lines.append(measure(rule, name, mask, group))
            except Exception as error:  # the same on all ranks, or torchrun ends them
                lines.append(f"{rule:8} {name:10} failed: {type(error).__name__}: {str(error)[:300]}")
            if rank == 0:
                print(f"{time.perf_counter() - began:.0f} s: {lines[-1]}", flush=True)
        lines.append(hosts(rule, group))
    if rank == 0:
        device = torch.cuda.get_device_name() if on_gpu else "CPU"
        machine = f"{dist.get_world_size()} x {device}, torch {torch.__version__}"
        print(f"\n{machine}, {H} heads of {D}, hidden {given.hidden}, {dtype}")
        if chunk_gated_delta_rule is None:
            print(f"fla did not import: {why}")
        if not given.hosts:
            print("rule     mask         tokens   one, ms  all, ms  times  GiB, 1  GiB, n", end="   ")
            print("o, dx, dw away; same bits of o")
        print("\n".join(lines))
    dist.destroy_process_group()


main()
