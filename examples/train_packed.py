# SPDX-License-Identifier: Apache-2.0
"""Trains a small random Llama on packed examples, with flashmask and with a dense mask, and compares every loss.

    python examples/train_packed.py                                                   # on a CPU, in three minutes
    python examples/train_packed.py --device cuda --preset llama-8b-layer --task dpo  # a layer of real size

Models that begin alike take every step on the same batch:

    flashmask    skips tiles of scores that nobody sees
    every tile   flashmask made to compute those too, as attention under a dense mask does
    again        flashmask once more
    SDPA dense   torch's scaled_dot_product_attention with a boolean for every pair of tokens
    reversed     the same over sequences laid out back to front: other orders of sums, and nothing else

The first three must have the same losses to the bit. How far the last two drift apart is the noise of the dtype:
flashmask must stay within 8 times that of SDPA at every step, and within 2 % of the first loss. Where anything else
happens the exit status is 1.
"""

from __future__ import annotations

import argparse
import copy
import csv
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid
from torch.nn.utils import parametrize
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForTokenClassification

import flashmask.transformers
from flashmask.data import Packed, answer_log_probs, pack

LENGTHS = Path(__file__).parents[1] / "data" / "alpaca_lengths.csv"
VOCABULARY, LANGUAGES = 64, 4
BETA = 0.1  # DPO's beta
BOUND = 8  # times the noise plus the rounding of a loss
LIMIT = 0.02  # relative to the first loss: runs that are further apart have nothing to do with each other
ZERO = 1e-8  # stands for equal losses in the picture, since zero has no logarithm
FEW = 10  # steps that are considered together, since one alone may be anything by chance

Batch = dict[str, Tensor]


class Preset(NamedTuple):
    """A model and its batches: `examples` per step, in sequences of `length` tokens."""

    model: dict[str, int]
    length: int
    examples: int
    learning_rate: float
    threads: int | None = None


SMALL = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2}
LLAMA_8B = {"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8}
PRESETS = {
    "small": Preset(SMALL | {"num_hidden_layers": 2}, 512, 5, 1e-3, threads=1),  # too small for several threads
    "llama-8b-layer": Preset(LLAMA_8B | {"num_hidden_layers": 1}, 8192, 64, 2e-5),
}


# ---- examples: real lengths, and tokens that a model can learn to predict ----


def examples(preset: Preset, preferences: bool, seed: int) -> Iterator[dict[str, list[int]]]:
    """Examples with Alpaca's lengths in file order. Prompts and answers are in two languages, answers to reject in two
    others."""
    with LENGTHS.open() as file:
        lengths = [(int(row["gpt2_prompt"]), int(row["gpt2_out"])) for row in csv.DictReader(file)]
    draw = np.random.default_rng(seed)
    words = draw.permutation(VOCABULARY).reshape(LANGUAGES, -1)

    def text(size: int, language: int) -> list[int]:
        """Words of a language in turn; one time in ten, any of them comes next."""
        count = words.shape[1]
        turns = np.where(draw.random(size) < 0.9, 1, draw.integers(count, size=size))
        said: list[int] = words[language, (draw.integers(count) + turns.cumsum()) % count].tolist()
        return said

    while True:
        for (prompt, answer), (_, other_answer) in pairwise(lengths):
            if prompt + answer + preferences * other_answer > preset.length:
                continue
            language, other = draw.integers(2), 2 + draw.integers(2)
            told = text(prompt + answer, language)
            asked, chosen = told[:prompt], told[prompt:]
            if preferences:
                yield {"prompt_ids": asked, "chosen_ids": chosen, "rejected_ids": text(other_answer, other)}
            else:
                yield {"prompt_ids": asked, "completion_ids": chosen}


def collate(chosen: list[dict[str, list[int]]], length: int) -> Packed:
    """A packed batch, and in "visible" its mask with a boolean for every pair of tokens [B, 1, length, length]."""
    batch = pack(chosen, length=length)
    # Padding sees itself here: SDPA has no result for a row that sees nothing. Nothing else sees it.
    batch["visible"] = torch.as_tensor(batch.mask.to_dense()) | torch.eye(length, dtype=torch.bool)
    return batch


# ---- models and ways to attend ----


class LowRank(nn.Module):
    """A frozen weight plus B A, which learn in its place (Hu et al. 2021, LoRA)."""

    def __init__(self, weight: Tensor, rank: int = 8) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.randn(rank, weight.shape[1]) / weight.shape[1] ** 0.5)
        self.b = nn.Parameter(torch.zeros(weight.shape[0], rank))

    def forward(self, weight: Tensor) -> Tensor:
        return weight + self.b @ self.a


