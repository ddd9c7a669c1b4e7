# SPDX-License-Identifier: Apache-2.0
"""Ways to spread attention over the ranks of a group: ours, all keys on every rank, FlexAttention's, and PyTorch's."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

import flashmask
import flashmask.distributed as fmd
from flashmask.distributed._exchange import Exchange
from flashmask.distributed._operators import TO_HEADS, TO_TOKENS

DIM = 128
Leaves = list[Tensor]


class Problem(NamedTuple):
    """(1, tokens, heads, DIM): q, k and v of the whole sequence, and the gradient of o."""

    mask: flashmask.Mask
    whole: Leaves
    grad: Tensor
    options: dict[str, Any]

    @property
    def heads(self) -> tuple[int, int]:
        return self.whole[0].shape[2], self.whole[1].shape[2]


class Way(NamedTuple):
    """A rank's leaves, the gradient of its o, and the function to call with the leaves.

    `positions` are the positions of its tokens. `plain` turns o and gradients into (1, tokens, heads, DIM), the
    problem's layout.
    """

    leaves: Leaves
    grad: Tensor
    attend: Callable[..., Tensor]
    positions: Tensor
    plain: Callable[[Leaves], Leaves] = list
    sharding: Any = None


def problem_of(mask: flashmask.Mask, heads: tuple[int, int], device: torch.device) -> Problem:
    generator = torch.Generator(device).manual_seed(0)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    tokens, counts = mask.shape.rows, (heads[0], heads[1], heads[1], heads[0])
    made = [torch.randn(1, tokens, n, DIM, device=device, dtype=dtype, generator=generator) for n in counts]
    return Problem(mask, made[:3], made[3], {"query_heads": heads[0], "kv_heads": heads[1], "head_dim": DIM})


def results(way: Way) -> Leaves:
    """o and the gradients of q, k and v."""
    o = way.attend(*way.leaves)
    return way.plain([o.detach(), *torch.autograd.grad(o, way.leaves, way.grad)])


def distance(way: Way, expected: Leaves) -> float:
    """The largest distance of a result from one device's, over the norm of the latter; NaN if a result has NaN."""
    found = []
    for mine, whole in zip(results(way), expected, strict=True):
        of_one = whole.index_select(1, way.positions.to(whole.device)).double()
        found.append((mine - of_one).double().norm() / of_one.norm().clamp(min=1e-30))
    return float(torch.stack(found).max())


# ---- ours ----


def alone(problem: Problem) -> Way:
    """The whole problem on one rank by itself."""
    leaves = [each.detach().requires_grad_() for each in problem.whole]
    positions = torch.arange(problem.mask.shape.rows)
    return Way(leaves, problem.grad, lambda q, k, v: flashmask.attention(q, k, v, problem.mask), positions)


def sharded(problem: Problem, **options: Any) -> Way:
    sharding = fmd.shard(problem.mask, dist.group.WORLD, **problem.options, **options)
    leaves = [each.contiguous().requires_grad_() for each in sharding.shard(*problem.whole)]
    return Way(
        leaves, sharding.shard(problem.grad), lambda q, k, v: fmd.attention(q, k, v, sharding), sharding.positions,
        sharding=sharding,
    )  # fmt: skip


def without_wire(problem: Problem, way: Way) -> Way:
    """A rank's kernels under the scheme "rows", with keys and values fetched beforehand."""
    local = way.sharding._locals["mask"]
    with torch.no_grad():
        fetched = local.columns.fetch(way.sharding._group, way.leaves[1:])
    leaves = [way.leaves[0], *(each.detach().clone().requires_grad_() for each in fetched)]
    return Way(leaves, way.grad, lambda q, k, v: flashmask.attention(q, k, v, local.mask), way.positions)


# ---- all keys on every rank, as all-gather and rings have it ----


def all_keys(problem: Problem, partition: str) -> Way:
    """Our kernels and exchanges, with all keys on every rank."""
    way = sharded(problem, scheme="rows", partition=partition)
    sharding, local = way.sharding, way.sharding._locals["mask"]
    everything = [(0, sharding.tokens)]
    kept = replace(
        local,
        mask=problem.mask.slice(local.runs[sharding.rank], everything),
        columns=Exchange.of(sharding.rank, local.runs, [everything] * sharding.ranks),
    )
    sharding._tensors["mask"], sharding._locals["mask"] = kept.to_tensor(), kept
    return way


# ---- FlexAttention ----


@cache
def flex_functions() -> tuple[Callable[..., Any], Callable[..., Any]]:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    return torch.compile(flex_attention, dynamic=False), torch.compile(create_block_mask, dynamic=False)


def flex(
    mask: flashmask.Mask, positions: Tensor, heads: tuple[int, int], device: torch.device
) -> Callable[..., Tensor]:
    """FlexAttention of the rows at these positions over all keys; the mask has two ranges per column."""
    values, causal = mask.to_startend_row_indices()
    given = torch.from_numpy(values.astype(np.int64))[0, 0].to(device)
    begins, ends = masked_ranges(given, causal, mask.shape.rows)
    rows = positions.to(device)

    def visible(batch: Tensor, head: Tensor, query: Tensor, column: Tensor) -> Tensor:
        row = rows[query]
        masked = (begins[0][column] <= row) & (row < ends[0][column])
        masked = masked | ((begins[1][column] <= row) & (row < ends[1][column]))
        return ~masked & (row >= column) if causal else ~masked

    attend = attend_under(visible, len(rows), mask.shape.columns, device, heads[0] != heads[1])

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(*(each.transpose(1, 2) for each in (q, k, v))).transpose(1, 2)

    return run


