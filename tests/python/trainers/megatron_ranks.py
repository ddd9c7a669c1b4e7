# SPDX-License-Identifier: Apache-2.0
"""A rank of test_megatron.py: trains a GPTModel of Megatron on packed documents, over context parallel ranks.

torchrun --nproc-per-node <ranks> megatron_ranks.py <folder for rank 0's losses>
"""

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.transformer import TransformerConfig

from flashmask.integrations.megatron import FlashMaskCoreAttention

STEPS = 20
LENGTHS, PADDED = [93, 8, 150], [96, 8, 152]  # to multiples of twice the ranks
VOCABULARY = 500


def built(ranks, core=FlashMaskCoreAttention, **options):
    spec = get_gpt_layer_local_spec()
    spec.submodules.self_attention.submodules.core_attention = core
    config = TransformerConfig(
        num_layers=2,
        hidden_size=64,
        num_attention_heads=4,
        num_query_groups=2,
        ffn_hidden_size=128,
        use_cpu_initialization=True,
        context_parallel_size=ranks,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        bias_dropout_fusion=False,
        **options,
    )
    torch.manual_seed(0)
    return GPTModel(config, spec, VOCABULARY, max(PADDED), position_embedding_type="learned_absolute")


def ends(lengths):
    return torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)


def held(ranks, rank):
    """Tokens of a rank: of each padded document chunk r and chunk 2 ranks - 1 - r."""
    kept, begin = [], 0
    for length in PADDED:
        chunks = torch.arange(begin, begin + length).chunk(2 * ranks)
        kept += [chunks[rank], chunks[2 * ranks - 1 - rank]] if ranks > 1 else [*chunks]
        begin += length
    return torch.cat(kept)


def packed():
    """Tokens, labels, positions and where there is a label, each [1, tokens]."""
    draw = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, VOCABULARY, (1, sum(PADDED) + 1), generator=draw)
    positions = torch.cat([torch.arange(length) for length in PADDED])[None]
    real = torch.cat([torch.arange(p) < length for length, p in zip(LENGTHS, PADDED, strict=True)])[None]
    return tokens[:, :-1], tokens[:, 1:], positions, real


def parameters_of_step():
    return PackedSeqParams(
        qkv_format="thd",
        cu_seqlens_q=ends(LENGTHS),
        cu_seqlens_kv=ends(LENGTHS),
        cu_seqlens_q_padded=ends(PADDED),
        cu_seqlens_kv_padded=ends(PADDED),
        max_seqlen_q=max(PADDED),
        max_seqlen_kv=max(PADDED),
    )


def main(folder):
    rank, ranks = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE"))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    parallel_state.initialize_model_parallel(context_parallel_size=ranks)
    model = built(ranks)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    mine = held(ranks, rank)
    tokens, labels, positions, real = (each[:, mine] for each in packed())
    losses = []
    for _ in range(STEPS):
        each = model(tokens, positions, None, labels=labels, packed_seq_params=parameters_of_step())
        loss = (each * real).sum() / sum(LENGTHS)
        optimizer.zero_grad()
        loss.backward()
        total = loss.detach().clone()
        for value in (total, *(p.grad for p in model.parameters() if p.grad is not None)):
            dist.all_reduce(value)
        optimizer.step()
        losses.append(total.item())
    if rank == 0:
        Path(folder, f"{ranks}.json").write_text(json.dumps(losses))
    parallel_state.destroy_model_parallel()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
