# SPDX-License-Identifier: Apache-2.0
"""The packing collator."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flashmask._arguments import choice, integer, items
from flashmask.data._batch import Batch
from flashmask.data._bins import PACKINGS, fill
from flashmask.data._examples import IGNORED, Document, Tokens, document
from flashmask.data._registered import warn_where_nobody_reads_masks

_TOO_LONG = ("error", "drop")


class Packed(Batch):
    """The batch that pack() returns, and which examples are in it."""

    #: Examples that were longer than a sequence and were left out.
    dropped: int = 0
    #: Numbers of the examples in each sequence, in the order they lie there.
    examples: Sequence[Sequence[int]] = ()


def pack(
    examples: Iterable[Mapping[str, Any]],
    *,
    length: int,
    packing: str = "best-fit",
    too_long: str = "error",
    pad_token_id: int = 0,
) -> Packed:
    """Packs whole examples into as few sequences of `length` tokens as `packing` finds; equal input, equal batch.

    An example is a mapping of one of these sets of keys to token ids (lists, arrays or tensors of whole numbers):

    - `input_ids`, with `labels` or without (then every token is a label), or `prompt_ids` and `completion_ids`: one
      causal document;
    - `prompt_ids`, `chosen_ids` and `rejected_ids` (DPO), or `prompt_ids` and `answer_ids`, a list of answers (reward
      models, GRPO): a question that its answers share; they do not see each other.

    packing is "best-fit" or "order", see fill(). too_long="drop" leaves out examples of more than `length` tokens and
    counts them in `.dropped`; "error" raises.

    Returns, for B sequences:

    - `input_ids`, `position_ids`, `labels` int64 [B, length]. Positions begin at 0 in each example, and in each answer
      they continue after the question. Labels are input ids, and -100 in prompts, in padding, and at the first token of
      each document and of each answer but the first, which the row before it must not predict;
    - `startend_row_indices` int32 [B, 1, length, 1], to be read causally: padding is never seen;
    - with answers also `answers` int64 [A, 3]: sequence, first row and end of each, in the order of the examples, so
      that chosen and rejected alternate; `answer_ids` int64 [B, length], the answer of each token or -1; and
      `predictors` int64 [B, length], the row whose logits predict the token. answer_log_probs() takes these three.

    Raises ValueError and TypeError that name the example and its key.
    """
    integer("length", length, minimum=1)
    choice("packing", packing, PACKINGS)
    choice("too_long", too_long, _TOO_LONG)
    documents = [
        document(example, number)
        for number, example in enumerate(items("examples", examples, "mappings from names to token ids"))
    ]
    kept = [number for number, each in enumerate(documents) if each.tokens.size <= length]
    _check_kept(documents, kept, length, too_long)
    documents_kept = [documents[number] for number in kept]
    sequences = fill([each.tokens.size for each in documents_kept], length, packing)
    if any(each.bounds for each in documents_kept):
        warn_where_nobody_reads_masks()
    packed = Packed(_tensors(documents_kept, sequences, length, pad_token_id))
    packed.dropped = len(documents) - len(kept)
    packed.examples = [[kept[number] for number in sequence] for sequence in sequences]
    return packed


def _check_kept(documents: list[Document], kept: list[int], length: int, too_long: str) -> None:
    if not documents:
        raise ValueError("examples is empty; expected at least one")
    if too_long == "error" and len(kept) < len(documents):
        number = next(n for n, each in enumerate(documents) if each.tokens.size > length)
        raise ValueError(
            f"examples[{number}] has {documents[number].tokens.size} tokens; a sequence has length={length}. Examples "
            'are not cut: shorten it, or leave such examples out with too_long="drop"'
        )
    if not kept:
        raise ValueError(f"all {len(documents)} examples are longer than length={length}; nothing is left to pack")


def _tensors(documents: list[Document], sequences: list[list[int]], length: int, pad: int) -> dict[str, Tensor]:
    shape = (len(sequences), length)
    fields = {
        "input_ids": np.full(shape, pad),
        "labels": np.full(shape, IGNORED),
        "position_ids": np.zeros(shape, np.int64),
        "predictors": np.zeros(shape, np.int64),
        "answer_ids": np.full(shape, -1),
        "ends": np.zeros(shape, np.int64),
    }
    first_answer = np.cumsum([0] + [len(each.bounds) for each in documents])
    answers = np.zeros((first_answer[-1], 3), np.int64)
    for row, sequence in enumerate(sequences):
        start = 0
        for number in sequence:
            held, answer = documents[number], first_answer[number]
            _place({name: field[row, start:] for name, field in fields.items()}, held, start, answer)
            for k, (first, end) in enumerate(held.bounds):
                answers[answer + k] = row, start + first, start + end
            start += held.tokens.size
        fields["position_ids"][row, start:] = np.arange(length - start)
    return _named(fields, answers)


def _place(fields: dict[str, Tokens], held: Document, start: int, first_answer: int) -> None:
    """Writes an example that begins at row `start` and whose first answer is number `first_answer` in the batch."""
    size = held.tokens.size
    fields["input_ids"][:size] = held.tokens
    fields["labels"][:size] = held.labels
    fields["position_ids"][:size] = held.positions
    fields["predictors"][:size] = np.maximum(held.predictors, 0) + start
    fields["answer_ids"][:size] = np.where(held.answers < 0, -1, held.answers + first_answer)
    fields["ends"][:size] = held.ends + start


def _named(fields: dict[str, Tokens], answers: Tokens) -> dict[str, Tensor]:
    ends = fields.pop("ends").astype(np.int32)
    names = ["input_ids", "position_ids", "labels"] + (["answer_ids", "predictors"] if len(answers) else [])
    tensors = {name: torch.from_numpy(fields[name]) for name in names}
    tensors["startend_row_indices"] = torch.from_numpy(ends)[:, None, :, None]
    if len(answers):
        tensors["answers"] = torch.from_numpy(answers)
    return tensors
