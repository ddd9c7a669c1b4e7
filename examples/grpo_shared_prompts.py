# SPDX-License-Identifier: Apache-2.0
"""Trains a tiny random Qwen3 by TRL's GRPO, and once more with each prompt computed once, and compares the two runs.

    python examples/grpo_shared_prompts.py                             # on a CPU, in a minute
    python examples/grpo_shared_prompts.py --prompt 1024 --layers 4    # longer prompts, of which more is shared

The reward is the share of even tokens in an answer. Both runs draw the same answers as long as their models agree, so
that their rewards are the same step by step. Generation is the same code in both; what differs is the time of updates.
"""

import argparse
import time
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, PrinterCallback, Qwen3Config, Qwen3ForCausalLM, logging
from trl import GRPOConfig, GRPOTrainer

import flashmask.transformers
from flashmask.trl import SharedPromptGRPOTrainer

VOCABULARY, GROUP, PROMPTS = 64, 8, 2  # answers to a prompt, and prompts of a step


def tokenizer() -> PreTrainedTokenizerFast:
    """A word for each token, the first two of which pad and end an answer."""
    words = Tokenizer(models.WordLevel({f"w{number}": number for number in range(VOCABULARY)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="w0", eos_token="w1")


def tiny_model(attention: str, layers: int) -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        pad_token_id=0,
        eos_token_id=1,
        attn_implementation=attention,
    )
    return Qwen3ForCausalLM(config)


def prompts(longest: int) -> Dataset:
    """Random words, between half of `longest` and all of it."""
    draw = torch.Generator().manual_seed(0)
    sizes = torch.randint(longest // 2, longest + 1, (256,), generator=draw).tolist()
    drawn = [torch.randint(2, VOCABULARY, (size,), generator=draw).tolist() for size in sizes]
    return Dataset.from_dict({"prompt": [" ".join(f"w{word}" for word in words) for words in drawn]})


def evenness(completion_ids: list[list[int]], **_: Any) -> list[float]:
    return [sum(token % 2 == 0 for token in ids) / len(ids) for ids in completion_ids]


class Run:
    """One trainer's rewards, the tokens that pass through its model in updates, and the seconds of these."""

    def __init__(self, kind: type[GRPOTrainer], attention: str, asked: argparse.Namespace) -> None:
        self.tokens, self.generating = 0, 0.0
        config = GRPOConfig(
            output_dir="out/grpo",
            max_steps=asked.steps,
            per_device_train_batch_size=PROMPTS * GROUP,
            num_generations=GROUP,
            max_completion_length=asked.answer,
            num_iterations=2,
            learning_rate=2e-3,
            lr_scheduler_type="constant",
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
            bf16=False,
            activation_checkpointing=False,
        )
        data, words, model = prompts(asked.prompt), tokenizer(), tiny_model(attention, asked.layers)
        self.trainer = kind(model, evenness, args=config, train_dataset=data, processing_class=words)
        self.trainer.remove_callback(PrinterCallback)
        self.generate = self.trainer._generate_single_turn
        self.trainer._generate_single_turn = self.timed_generation
        self.counting = model.get_input_embeddings().register_forward_pre_hook(self.count)

    def count(self, _: torch.nn.Module, given: tuple[torch.Tensor]) -> None:
        self.tokens += given[0].numel()

    def timed_generation(self, *given: Any) -> Any:
        begun, tokens = time.process_time(), self.tokens
        answers = self.generate(*given)
        self.generating += time.process_time() - begun
        self.tokens = tokens
        return answers

    def train(self) -> list[float]:
        """Returns the reward of every step."""
        torch.manual_seed(1)
        begun = time.process_time()
        self.trainer.train()
        self.updating = time.process_time() - begun - self.generating
        return [entry["reward"] for entry in self.trainer.state.log_history if "reward" in entry]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60, help="half of which generate answers, each used twice")
    parser.add_argument("--prompt", type=int, default=256, help="tokens of the longest prompt")
    parser.add_argument("--answer", type=int, default=32, help="tokens of the longest answer")
    parser.add_argument("--layers", type=int, default=2)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    flashmask.transformers.register()
    padded = Run(GRPOTrainer, "sdpa", asked)
    rewards = [padded.train()]
    shared = Run(SharedPromptGRPOTrainer, "flashmask", asked)
    rewards.append(shared.train())
    for step, (first, second) in enumerate(zip(*rewards, strict=True)):
        print(f"step {2 * step:3}: reward {first:.6f} by TRL, {second:.6f} with shared prompts")
    print(f"tokens through the model in updates: {padded.tokens:,} and {shared.tokens:,}", end="")
    print(f", {padded.tokens / shared.tokens:.2f} times fewer")
    print(f"seconds of updates: {padded.updating:.2f} and {shared.updating:.2f}", end="")
    print(f", {padded.updating / shared.updating:.2f} times less")
    print(f"seconds of generation: {padded.generating:.2f} and {shared.generating:.2f}")


if __name__ == "__main__":
    main()
