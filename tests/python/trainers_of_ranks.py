# SPDX-License-Identifier: Apache-2.0
"""Trainers with context parallelism, for test_trainers_of_ranks.py, which also runs them in one process without it.

torchrun --nproc-per-node 2 trainers_of_ranks.py <folder> <task>...
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
import transformers
from accelerate import ParallelismConfig
from distributed_cases import tiny
from docs_scripts import docs_script

from flashmask.data import pack
from flashmask.transformers import ShardedBatches, register

register()
STEPS, BATCH, TOKENS = 3, 16, 1600
SETTLED = {
    "max_steps": STEPS,
    "logging_steps": 1,
    "learning_rate": 1e-2,
    "lr_scheduler_type": "constant",
    "per_device_train_batch_size": BATCH,
    "per_device_eval_batch_size": BATCH,
    "remove_unused_columns": False,
    "train_sampling_strategy": "sequential",
    "save_strategy": "no",
    "report_to": "none",
    "use_cpu": True,
    "disable_tqdm": True,
}


class Trainer(ShardedBatches, transformers.Trainer):
    pass


class Parallelism(ParallelismConfig):
    """Accelerate allows it on GPUs alone; on a CPU everything goes the same way but FSDP, which DDP stands for."""

    def _validate_accelerator(self, accelerator):
        pass


def options(folder, ranks):
    parallel = {"parallelism_config": Parallelism(cp_size=ranks)} if ranks > 1 else {}
    return {"output_dir": str(folder), **SETTLED, **parallel}


def causal(folder, ranks, model=None):
    generator = torch.Generator().manual_seed(1)

    def draw():
        return torch.randint(62, (int(torch.randint(40, 130, (), generator=generator)),), generator=generator).tolist()

    data = [{"prompt_ids": draw()[:9], "completion_ids": draw()} for _ in range(BATCH * STEPS)]
    arguments = transformers.TrainingArguments(**options(folder, ranks))
    return Trainer(
        model=model or tiny("llama"), args=arguments, train_dataset=data, eval_dataset=data[:BATCH],
        data_collator=lambda examples: pack(examples, length=TOKENS),
    )  # fmt: skip


def preference(folder, ranks, models=None, **others):
    from trl import DPOConfig
    from trl_models import language_model, preferences, tokenizer

    from flashmask.trl import SharedQuestionDPOTrainer

    arguments = DPOConfig(**options(folder, ranks), bf16=False, activation_checkpointing=False, **others)
    model, reference = models or (language_model("flashmask"), language_model("flashmask", seed=1))
    return SharedQuestionDPOTrainer(
        model=model, ref_model=reference, args=arguments,
        train_dataset=preferences(BATCH * STEPS), eval_dataset=preferences(BATCH, seed=9), processing_class=tokenizer(),
    )  # fmt: skip


def hybrid(folder, ranks):
    """Trains a model of which every other layer carries a state, in the same way."""
    return causal(folder, ranks, model=docs_script("transformers_families").make("qwen3_next", "flashmask"))


def hybrid_preference(folder, ranks):
    """Trains such a model on pairs of answers, whose states fork behind their question."""
    models = [docs_script("transformers_families").make("olmo_hybrid", "flashmask") for _ in range(2)]
    return preference(folder, ranks, models)


TASKS = {"causal": causal, "hybrid": hybrid, "preference": preference, "hybrid preference": hybrid_preference}


def run(task, folder, ranks=1):
    """Losses and gradient norms of the steps, the loss of an evaluation, and how many tokens every call computed."""
    trainer, tokens = TASKS[task](folder, ranks), []
    layer = trainer.model.base_model.layers[0]
    layer.register_forward_pre_hook(lambda layer, arguments: tokens.append(arguments[0].shape[1]))
    trainer.train()
    steps = [(entry["loss"], entry["grad_norm"]) for entry in trainer.state.log_history if "loss" in entry]
    return {"steps": steps, "evaluation": trainer.evaluate()["eval_loss"], "tokens": tokens}


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder, *tasks = sys.argv[1:]
    found = {task: run(task, folder, int(os.environ["WORLD_SIZE"])) for task in tasks}
    Path(folder, f"{os.environ['RANK']}.json").write_text(json.dumps(found))
    # Threads of Gloo must let go of the tensors of DDP's and Accelerate's collectives before the interpreter ends, or
    # they abort the process; flashmask.distributed waits for those of its own.
    time.sleep(0.5)