def attend_under(visible: Any, rows: int, columns: int, device: torch.device, grouped: bool) -> Callable[..., Tensor]:
    """Attention over (1, heads, tokens, DIM). On a CPU FlexAttention has no backward: SDPA with the mask as booleans
    stands in for it."""
    if device.type == "cpu":
        from torch.nn.attention.flex_attention import create_mask
        from torch.nn.functional import scaled_dot_product_attention

        dense = create_mask(visible, None, None, rows, columns, device="cpu")
        return lambda q, k, v: scaled_dot_product_attention(q, k, v, attn_mask=dense, enable_gqa=grouped)
    attend, create = flex_functions()
    blocks = create(visible, None, None, rows, columns, device=device)
    return lambda q, k, v: attend(q, k, v, block_mask=blocks, enable_gqa=grouped)


def masked_ranges(values: Tensor, causal: bool, rows: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Begins and ends of the two ranges of masked rows of each column, from row indices [columns, n]."""
    none, last = torch.zeros_like(values[:, 0]), torch.full_like(values[:, 0], rows)
    count = values.shape[1]
    if causal:
        return (values[:, 0], none), (values[:, 1] if count == 2 else last, none)
    if count == 2:
        return (values[:, 0], none), (last, values[:, 1])
    return (values[:, 0], values[:, 2]), (values[:, 1], values[:, 3])


def flex_all_keys(problem: Problem) -> Way:
    """FlexAttention over gathered keys and values and zig-zag rows, as in PyTorch's own sharded FlexAttention."""
    way = sharded(problem, scheme="rows", partition="zigzag")
    attend = flex(problem.mask, way.positions, problem.heads, problem.grad.device)
    # The backward of unshard() sums the gradients of keys and values over all ranks.
    return way._replace(attend=lambda q, k, v: attend(q, way.sharding.unshard(k), way.sharding.unshard(v)))


def flex_by_heads(problem: Problem) -> Way:
    """Turns tokens into heads and back, with FlexAttention between."""
    way = sharded(problem, scheme="heads")
    sharding = way.sharding
    where = sharding._tensors["mask"], sharding._name, sharding.ranks
    positions = torch.arange(sharding.tokens)
    heads = problem.heads[0] // sharding.ranks, problem.heads[1] // sharding.ranks
    attend = flex(problem.mask, positions, heads, problem.grad.device)

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        o = attend(*TO_HEADS.operator([q, k, v], *where, sharding.tokens))
        return TO_TOKENS.operator([o.contiguous()], *where, sharding._held)[0]

    return way._replace(attend=run)


# ---- PyTorch ----


@contextmanager
def torch_context_parallel(problem: Problem, rotation: str = "allgather") -> Iterator[Way]:
    """PyTorch's own context parallelism, causal or full, with cuDNN; key heads are repeated, since its rings do not
    support grouped heads."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.experimental import context_parallel
    from torch.distributed.tensor.experimental._attention import set_rotate_method
    from torch.nn.attention import SDPBackend, sdpa_kernel

    set_rotate_method(rotation)
    heads, kv_heads = problem.heads
    device, tokens = problem.grad.device, problem.mask.shape.rows
    causal = problem.mask.explain().density < 1
    given = [problem.whole[0], *(each.repeat_interleave(heads // kv_heads, 2) for each in problem.whole[1:])]
    buffers = [each.transpose(1, 2).contiguous() for each in (*given, problem.grad)]
    positions = torch.arange(tokens, device=device)
    backend = SDPBackend.CUDNN_ATTENTION if device.type == "cuda" else SDPBackend.FLASH_ATTENTION

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(backend):
            # By its full name: the context replaces the function in its module, and a name that was imported before
            # would attend to this rank's tokens alone.
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

    def plain(found: Leaves) -> Leaves:
        o, grad_q, *of_keys = (each.transpose(1, 2) for each in found)
        return [o, grad_q, *(each.unflatten(2, (kv_heads, -1)).sum(3) for each in of_keys)]

    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    cut = {"buffers": [*buffers, positions], "buffer_seq_dims": [2, 2, 2, 2, 0]}
    with context_parallel(mesh, **cut, no_restore_buffers={*buffers, positions}):  # stays entered for the backward
        yield Way([each.requires_grad_() for each in buffers[:3]], buffers[3], attend, positions, plain)


# ---- all of them ----


@contextmanager
def entered(way: Way) -> Iterator[Way]:
    yield way


def peers(name: str, problem: Problem, scheme: str) -> dict[str, Callable[[], Any]]:
    """Ways to spread a problem other than ours under its scheme, by name; each is entered while it is used."""
    other = "heads" if scheme == "rows" else "rows"
    even = problem.heads[1] % dist.get_world_size() == 0
    found: dict[str, Callable[[], Any]] = {}
    if other == "rows" or even:
        found[f"by {other}"] = lambda: entered(sharded(problem, scheme=other))
    found["owner"] = lambda: entered(sharded(problem, scheme="rows", gradients="owner"))
    for partition in ("zigzag", "contiguous"):
        found[f"all keys, {partition}"] = lambda partition=partition: entered(all_keys(problem, partition))
    if problem.mask.form == "intervals":
        found["all keys, FlexAttention"] = lambda: entered(flex_all_keys(problem))
        if even:
            found["by heads, FlexAttention"] = lambda: entered(flex_by_heads(problem))
    if name in ("causal", "full") and problem.grad.is_cuda:  # its rings have GPU kernels only
        for rotation in ("allgather", "alltoall"):
            found[f"torch context_parallel, {rotation}"] = lambda rotation=rotation: torch_context_parallel(
                problem, rotation
            )
    return found
