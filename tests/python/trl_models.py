# SPDX-License-Identifier: Apache-2.0
"""Tiny models, a tokenizer and preference data for TRL's trainers."""

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification, PreTrainedTokenizerFast

WORDS = [f"w{number}" for number in range(60)]
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def tokenizer():
    words = {word: number for number, word in enumerate(["<pad>", "<eos>", *WORDS])}
    made = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="<eos>")


def config(attention, **others):
    return LlamaConfig(**SIZES, vocab_size=62, pad_token_id=0, attn_implementation=attention, **others)


def language_model(attention, seed=0):
    torch.manual_seed(seed)
    return LlamaForCausalLM(config(attention))


def reward_model(attention):
    torch.manual_seed(0)
    return LlamaForSequenceClassification(config(attention, num_labels=1))


def sentence(generator, low, high):
    count = int(torch.randint(low, high, (), generator=generator))
    return " ".join(WORDS[number] for number in torch.randint(60, (count,), generator=generator).tolist())


def preferences(pairs=8, seed=3, **columns):
    """Questions of 3 to 12 words and answers of 1 to 9; both answers of a question may begin alike."""
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for number in range(pairs):
        common = sentence(generator, 1, 4) + " " if number % 3 == 0 else ""
        answers = {name: " " + common + sentence(generator, 1, 6) for name in ("chosen", "rejected")}
        rows.append({"prompt": sentence(generator, 3, 12), **answers})
    return Dataset.from_list([{**row, **{name: of(k) for name, of in columns.items()}} for k, row in enumerate(rows)])
