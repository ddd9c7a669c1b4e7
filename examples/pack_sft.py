# SPDX-License-Identifier: Apache-2.0
"""Fine-tunes a tiny random Llama on packed examples, on a CPU, in seconds: python examples/pack_sft.py."""

import torch
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM

import flashmask.transformers
from flashmask.data import Packed, pack

LENGTH = 128


def examples(count: int) -> list[dict[str, list[int]]]:
    """Prompts of 4 to 20 tokens; the completion is the prompt backwards."""
    draw = torch.Generator().manual_seed(0)
    prompts = [
        torch.randint(3, 40, (int(torch.randint(4, 21, (), generator=draw)),), generator=draw) for _ in range(count)
    ]
    return [{"prompt_ids": prompt.tolist(), "completion_ids": prompt.flip(0).tolist()} for prompt in prompts]


def collate(batch: list[dict[str, list[int]]]) -> Packed:
    return pack(batch, length=LENGTH)


def main() -> None:
    flashmask.transformers.register()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=40,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        attn_implementation="flashmask",
    )
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step, batch in enumerate(DataLoader(examples(640), batch_size=32, collate_fn=collate)):
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 5 == 0:
            filled = float((batch["startend_row_indices"] > 0).float().mean())
            print(f"step {step:2}: {len(batch['input_ids'])} sequences, {filled:.0%} filled, loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
