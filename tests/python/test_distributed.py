# SPDX-License-Identifier: Apache-2.0
"""flashmask.distributed over processes with Gloo: one spawn for distributed_cases.py, one for a rank that fails."""

import re
import weakref
from pathlib import Path

import distributed_failing_cases
import pytest
import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # before there is a group: its functions hold the one of their import for ever
from ranks import assert_cases_pass, run_ranks, torchrun
from torch.testing._internal.distributed.fake_pg import FakeStore

import flashmask.distributed as fmd
from flashmask import masks


@pytest.mark.slow
def test_cases_on_all_ranks(tmp_path):
    assert_cases_pass("distributed_cases", 4, tmp_path)


@pytest.mark.slow
def test_a_rank_that_fails_alone_ends_all(tmp_path):
    codes, logs, failures = run_ranks("distributed_failing_cases", distributed_failing_cases.RANKS, tmp_path)
    assert codes == [0, 1, 0], "\n".join(logs)
    (failure,) = failures
    assert failure.startswith(f"rank {distributed_failing_cases.FAILING}, ")
    assert re.search(r"ValueError: q has shape \[1, \d+, 4, 16\]; expected \(batch, \d+, 4, head dim\)", failure)


@pytest.mark.slow
def test_example_has_the_losses_of_one_rank():
    example = Path(__file__).parent.parent.parent / "examples" / "train_long.py"
    done = torchrun(example, "--steps", 2, "--tokens", 512, ranks=2)
    assert done.returncode == 0, done.stderr
    said = dict(re.findall(r"^losses o\w+ (2|one) ranks?: +(.*)$", done.stdout, re.M))
    together, alone = ([float(each) for each in said[ranks].split()] for ranks in ("2", "one"))
    assert len(together) == 2
    assert together == pytest.approx(alone, rel=1e-5)


def test_asks_for_the_process_group_that_nobody_made():
    with pytest.raises(
        TypeError, match=r"NoneType None; expected .*; call torch\.distributed\.init_process_group\(\) "
    ):
        fmd.shard(None, dist.group.WORLD, query_heads=1, kv_heads=1, head_dim=8, tokens=9)


def test_groups_end_where_they_are_destroyed():
    """Nobody holds one any more: a thread of Gloo that outlived the interpreter would abort the program at its end."""
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    group = weakref.ref(dist.group.WORLD)
    sharding = fmd.shard(masks.causal(64, 64), group(), query_heads=2, kv_heads=1, head_dim=8, scheme="rows")
    q, k, v = (torch.randn(1, 64, heads, 8, requires_grad=True) for heads in (2, 1, 1))
    fmd.attention(q, k, v, sharding).sum().backward()
    dist.destroy_process_group()
    assert group() is None


@pytest.fixture
def fake_group():
    """A group of four ranks that exchanges nothing."""
    dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    yield dist.group.WORLD
    dist.destroy_process_group()


def test_refuses_groups_without_gloo_or_nccl(fake_group):
    with pytest.raises(ValueError, match=r"^the group's backend is .*fake; expected gloo or nccl$"):
        fmd.shard(None, fake_group, query_heads=1, kv_heads=1, head_dim=8, tokens=9)


def test_refuses_a_mesh_of_two_dimensions(fake_group):
    mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "cp"))
    with pytest.raises(
        ValueError, match=r"""^the mesh has the dimensions .*'dp', 'cp'.*; expected one.*mesh\["cp"\]$"""
    ):
        fmd.shard(None, mesh, query_heads=1, kv_heads=1, head_dim=8, tokens=9)
