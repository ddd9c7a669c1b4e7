# SPDX-License-Identifier: Apache-2.0
"""The update of a policy in TRL's GRPO: padded, without padding, and with the prompt computed once.

    python bench/policy_update.py --model 0.5B 1.5B 7B                     # on a GPU: random weights, LoRA of the 7B
    python bench/policy_update.py --model tiny --prompts 96 --answers 32   # on a CPU, in float32

A micro-batch is one prompt with a group of answers, which are given: nothing is generated. Contestants take turns with
one model under gradient checkpointing:

    padded      TRL as it is, with SDPA and with each FlashAttention that Transformers finds
    unpadded    the rows of a call one behind the other, each with its prompt, with FlashAttention and with flashmask;
                "torch" is PyTorch's own FlashAttention-2 for sequences of different lengths
    shared      flashmask.trl.share_prompts()
    invariant   the same with invariant=True

An update is TRL's loss and its backward; scoring is the same call of the model without gradients, for the old policy or
the reference model. Tokens per second count every answer with its prompt, so that they compare. Gradients are compared
with the first contestant's before anything is timed: the last column is the largest relative difference among eight
weights, which on a CPU must be rounding. The peak of memory is that of the same, first update. A call of more than one
second is timed once; a shorter one until a second is over, or three times after one that warms up.
"""

import argparse
import gc
import statistics
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import transformers
import trl
from datasets import Dataset
from tokenizers import Tokenizer, models
from torch import Tensor
from training.contestants import Absent, of_torch
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    AutoModelForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    logging,
)
from transformers.utils import is_flash_attn_2_available, is_flash_attn_3_available
from trl import GRPOConfig, GRPOTrainer

import flashmask.transformers
from flashmask.trl import share_prompts

SIZES = {  # hidden, MLP, layers, heads, heads of keys, words, and whether the head has the embeddings' weights
    "tiny": (64, 128, 2, 4, 2, 512, False),
    "0.5B": (896, 4864, 24, 14, 2, 151_936, True),
    "1.5B": (1536, 8960, 28, 12, 2, 151_936, True),
    "7B": (3584, 18944, 28, 28, 4, 152_064, False),
}
LORA = ("7B",)
REPEATS, LIMIT, GIB = 3, 1.0, 2**30  # timed calls at most, and the seconds after which no other one begins


class Contestant(NamedTuple):
    """A way to score the rows of a call, and the attention that it runs with."""

    name: str
    attention: str
    scores: Callable[..., Any]


def make_model(size: str, device: str) -> Any:
    hidden, mlp, layers, heads, key_heads, words, tied = SIZES[size]
    config = Qwen2Config(
        vocab_size=words,
        hidden_size=hidden,
        intermediate_size=mlp,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_heads,
        tie_word_embeddings=tied,
        max_position_embeddings=32_768,
        attn_implementation="flashmask",
    )
    torch.manual_seed(0)
    with torch.device(device):
        return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16 if device == "cuda" else torch.float32)


def make_trainer(size: str, device: str, group: int) -> GRPOTrainer:
    """A trainer that never generates: its tokenizer knows no words and its data is not read."""
    words = Tokenizer(models.WordLevel({"pad": 0, "end": 1}, unk_token="pad"))
    adapters = {}
    if size in LORA:
        from peft import LoraConfig

        adapters["peft_config"] = LoraConfig(r=16, target_modules="all-linear", task_type="CAUSAL_LM")
    config = GRPOConfig(
        output_dir="out/policy_update",
        per_device_train_batch_size=group,
        num_generations=group,
        use_cpu=device == "cpu",
        bf16=device == "cuda",
        report_to="none",
    )
    trainer = GRPOTrainer(
        make_model(size, device),
        lambda **_: [],
        args=config,
        train_dataset=Dataset.from_dict({"prompt": ["pad"] * group}),
        processing_class=PreTrainedTokenizerFast(tokenizer_object=words, pad_token="pad", eos_token="end"),
        **adapters,
    )
    trainer.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    trainer.model.enable_input_require_grads()
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    return trainer