def make_model(task: str, preset: Preset) -> nn.Module:
    sizes = {"vocab_size": VOCABULARY, "num_labels": 1, "max_position_embeddings": preset.length}
    config = LlamaConfig(**preset.model, **sizes, classifier_dropout=0.0, use_cache=False)
    model: nn.Module = (LlamaForTokenClassification if task == "reward" else LlamaForCausalLM)(config)
    if task == "lora":
        model.requires_grad_(False)
        for layer in [each for each in model.modules() if isinstance(each, nn.Linear)]:
            parametrize.register_parametrization(layer, "weight", LowRank(layer.weight))
    return model


class Way(NamedTuple):
    """How a model attends."""

    implementation: str
    dense: bool = False
    reverse: bool = False

    def outputs(self, model: nn.Module, batch: Batch) -> Tensor:
        """float32 [B, length, vocabulary], or [B, length, 1] for a reward model."""
        ids, positions = batch["input_ids"], batch["position_ids"]
        if not self.dense:
            mask = {"startend_row_indices": batch["startend_row_indices"]}
        elif not self.reverse:
            mask = {"attention_mask": batch["visible"]}
        else:
            ids, positions = ids.flip(1), positions.flip(1)
            mask = {"attention_mask": batch["visible"].flip(2, 3)}
        logits = model(ids, position_ids=positions, **mask).logits.float()
        return logits.flip(1) if self.reverse else logits


WAYS = {
    "flashmask": Way("flashmask"),
    "every tile": Way("flashmask-every-tile"),
    "again": Way("flashmask"),
    "SDPA dense": Way("sdpa", dense=True),
    "reversed": Way("sdpa", dense=True, reverse=True),
}
DRAWN = {"SDPA dense": ("#e8893b", 4.5, "-"), "every tile": ("#30363d", 2, "-"), "flashmask": ("#5cc3e0", 1, "--")}


# ---- losses ----


@dataclass
class Run:
    """A model in training. DPO compares it with `before`, its copy from before training."""

    way: Way
    model: nn.Module
    before: nn.Module | None
    optimizer: torch.optim.Optimizer
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


def next_token(run: Run, batch: Batch) -> Tensor:
    """SFT and LoRA: cross-entropy of the answers' tokens."""
    return run.model.loss_function(run.way.outputs(run.model, batch), batch["labels"], VOCABULARY)


def preference(run: Run, batch: Batch) -> Tensor:
    """DPO: how much more likely the chosen answer became than the rejected one (Rafailov et al. 2023)."""
    with torch.no_grad():
        before = answer_log_probs(run.way.outputs(run.before, batch), batch)
    gains = answer_log_probs(run.way.outputs(run.model, batch), batch) - before
    chosen, rejected = gains.view(-1, 2).unbind(-1)
    return -logsigmoid(BETA * (chosen - rejected)).mean()


def reward(run: Run, batch: Batch) -> Tensor:
    """A reward model: the score at the last token of each answer (Bradley and Terry 1952)."""
    sequences, _, ends = batch["answers"].unbind(-1)
    chosen, rejected = run.way.outputs(run.model, batch)[sequences, ends - 1, 0].view(-1, 2).unbind(-1)
    return -logsigmoid(chosen - rejected).mean()


TASKS = {"sft": next_token, "lora": next_token, "dpo": preference, "reward": reward}


# ---- training ----


def start(way: Way, model: nn.Module, task: str, learning_rate: float) -> Run:
    model = copy.deepcopy(model)
    model.set_attn_implementation(way.implementation)
    before = copy.deepcopy(model) if task == "dpo" else None
    learned = [each for each in model.parameters() if each.requires_grad]
    return Run(way, model, before, torch.optim.AdamW(learned, lr=learning_rate))


