# SPDX-License-Identifier: Apache-2.0
"""A row over the ranks of a process group: attention over all of them, and FSDP2 for the rest."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from flashmask.data.synthetic import Sample
from flashmask.distributed import Sharding, shard
from training.batches import Batch
from training.memory import TooLarge
from training.shapes import Shape

Found = TypeVar("Found")
HEAD_GROUPS = 4
"""The most groups of heads; fetched keys and their gradients are in memory for one group at a time."""


def started() -> int:
    """The number of ranks that torchrun started; 1 without torchrun."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_first() -> bool:
    return os.environ.get("RANK", "0") == "0"


class Ranks:
    """The group that torchrun started this process in, all of whose ranks work on one sequence."""

    def __init__(self, device: torch.device) -> None:
        self.size = started()
        self._mesh = init_device_mesh(device.type, (self.size,), mesh_dim_names=("cp",))

    def sharding(self, sample: Sample, shape: Shape) -> Sharding:
        return shard(
            sample.mask(),
            self._mesh,
            query_heads=shape.heads,
            kv_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            head_groups=math.gcd(HEAD_GROUPS, shape.kv_heads),
        )

    def spread(self, batch: Batch, shape: Shape) -> Batch:
        """This rank's part of a batch in which each row predicts one word at most."""
        sharding = self.sharding(batch.sample, shape)
        words = torch.full_like(batch.input_ids, -1)
        words[0, batch.predictors] = batch.words
        own = sharding.shard(words)[0]
        asked = own >= 0
        return replace(
            batch,
            input_ids=sharding.shard(batch.input_ids),
            position_ids=sharding.shard(batch.position_ids),
            predictors=asked.nonzero()[:, 0],
            words=own[asked],
            sharding=sharding,
        )

    def share(self, decoder: Any, keep: int) -> None:
        """Shards the weights of a decoder; layers that are recomputed together are gathered together."""
        layers = list(decoder.layers)
        for first in range(0, len(layers), keep):
            fully_shard(layers[first : first + keep], mesh=self._mesh)
        fully_shard(decoder, mesh=self._mesh)

    def fetched(self, shape: Shape, tokens: int, itemsize: int) -> int:
        """An upper bound on the bytes of one group of heads' keys and values of the whole sequence, and of their
        float32 gradients."""
        heads = shape.kv_heads // math.gcd(HEAD_GROUPS, shape.kv_heads)
        return 2 * tokens * heads * shape.head_dim * (itemsize + 4)

    def agreed(self, function: Callable[[], Found]) -> Found:
        """The result of function(), once it succeeded on all ranks; raises TooLarge on all where one of them lacks
        memory."""
        said = ""
        try:
            found = function()
        except (TooLarge, MemoryError) as error:
            said = str(error)
        all_said: list[str] = [""] * self.size
        dist.all_gather_object(all_said, said)
        for rank, each in enumerate(all_said):
            if each:
                raise TooLarge(f"rank {rank}: {each}")
        return found

    def close(self) -> None:
        dist.destroy_process_group()
