# SPDX-License-Identifier: Apache-2.0
"""What test_cuda_distributed.py has each of two GPUs run, with NCCL: the list of distributed_cases.py in 16 bits."""

from functools import partial

import distributed_cases
import torch
from distributed_cases import (
    FAMILIES,
    NAMES,
    case,
    cases,
    hold_against_one_process,
    inputs,
    random_partition,
    with_gradients,
)

import flashmask
import flashmask.distributed as fmd
from flashmask import masks

distributed_cases.CASES.clear()  # those of the CPU
CASES = distributed_cases.CASES
TOKENS = 4096
ON_GPU = {"deterministic": True, "device": "cuda"}


@cases((2,), family=FAMILIES)
def rows_of_every_family_give_the_bits_of_one_gpu(group, rank, family):
    mask = FAMILIES[family](TOKENS)
    batch = mask.shape.batch
    for dtype, partition, gradients in (
        (torch.bfloat16, "balanced", "reduced"),
        (torch.bfloat16, "zigzag", "owner"),
        (torch.float16, "random", "owner"),
    ):
        given = random_partition(TOKENS, 2) if partition == "random" else partition
        options = {"partition": given, "gradients": gradients, "aligned": True, "scheme": "rows"}
        hold_against_one_process(group, mask, dtype, batch, dim=128, **options, **ON_GPU)


@cases((2,), family=["causal", "documents", "dilated", "window"])
def heads_give_the_bits_of_one_gpu(group, rank, family):
    for dtype, dim in ((torch.bfloat16, 128), (torch.float16, 64)):
        hold_against_one_process(group, FAMILIES[family](TOKENS), dtype, dim=dim, scheme="heads", **ON_GPU)


@cases((2,), dim=[64, 96, 192, 256])
def every_head_dim(group, rank, dim):
    for family in ("causal", "documents"):
        options = {"scheme": "rows", "aligned": True, "gradients": "reduced"}
        hold_against_one_process(group, FAMILIES[family](6000), torch.bfloat16, dim=dim, **options, **ON_GPU)


@cases((2,), dim=[64, 128, 256])
def dropout_is_that_of_one_gpu(group, rank, dim):
    for options in ({"scheme": "rows", "gradients": "owner", "aligned": True}, {"scheme": "heads"}):
        hold_against_one_process(
            group, FAMILIES["documents"](TOKENS), torch.bfloat16, dim=dim, dropout=0.1, **options, **ON_GPU
        )


@case(2)
def long_documents(group, rank):
    mask = FAMILIES["documents"](65536)
    hold_against_one_process(
        group, mask, torch.bfloat16, dim=128, scheme="rows", gradients="owner", aligned=True, **ON_GPU
    )


def made(group, mask, **options):
    heads = {"query_heads": distributed_cases.HEADS, "kv_heads": distributed_cases.KV_HEADS, "head_dim": 128}
    return fmd.shard(mask, group, **heads, scheme="rows", **options)


@case(2)
def twenty_runs_give_the_same_bits(group, rank):
    mask = FAMILIES["shared questions"](16384)
    sharding = made(group, mask, deterministic=True, partition="zigzag")
    whole = inputs(16384, torch.bfloat16, 1, dim=128, device="cuda")
    local = [*sharding.shard(*whole[:4]), sharding.shard(whole[4], dim=2)]
    compute = partial(fmd.attention, sharding=sharding, return_lse=True)
    first = with_gradients(compute, *local)
    for _ in range(19):
        for name, one, other in zip(NAMES, first, with_gradients(compute, *local), strict=True):
            assert torch.equal(one, other), name


@case(2)
def two_masks_in_turns_on_a_stream_of_their_own(group, rank):
    causal, window = masks.causal(8192, 8192), masks.sliding_window(8192, 8192, 1000)
    sharding = made(group, causal, masks={"near": window}, deterministic=True, aligned=True)
    q, k, v, _, _ = inputs(8192, torch.bfloat16, 1, dim=128, device="cuda")
    expected = {
        name: sharding.shard(flashmask.attention(q, k, v, mask, deterministic=True))
        for name, mask in (("mask", causal), ("near", window))
    }
    local, stream = sharding.shard(q, k, v), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        found = [(name, fmd.attention(*local, sharding, mask=name)) for name in ("mask", "near") * 5]
    torch.cuda.current_stream().wait_stream(stream)
    for name, each in found:
        assert torch.equal(each, expected[name]), name


@case(2)
def a_capture_is_refused(group, rank):
    sharding = made(group, masks.causal(1024, 1024))
    local = sharding.shard(*inputs(1024, torch.bfloat16, 1, dim=128, device="cuda")[:3])
    fmd.attention(*local, sharding)
    message = ""
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            fmd.attention(*local, sharding)
    except RuntimeError as error:
        message = str(error)
    assert "CUDA graph is being captured" in message, message