def contestants(trainer: GRPOTrainer, device: str) -> list[Contestant]:
    theirs = trainer._get_per_token_logps_and_entropies
    share_prompts(trainer)
    ours = trainer._get_per_token_logps_and_entropies

    def aligned(*given: Any, **options: Any) -> Any:
        share_prompts(trainer, invariant=True)
        try:
            return ours(*given, **options)
        finally:
            share_prompts(trainer)

    found = {"flash_attention_2": is_flash_attn_2_available(), "flash_attention_3": is_flash_attn_3_available()}
    flash = [name for name, there in found.items() if there and device == "cuda"]
    own = ["torch"] if device == "cuda" and register_torch() else []
    return [
        Contestant("shared", "flashmask", ours),
        Contestant("invariant", "flashmask", aligned),
        *(
            Contestant(f"unpadded, {name}", name, partial(unpadded, trainer, name))
            for name in (*own, *flash, "flashmask")
        ),
        *(Contestant(f"padded, {name}", name, theirs) for name in ("sdpa", *flash)),
    ]


def register_torch() -> bool:
    """Registers PyTorch's FlashAttention for documents as "torch"; returns whether this PyTorch has one."""
    try:
        attention = of_torch(torch.device("cuda"))
    except Absent:
        return False

    def attend(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: None, **given: Any) -> tuple[Tensor, None]:
        flat = [each[0].transpose(0, 1) for each in (q, k, v)]
        return attention(flat, given["cu_seq_lens_q"], given["max_length_q"])[None], None

    AttentionInterface.register("torch", attend)
    AttentionMaskInterface.register("torch", lambda *_, **__: None)
    return True


def unpadded(
    trainer: GRPOTrainer,
    attention: str,
    model: Any,
    input_ids: Tensor,
    attention_mask: Tensor,
    answer: int,
    compute_entropy: bool = False,
    **_: Any,
) -> tuple[Tensor, Tensor | None, None]:
    """Scores rows that lie one behind the other: position_ids say where each begins, and so do the sums of lengths that
    FlashAttention takes."""
    held = attention_mask.bool()
    scored = held.clone()
    scored[:, :-answer] = False
    labels = torch.where(scored, input_ids, -100).roll(-1, 1)  # each row begins with its prompt, which has no labels
    positions = held.cumsum(1) - 1
    lengths = held.sum(1)
    ends, longest = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).int(), int(lengths.max())
    packed = {"input_ids": input_ids[held][None], "position_ids": positions[held][None]}
    if attention != "flashmask":
        packed |= {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "max_length_q": longest, "max_length_k": longest}
    with trainer.accelerator.autocast():
        found = model(**packed, shift_labels=labels[held][None], fused_lm_head=True)

    def padded(each: Tensor) -> Tensor:
        rows = torch.zeros(held.shape, dtype=each.dtype, device=each.device).masked_scatter(held, each[0])
        return rows.roll(1, 1)[:, -answer:].masked_fill(~scored[:, -answer:], 0)

    return padded(found.log_probs), padded(found.entropy) if compute_entropy else None, None


def make_batch(size: str, device: str, prompt: int, answer: int, group: int, uniform: bool) -> dict[str, Tensor]:
    """A prompt and its answers; all of `answer` tokens, or of so many at most."""
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(2, SIZES[size][5], (1, prompt), generator=draw)
    completions = torch.randint(2, SIZES[size][5], (group, answer), generator=draw)
    lengths = torch.randint(1, answer + 1, (group, 1), generator=draw) if uniform else torch.full((group, 1), answer)
    lengths[0] = answer
    mask = (torch.arange(answer) < lengths).long()
    batch = {
        "prompt_ids": ids.repeat(group, 1),
        "prompt_mask": torch.ones(group, prompt, dtype=torch.int64),
        "completion_ids": completions * mask,
        "completion_mask": mask,
        "advantages": torch.randn(group, generator=draw),
        "num_items_in_batch": mask.sum(),
    }
    return {name: each.to(device) for name, each in batch.items()}


