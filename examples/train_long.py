# SPDX-License-Identifier: Apache-2.0
"""Trains a small Llama on packed documents spread over the ranks of a group, and on one rank alone: same losses.

Two processes on a CPU:   torchrun --nproc-per-node 2 examples/train_long.py
On GPUs, longer:          torchrun --nproc-per-node 2 examples/train_long.py --device cuda --tokens 65536
"""

import argparse
import os
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import LlamaConfig, LlamaForCausalLM

import flashmask.transformers

CONFIG = {"vocab_size": 512, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "head_dim": 64}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}


def batch_of(tokens: int, step: int, device: str) -> dict[str, torch.Tensor]:
    """Documents of many lengths, [1, tokens] in all; the same on every rank. A token is its predecessor's double."""
    torch.manual_seed(step)
    cuts = torch.randint(1, tokens, (7,)).sort().values.unique()
    positions = torch.cat(
        [
            torch.arange(length)
            for length in torch.diff(cuts, prepend=cuts.new_zeros(1), append=cuts.new_full((1,), tokens))
        ]
    )
    ids = (torch.randint(1, 512, (1,)) * 2 ** (positions % 9)) % 512
    batch = {"input_ids": ids, "position_ids": positions, "labels": ids.masked_fill(positions == 0, -100)}
    return {name: each[None].to(device) for name, each in batch.items()}


def train(mesh: DeviceMesh, options: argparse.Namespace) -> list[float]:
    """Trains and returns the losses; all ranks of the mesh work on one sequence, and shard the weights by FSDP."""
    torch.manual_seed(0)
    config = LlamaConfig(**CONFIG, **HEADS, max_position_embeddings=options.tokens, attn_implementation="flashmask")
    model = LlamaForCausalLM(config).to(options.device, torch.float32 if options.device == "cpu" else torch.bfloat16)
    if mesh.size() > 1:
        fully_shard(model, mesh=mesh)  # averages gradients over the ranks, as Sharding.mean() expects
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for step in range(options.steps):
        local: dict[str, Any] = flashmask.transformers.shard(
            model, batch_of(options.tokens, step, options.device), mesh
        )
        sharding, labelled = local["sharding"], (local["shift_labels"] != -100).sum()
        loss = sharding.mean(model(**local, num_items_in_batch=1, use_cache=False).loss, labelled)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=2048, help="in the sequence; default: 2048")
    parser.add_argument("--steps", type=int, default=5, help="default: 5")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    options = parser.parse_args()
    if "LOCAL_RANK" not in os.environ:
        parser.error("nobody started ranks; expected torchrun --nproc-per-node 2 examples/train_long.py")
    if options.steps < 1 or options.tokens < 2:
        parser.error(f"--steps is {options.steps} and --tokens {options.tokens}; expected at least 1, and at least 2")
    if options.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    else:
        torch.set_num_threads(1)
    mesh = init_device_mesh(options.device, (int(os.environ["WORLD_SIZE"]),), mesh_dim_names=("cp",))
    flashmask.transformers.register()
    alone = [DeviceMesh(options.device, [rank], mesh_dim_names=("cp",)) for rank in range(mesh.size())]
    together, by_itself = train(mesh, options), train(alone[mesh.get_rank()], options)
    apart = max(abs(a - b) / b for a, b in zip(together, by_itself, strict=True))
    if mesh.get_rank() == 0:
        print(f"losses over {mesh.size()} ranks: " + " ".join(f"{loss:.6f}" for loss in together))
        print("losses on one rank:    " + " ".join(f"{loss:.6f}" for loss in by_itself))
        print(f"at most {apart:.1e} of a loss apart")
    dist.destroy_process_group()
    return int(apart > (1e-5 if options.device == "cpu" else 1e-2))


if __name__ == "__main__":
    sys.exit(main())
