# SPDX-License-Identifier: Apache-2.0
"""A rank of test_trl_grpo_ranks.py: runs of TRL's GRPO over several processes, and of the same with shared prompts.

torchrun --nproc-per-node 2 trl_grpo_ranks.py <folder of a model>
"""

import os
import sys
import warnings

import torch
from policy_updates import (
    BATCH,
    GROUP,
    assert_same_metrics,
    assert_same_step,
    batch,
    history,
    policy,
    step,
    with_given_answers,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from trl import GRPOTrainer

import flashmask.transformers
from flashmask.trl import SharedPromptGRPOTrainer

CASES = {
    "whole groups": {"per_device_train_batch_size": GROUP},
    "a group over both ranks": {"per_device_train_batch_size": GROUP // 2},
    "groups cut over micro-batches": {
        "per_device_train_batch_size": 3,
        "steps_per_generation": 2,
        "gradient_accumulation_steps": 2,
        "keep_order": True,
    },
    "reference model": {"per_device_train_batch_size": GROUP, "beta": 0.04, "num_iterations": 2},
}


def trained(kind, folder, attention, rank, **options):
    trainer = with_given_answers(policy(kind, folder, attention, **options), seed=7 + rank)
    counts = []
    trainer.model.get_input_embeddings().register_forward_pre_hook(lambda _, given: counts.append(given[0].numel()))
    torch.manual_seed(rank)
    trainer.train()
    return trainer, counts


def run(case, folder, rank):
    options = dict(CASES[case])
    keep = {"keep_order": options.pop("keep_order", False)}
    ours, counts = trained(SharedPromptGRPOTrainer, folder, "flashmask", rank, **options, **keep)
    theirs, padded = trained(GRPOTrainer, folder, "eager", rank, **options)
    for entries in zip(history(ours), history(theirs), strict=True):
        assert_same_metrics(*entries)
    expected = dict(theirs.model.named_parameters())
    for name, weight in ours.model.named_parameters():
        torch.testing.assert_close(weight, expected[name], rtol=2e-5, atol=2e-6, msg=name)
    assert len(counts) == len(padded) and sum(counts) < sum(padded)
    print(f"rank {rank}, {case}: {sum(counts)} tokens, padded {sum(padded)}")


def step_of_shards(kind, folder, attention, rank):
    """A step on half of a batch, with weights spread over the ranks; Accelerate would do so on GPUs alone."""
    trainer = policy(kind, folder, attention)
    mesh = init_device_mesh("cpu", (2,))
    for layer in trainer.model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(trainer.model, mesh=mesh)
    mine = slice(rank * BATCH // 2, (rank + 1) * BATCH // 2)
    loss, gradients, metrics = step(
        trainer, {name: each[mine] if each.ndim else each for name, each in batch().items()}
    )
    return loss, {name: each.full_tensor() for name, each in gradients.items()}, metrics


def main():
    folder, rank = sys.argv[1], int(os.environ["RANK"])
    flashmask.transformers.register()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for case in CASES:
        run(case, folder, rank)
    ours = step_of_shards(SharedPromptGRPOTrainer, folder, "flashmask", rank)
    assert_same_step(ours, step_of_shards(GRPOTrainer, folder, "eager", rank))
    print(f"rank {rank}, FSDP2: loss {ours[0]:.6f}")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