class Bench:
    """One trainer, and what its contestants take for a batch."""

    def __init__(self, trainer: GRPOTrainer, device: str) -> None:
        self.trainer, self.device = trainer, device
        self.clock = time.perf_counter if device == "cuda" else time.process_time
        self.contestants = contestants(trainer, device)

    def take(self, contestant: Contestant) -> None:
        model = self.trainer.accelerator.unwrap_model(self.trainer.model)
        base = model.get_base_model() if hasattr(model, "peft_config") else model
        base.set_attn_implementation(contestant.attention)
        self.trainer._get_per_token_logps_and_entropies = contestant.scores

    def update(self, batch: dict[str, Tensor]) -> Tensor:
        self.trainer.model.zero_grad(set_to_none=True)
        loss = self.trainer._compute_loss(self.trainer.model, batch)
        loss.backward()
        return loss.detach()

    @torch.no_grad()
    def score(self, batch: dict[str, Tensor]) -> None:
        ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1)
        mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1)
        scores = self.trainer._get_per_token_logps_and_entropies
        scores(self.trainer.model, ids, mask, batch["completion_ids"].shape[1])

    def seconds(self, call: Callable[[dict[str, Tensor]], Any], batch: dict[str, Tensor]) -> float:
        """The median of as many calls as fit; the first warms up, and counts where it takes all the time."""
        taken: list[float] = []
        while not taken or (len(taken) <= REPEATS and sum(taken) < LIMIT):
            self.wait()
            begun = self.clock()
            call(batch)
            self.wait()
            taken.append(self.clock() - begun)
        return statistics.median(taken[1:] or taken)

    def wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def first(self, batch: dict[str, Tensor]) -> tuple[float, list[Tensor]]:
        """GiB that an update takes beside the weights, its gradients included; and up to eight of these, in float32."""
        self.trainer.model.zero_grad(set_to_none=True)
        if self.device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
        self.update(batch)
        peak = (torch.cuda.max_memory_allocated() - before) / GIB if self.device == "cuda" else float("nan")
        learned = [each for each in self.trainer.model.parameters() if each.grad is not None]
        return peak, [each.grad.float().clone() for each in learned[:: max(1, len(learned) // 8)]]


def away(one: list[Tensor], other: list[Tensor]) -> float:
    return max(float((a - b).norm() / b.norm()) for a, b in zip(one, other, strict=True) if b.norm() > 0)


def measure(bench: Bench, batch: dict[str, Tensor]) -> None:
    tokens = int(batch["prompt_mask"].sum() + batch["completion_mask"].sum())
    first = None
    for contestant in bench.contestants:
        bench.take(contestant)
        try:
            peak, gradients = bench.first(batch)
            first = first or gradients
            apart = away(gradients, first)
            assert bench.device == "cuda" or apart < 1e-4, f"{contestant.name} is {apart:.1e} away"
            seconds, scoring = bench.seconds(bench.update, batch), bench.seconds(bench.score, batch)
        except RuntimeError as error:  # torch.OutOfMemoryError is one
            if bench.device == "cpu":
                raise
            print(f"| {contestant.name} | {str(error).splitlines()[0]} | | | | |", flush=True)
            continue
        numbers = f"{seconds * 1e3:.1f} | {tokens / seconds:,.0f} | {scoring * 1e3:.1f} | {peak:.2f}"
        print(f"| {contestant.name} | {numbers} | {apart:.1e} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", nargs="*", default=["0.5B"], choices=SIZES)
    parser.add_argument("--prompts", nargs="*", type=int, default=[512, 2048, 4096, 8192, 16_384], help="tokens")
    parser.add_argument("--answers", nargs="*", type=int, default=[256, 1024, 2048], help="tokens")
    parser.add_argument("--group", type=int, default=8, help="answers to a prompt")
    parser.add_argument("--uniform", action="store_true", help="draw the lengths of answers, from 1 token on")
    asked = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    warnings.simplefilter("ignore", FutureWarning)
    logging.set_verbosity_error()
    flashmask.transformers.register()
    where = torch.cuda.get_device_name() if device == "cuda" else "a CPU, processor time"
    print(f"torch {torch.__version__}, Transformers {transformers.__version__}, TRL {trl.__version__}")
    for size in asked.model:
        bench = Bench(make_trainer(size, device, asked.group), device)
        for prompt in asked.prompts:
            for answer in asked.answers:
                print(f"\n{size} on {where}: a prompt of {prompt}, {asked.group} answers of {answer}\n")
                print("| | update, ms | tokens/s | scoring, ms | peak of an update, GiB | gradients apart |")
                print("|---|---|---|---|---|---|")
                measure(bench, make_batch(size, device, prompt, answer, asked.group, asked.uniform))
        del bench
        gc.collect()  # a trainer refers to itself


if __name__ == "__main__":
    main()
