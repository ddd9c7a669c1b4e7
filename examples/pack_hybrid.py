# SPDX-License-Identifier: Apache-2.0
"""Trains a tiny random Qwen3-Next on packed documents and, step by step, on the same documents one by one.

    python examples/pack_hybrid.py                  # on a CPU, in half a minute
    python examples/pack_hybrid.py --attention eager  # the same without flashmask: states run on into other documents

Half of its layers carry a state. Under flashmask both runs have the same losses but for rounding.
"""

import argparse
import copy

import torch
from transformers import Qwen3NextConfig, Qwen3NextForCausalLM

import flashmask.transformers

STEPS, DOCUMENTS = 12, 6


def tiny_model(attention: str) -> Qwen3NextForCausalLM:
    config = Qwen3NextConfig(
        vocab_size=40,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        layer_types=["linear_attention", "full_attention"],
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        linear_num_key_heads=2,
        linear_num_value_heads=2,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
        attn_implementation=attention,
    )
    return Qwen3NextForCausalLM(config)


def documents(draw: torch.Generator) -> list[torch.Tensor]:
    """Sequences of 5 to 40 tokens that count upwards from somewhere."""
    lengths = torch.randint(5, 41, (DOCUMENTS,), generator=draw).tolist()
    starts = torch.randint(0, 40, (DOCUMENTS,), generator=draw).tolist()
    return [(torch.arange(start, start + length) % 40)[None] for start, length in zip(starts, lengths, strict=True)]


def loss_of(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """The sum of the losses of one document's tokens."""
    return torch.nn.functional.cross_entropy(logits[0, :-1], ids[0, 1:], reduction="sum")


def packed_loss(model: Qwen3NextForCausalLM, batch: list[torch.Tensor]) -> torch.Tensor:
    positions = torch.cat([torch.arange(each.shape[1]) for each in batch])[None]
    logits = model(input_ids=torch.cat(batch, 1), position_ids=positions, use_cache=False).logits
    parts = logits.split([each.shape[1] for each in batch], 1)
    return torch.stack([loss_of(part, ids) for part, ids in zip(parts, batch, strict=True)]).sum()


def loss_one_by_one(model: Qwen3NextForCausalLM, batch: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack([loss_of(model(input_ids=ids, use_cache=False).logits, ids) for ids in batch]).sum()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--attention", default="flashmask", help='attn_implementation: "flashmask", "eager", "sdpa"')
    attention = parser.parse_args().attention
    flashmask.transformers.register()
    torch.manual_seed(0)
    packed = tiny_model(attention)
    single = copy.deepcopy(packed)
    optimizers = [torch.optim.AdamW(model.parameters(), lr=5e-3) for model in (packed, single)]
    draw = torch.Generator().manual_seed(0)
    worst = 0.0
    for step in range(STEPS):
        batch = documents(draw)
        tokens = sum(each.shape[1] for each in batch) - len(batch)
        losses = [packed_loss(packed, batch) / tokens, loss_one_by_one(single, batch) / tokens]
        for loss, optimizer in zip(losses, optimizers, strict=True):
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        first, second = (loss.item() for loss in losses)
        worst = max(worst, abs(first - second))
        print(f"step {step:2}: packed {first:.6f}, one by one {second:.6f}, apart {abs(first - second):.0e}")
    print(f"largest difference: {worst:.1e}")


if __name__ == "__main__":
    main()
