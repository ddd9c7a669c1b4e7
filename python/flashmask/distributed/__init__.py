# SPDX-License-Identifier: Apache-2.0
"""Attention, and layers with a state, over a sequence that is spread over the ranks of a process group.

    import flashmask.distributed as fmd

    sharding = fmd.shard(mask, mesh["cp"], query_heads=32, kv_heads=8, head_dim=128)  # every rank, once a batch
    ids, positions, labels = sharding.shard(ids, positions, shifted_labels)  # this rank's tokens
    o = fmd.attention(q, k, v, sharding)  # in every layer
    y = fmd.causal_conv(x, weight, sharding=sharding)  # in layers with a state
    o = fmd.over_nodes(run, sharding, q, k, v, g, beta)
    loss = sharding.mean(loss_sum, label_count)

docs/several_gpus.md says what is sent, which results are bit-identical, and when not to use it.
"""

from flashmask._partition import Partition, partition
from flashmask.distributed._attention import attention
from flashmask.distributed._recurrent import causal_conv, linear_attention, over_nodes
from flashmask.distributed._sharding import Sharding, shard

__all__ = [
    "Partition",
    "Sharding",
    "attention",
    "causal_conv",
    "linear_attention",
    "over_nodes",
    "partition",
    "shard",
]
