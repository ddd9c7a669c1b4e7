# SPDX-License-Identifier: Apache-2.0
"""Batches of shared prompts for test_verl.py, and a rank of it: a step of verl's policy over tokens that are spread.

torchrun --nproc-per-node 2 verl_ranks.py <folder for rank 0's tensors>
"""

import sys
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist
import transformers
from verl.trainer.ppo import prefix_grouper_utils
from verl.trainer.ppo.core_algos import compute_policy_loss_vanilla
from verl.workers.config import ActorConfig

from flashmask.integrations.verl import NAME, row_indices
from flashmask.transformers import shard

PAD, WORDS = 0, 64
PROMPTS, ANSWERS = 200, 150
LENGTHS = [(130, [90, 150, 1]), (200, [100, 120]), (1, [50, 130, 70, 7])]
"""Tokens of each prompt and of its responses."""


def model(attention, **others):
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = transformers.Qwen2Config(**sizes, **heads, vocab_size=WORDS, attn_implementation=attention, **others)
    return transformers.Qwen2ForCausalLM(config)


def micro_batch():
    """As verl's actor gets it: prompts padded in front, responses behind."""
    draw = torch.Generator().manual_seed(1)
    rows = {"prompts": [], "responses": [], "response_mask": [], "uid": []}
    for number, (prompt, answers) in enumerate(LENGTHS):
        question = torch.randint(1, WORDS, (prompt,), generator=draw)
        for answer in answers:
            words = torch.randint(1, WORDS, (answer,), generator=draw)
            rows["prompts"].append(torch.nn.functional.pad(question, (PROMPTS - prompt, 0), value=PAD))
            rows["responses"].append(torch.nn.functional.pad(words, (0, ANSWERS - answer), value=PAD))
            rows["response_mask"].append((torch.arange(ANSWERS) < answer).long())
            rows["uid"].append(number)
    stacked = {name: torch.stack(rows[name]) for name in ("prompts", "responses", "response_mask")}
    return {**stacked, "uid": rows["uid"], "pad_token_id": PAD}


def packed(of, temperature=0.7):
    """Entropies and log-probabilities [responses, tokens], by verl's own forward."""
    return prefix_grouper_utils.forward_micro_batch_with_prefix_grouper(
        micro_batch(), of, temperature, calculate_entropy=True, device_name="cpu", param_dtype=torch.float32
    )


def loss(log_probs):
    """verl's policy loss, with advantages that differ from response to response."""
    mask = micro_batch()["response_mask"]
    draw = torch.Generator().manual_seed(2)
    advantages = torch.randn(len(mask), 1, generator=draw) * mask
    before = log_probs.detach() + 0.3 * torch.randn(mask.shape, generator=draw)
    config = ActorConfig(strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1)
    return compute_policy_loss_vanilla(before, log_probs, advantages, mask, "token-mean", config)[0]


class Spread:
    """Stands for a model in verl's forward: each rank computes its share of the packed rows' tokens."""

    def __init__(self, of):
        self.of = of

    def __call__(self, *, input_ids, attention_mask, position_ids, use_cache, prefix_grouper):
        batch = {"input_ids": input_ids, "position_ids": position_ids}
        batch["startend_row_indices"] = row_indices(prefix_grouper, "cpu")
        local = shard(self.of, batch, dist.group.WORLD, scheme="rows")
        assert 0 < local["input_ids"].shape[1] < input_ids.shape[1]
        logits = self.of(**local, use_cache=use_cache).logits
        return SimpleNamespace(logits=local["sharding"].unshard(logits))


def main(folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    of = model(NAME)
    entropy, log_probs = packed(Spread(of))
    loss(log_probs).backward()
    gradients = [parameter.grad for parameter in of.parameters()]
    for each in gradients:  # each rank has the same loss: the mean, as FSDP and DDP take it
        dist.all_reduce(each)
        each.div_(dist.get_world_size())
    if dist.get_rank() == 0:
        torch.save([entropy.detach(), log_probs.detach(), *gradients], Path(folder, "found.pt"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
