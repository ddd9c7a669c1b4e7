# SPDX-License-Identifier: Apache-2.0
"""A tiny random Llama and its tokenizer in a folder, for trainers that load by name; words are w0 to w59."""

import random

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SPECIAL = ["<pad>", "<s>", "</s>", "<unk>"]
WORDS = [f"w{number}" for number in range(60)]


def save(folder):
    """The folder, as a string."""
    vocabulary = {word: number for number, word in enumerate(SPECIAL + WORDS)}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    names = dict(zip(("pad_token", "bos_token", "eos_token", "unk_token"), SPECIAL, strict=True))
    PreTrainedTokenizerFast(tokenizer_object=words, **names).save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(pad_token_id=0, bos_token_id=1, eos_token_id=2, initializer_range=0.3, **sizes, **heads)
    LlamaForCausalLM(config).save_pretrained(folder)
    return str(folder)


def texts(count, seed=0):
    """Texts of 3 to 20 words."""
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(3, 20))) for _ in range(count)]


def losses(logits, tokens, positions):
    """The loss of each document of one packed sequence, tokens and positions [1, S]; a position of 0 begins one."""
    each = torch.nn.functional.cross_entropy(logits[0, :-1].float(), tokens[0, 1:], reduction="none")
    document = (positions[0] == 0).cumsum(0) - 1
    inside = document[1:] == document[:-1]
    return torch.zeros(int(document[-1]) + 1).index_add(0, document[1:][inside], each[inside])


def assert_no_document_sees_another(model, batch):
    """A token of each document of a batch [1, S] changes in turn; the loss of no other one moves by a bit."""
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    tokens, positions = inputs["input_ids"], inputs["position_ids"]
    model.eval()

    def losses_with(changed):
        with torch.no_grad():
            return losses(model(**inputs | {"input_ids": changed}).logits, tokens, positions)

    before = losses_with(tokens)
    begins = (positions[0] == 0).nonzero()[:, 0].tolist()
    assert len(begins) > 2
    for document, begin in enumerate(begins):
        changed = tokens.clone()
        changed[0, begin] = (changed[0, begin] + 1) % 60
        moved = losses_with(changed) != before
        assert moved[document] and moved.sum() == 1
