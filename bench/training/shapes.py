# SPDX-License-Identifier: Apache-2.0
"""Sizes of models, and the products that a step of training takes, counted from them."""

from __future__ import annotations

from dataclasses import dataclass

from flashmask.data.synthetic import Sample

RANK = 16
"""LoRA's rank, on all seven projections of a layer."""


@dataclass(frozen=True)
class Shape:
    """A model of Llama's kind."""

    hidden: int
    mlp: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    tied: bool = False
    """Whether the head's weights are those of the embedding."""

    @property
    def projections(self) -> tuple[tuple[int, int], ...]:
        """(in, out) of a layer's seven projections: q, k, v, o, gate, up, down."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        of_attention = ((self.hidden, queries), (self.hidden, keys), (self.hidden, keys), (queries, self.hidden))
        return (*of_attention, (self.hidden, self.mlp), (self.hidden, self.mlp), (self.mlp, self.hidden))

    def parameters(self, layers: int) -> int:
        """Parameters of the layers, the embedding and the head; norms are left out."""
        embeddings = self.hidden * self.vocabulary * (1 if self.tied else 2)
        return layers * sum(a * b for a, b in self.projections) + embeddings

    def adapters(self, layers: int) -> int:
        """Parameters of LoRA."""
        return layers * RANK * sum(a + b for a, b in self.projections)

    def attention_flops(self, pairs: int) -> float:
        """FLOP of one layer's forward over `pairs` (query, key) pairs: two products. The backward's five take 2.5 times
        as many."""
        return 4.0 * pairs * self.heads * self.head_dim


SHAPES = {
    "8b": Shape(4096, 14336, 32, 32, 8, 128, 128256),
    "1b": Shape(2048, 8192, 16, 32, 8, 64, 128256, tied=True),
    "tiny": Shape(64, 128, 2, 4, 2, 16, 256),
}


@dataclass(frozen=True)
class Passes:
    """How often a step multiplies by the weights: forward, backward, and forward again in the backward."""

    forward: int
    backward: int
    again: int = 1

    @property
    def needed(self) -> int:
        return self.forward + self.backward

    @property
    def all(self) -> int:
        return self.needed + self.again


# A frozen weight's backward is one product, a learning one's two. DPO runs its reference model forward too.
FROZEN = {"sft": False, "lora": True, "dpo": True, "rm": True}
WEIGHTS = {"sft": Passes(1, 2), "lora": Passes(1, 1), "dpo": Passes(2, 1), "rm": Passes(1, 1)}
ADAPTERS = Passes(1, 2)
# The logits of DPO are made again in its backward; the other losses have their gradient in the forward.
HEAD = {"sft": Passes(1, 2, 0), "lora": Passes(1, 1, 0), "dpo": Passes(2, 1, 1), "rm": Passes(0, 0, 0)}


def model_flops(shape: Shape, layers: int, task: str, sample: Sample) -> float:
    """FLOP of the products that a step needs, nothing computed twice: attention on pairs that see each other, the head
    for words of answers, and no padding."""
    tokens = sample.tokens - sample.padding
    forwards = WEIGHTS[task].forward
    linear = tokens * _linear(shape, layers, task, WEIGHTS[task].needed, ADAPTERS.needed)
    head = 2.0 * asked_words(sample) * shape.hidden * shape.vocabulary * HEAD[task].needed
    return linear + head + layers * shape.attention_flops(sample.visible_pairs) * (forwards + 2.5)


def hardware_flops(shape: Shape, layers: int, task: str, sample: Sample, tokens: int, attention: float) -> float:
    """FLOP of the products that a step over `tokens` tokens computed, recomputation included; `attention` of these are
    attention's."""
    linear = tokens * _linear(shape, layers, task, WEIGHTS[task].all, ADAPTERS.all)
    head = 2.0 * asked_words(sample) * shape.hidden * shape.vocabulary * HEAD[task].all
    return linear + head + attention


def _linear(shape: Shape, layers: int, task: str, weights: int, adapters: int) -> float:
    """FLOP of the layers per token."""
    of_weights = 2.0 * layers * sum(a * b for a, b in shape.projections) * weights
    return of_weights + (2.0 * shape.adapters(layers) * adapters if FROZEN[task] else 0.0)


def asked_words(sample: Sample) -> int:
    return sum(sum(answers) for _, *answers in sample.documents)