def step(run: Run, task: str, batch: Batch, dtype: torch.dtype) -> None:
    began = time.perf_counter()
    run.optimizer.zero_grad()
    with torch.autocast(batch["input_ids"].device.type, dtype, enabled=dtype != torch.float32):
        loss = TASKS[task](run, batch)
    loss.backward()
    nn.utils.clip_grad_norm_(run.optimizer.param_groups[0]["params"], max_norm=1.0)
    run.optimizer.step()
    run.losses.append(loss.item())
    run.seconds.append(time.perf_counter() - began)


def train(task: str, options: argparse.Namespace) -> dict[str, Run]:
    """Trains a model for every way to attend, over the same batches."""
    preset, dtype = PRESETS[options.preset], getattr(torch, options.dtype)
    torch.manual_seed(options.seed)
    model = make_model(task, preset).to(options.device)
    preferences = task in ("dpo", "reward")  # preferences are learned in smaller steps
    learning_rate = preset.learning_rate * (0.1 if preferences else 1)
    runs = {name: start(way, model, task, learning_rate) for name, way in WAYS.items()}
    data = islice(examples(preset, preferences, options.seed), options.steps * preset.examples)
    batches = DataLoader(list(data), preset.examples, collate_fn=partial(collate, length=preset.length))
    print(f"\n{task:<8}" + "".join(f"{name:>13}" for name in runs))
    for number, batch in enumerate(batches, start=1):
        on_device = {name: tensor.to(options.device) for name, tensor in batch.items()}
        for run in runs.values():
            step(run, task, on_device, dtype)
        if number % max(1, options.steps // 10) == 0 or number == 1:
            print(f"step {number:<3}" + "".join(f"{run.losses[-1]:>13.7f}" for run in runs.values()), flush=True)
    return runs


# ---- what must hold ----


@dataclass
class Comparison:
    """The losses of each way [steps], flashmask's distance from SDPA and its bound, and the checks that failed."""

    losses: dict[str, list[float]]
    milliseconds: dict[str, float]
    distance: list[float]
    bound: list[float]
    broken: list[str]


def compare(runs: dict[str, Run]) -> Comparison:
    losses = {name: np.array(run.losses) for name, run in runs.items()}
    ours, dense = losses["flashmask"], losses["SDPA dense"]
    noise = np.maximum.accumulate(np.abs(losses["reversed"] - dense))
    noise = noise[np.minimum(np.arange(len(noise)) + FEW, len(noise) - 1)]
    bound = np.minimum(BOUND * (noise + np.finfo(np.float32).eps * np.abs(dense)), LIMIT * np.abs(dense[0]))
    distance = np.abs(ours - dense)
    broken = []
    for name in ("every tile", "again"):
        for at in np.flatnonzero(losses[name] != ours)[:1]:
            broken.append(f"at step {at + 1}: {name} has the loss {losses[name][at]}, flashmask {ours[at]}")
        if not all(map(torch.equal, runs[name].model.parameters(), runs["flashmask"].model.parameters())):
            broken.append(f"after training: weights of {name} and of flashmask are not the same bits")
    for at in np.flatnonzero(~(distance <= bound))[:1]:
        broken.append(f"at step {at + 1}: SDPA dense is {distance[at]:.1e} away; expected at most {bound[at]:.1e}")
    return Comparison(
        losses={name: run.losses for name, run in runs.items()},
        milliseconds={name: 1e3 * float(np.median(run.seconds)) for name, run in runs.items()},
        distance=distance.tolist(),
        bound=bound.tolist(),
        broken=broken,
    )


def report(task: str, found: Comparison) -> None:
    losses = found.losses["flashmask"]
    first, last = np.mean(losses[:FEW]), np.mean(losses[-FEW:])
    times = ", ".join(f"{name} {found.milliseconds[name]:.0f} ms" for name in DRAWN)
    print(f"{task}: the loss went from {first:.3f} to {last:.3f}; a step of {times}")
    if found.broken:
        print("\n".join(f"{task}: BROKEN {each}" for each in found.broken), file=sys.stderr)
        return
    share = max(np.divide(found.distance, found.bound))
    print(
        f"{task}: flashmask, every tile and again: {len(losses)} losses, and the weights after them, are the same bits"
    )
    print(f"{task}: SDPA dense: at most {max(found.distance):.1e} away, never more than {share:.2f} of the bound")


def draw(compared: dict[str, Comparison], path: Path, title: str) -> None:
    """Draws the losses of three ways, and under them the distance from SDPA and its bound."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4 * len(compared), 5.6), layout="constrained")
    axes = figure.subplots(2, len(compared), sharex="col", squeeze=False, height_ratios=(2, 1))
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    for (task, found), (above, below) in zip(compared.items(), axes.T, strict=True):
        steps = range(1, len(found.distance) + 1)
        for name, (colour, width, line) in DRAWN.items():
            above.plot(steps, found.losses[name], line, color=colour, linewidth=width, label=name)
        above.set_title(task, loc="left", fontsize=10)
        below.fill_between(steps, found.bound, ZERO, color="#dfe4e8", label="bound")
        below.plot(steps, np.maximum(found.distance, ZERO), ".", color="#1f6f8b", markersize=3, label="flashmask")
        below.set_yscale("log")
        below.set_ylim(ZERO, 10 * max(found.bound))
        below.minorticks_off()
        below.set_xlabel("step", fontsize=9)
        for each in (above, below):
            each.spines[["top", "right"]].set_visible(False)
            each.tick_params(labelsize=8)
    axes[0, 0].set_ylabel("loss", fontsize=9)
    axes[1, 0].set_ylabel("distance from SDPA", fontsize=9)
    axes[0, 0].legend(frameon=False, fontsize=8)
    axes[1, 0].legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=130, format="png")


# ---- the program ----


def arguments(given: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=[*TASKS, "all"], default="all", help="default: all, one after another")
    parser.add_argument("--preset", choices=PRESETS, default="small", help="size of the model and of its batches")
    parser.add_argument("--steps", type=int, default=200, help="default: 200")
    parser.add_argument("--seed", type=int, default=0, help="of the weights and of the examples; default: 0")
    parser.add_argument("--device", default="cpu", help="cpu (default) or cuda")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], help="default: float32 on a CPU, else bfloat16")
    parser.add_argument("--png", type=Path, default=Path("out/train_packed.png"), help="default: out/train_packed.png")
    parser.add_argument("--json", type=Path, help="also write all losses here")
    options = parser.parse_args(given)
    if options.steps < 1:
        parser.error(f"--steps is {options.steps}; expected at least 1")
    for path in filter(None, (options.png, options.json)):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:  # before anything is trained
            parser.error(f"{path} cannot be written: {error.strerror}")
        if path.is_dir() or not os.access(path.parent, os.W_OK):
            parser.error(f"{path} cannot be written; expected a file in a folder that you may write to")
    options.dtype = options.dtype or ("float32" if options.device == "cpu" else "bfloat16")
    return options


def check_kernels(options: argparse.Namespace) -> None:
    """Ends the program where flashmask has no kernels for what is asked, before anything is trained."""
    sizes, dtype = PRESETS[options.preset].model, getattr(torch, options.dtype)
    heads, head_dim = sizes["num_attention_heads"], sizes["hidden_size"] // sizes["num_attention_heads"]
    try:
        q = torch.ones(1, 8, heads, head_dim, dtype=dtype, device=options.device, requires_grad=True)
        k = q[:, :, : sizes["num_key_value_heads"]]
        flashmask.attention(q, k, k, flashmask.masks.causal(8, 8)).sum().backward()
    except (AssertionError, RuntimeError, ValueError) as error:  # torch without CUDA, or flashmask without a kernel
        sys.exit(f"This build cannot train in {options.dtype} on {options.device}: {error}")


def main(given: list[str] | None = None) -> int:
    options = arguments(given)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # or matrix products on a GPU would not repeat
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(PRESETS[options.preset].threads or torch.get_num_threads())
    check_kernels(options)
    flashmask.transformers.register()
    flashmask.transformers.register("flashmask-every-tile", visit="all")
    title = f"{options.preset}, {options.dtype} on {options.device}, torch {torch.__version__}, seed {options.seed}"
    print(title)
    compared = {}
    for task in TASKS if options.task == "all" else [options.task]:
        compared[task] = compare(train(task, options))
        report(task, compared[task])
    if options.json:
        tasks = {task: asdict(found) for task, found in compared.items()}
        options.json.write_text(json.dumps({"run": title, "tasks": tasks}, indent=1) + "\n")
    try:
        draw(compared, options.png, title)
        print(f"\nThe curves are in {options.png}")
    except ImportError:
        print("\nThere is no picture: matplotlib, which draws it, is not installed")
    return int(any(found.broken for found in compared.values()))


if __name__ == "__main__":
    sys.exit(main())
