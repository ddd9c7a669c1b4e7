# SPDX-License-Identifier: Apache-2.0
"""Predicts how much memory a step takes on the card and on the host, and checks that it is free."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class StepMemory:
    """Bytes that a step takes beside what is allocated before it: on the card at its peak, and on the host."""

    card: int
    host: int

    def __str__(self) -> str:
        return f"{self.card / 2**30:.1f} GiB on the card and {self.host / 2**30:.1f} GiB on the host"

    def require(self, device: torch.device) -> None:
        """Raises MemoryError where the card or the host does not have that much."""
        if device.type == "cuda":
            _require("card", self.card, free_on_card(device), "offload=True, keep=2, a smaller chunk or fewer tokens")
            _require("host", self.host, free_on_host(), "a smaller offload, keep=2 or fewer tokens")
        else:
            _require("host", self.host + self.card, free_on_host(), "keep=2, a smaller chunk or fewer tokens")


def _require(where: str, needed: int, free: int, less: str) -> None:
    if needed > free:
        raise MemoryError(
            f"a step takes {needed / 2**30:.1f} GiB on the {where}, which has {free / 2**30:.1f} GiB; {less} take less"
        )


def free_on_card(device: torch.device) -> int:
    """Returns the bytes that PyTorch could still allocate."""
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0]) + unused


def free_on_host() -> int:
    """Returns the bytes that this process could still take, within its control group's limit if there is one."""
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    free = int(fields["MemAvailable"].split()[0]) * 1024
    for limit, used in (
        (_CGROUP / "memory.max", _CGROUP / "memory.current"),
        (_CGROUP / "memory/memory.limit_in_bytes", _CGROUP / "memory/memory.usage_in_bytes"),
    ):
        if limit.exists() and limit.read_text().strip().isdigit():
            free = min(free, int(limit.read_text()) - int(used.read_text()))
    return free


@dataclass(frozen=True)
class LayerSizes:
    """Sizes of a layer: elements per token, numbers of heads, bytes per element and bytes of its gradients."""

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    bytes: int
    gradients: int

    def heads_of(self, tokens: int) -> int:
        """Returns the bytes of q, k and v."""
        return tokens * (self.heads + 2 * self.kv_heads) * self.head_dim * self.bytes

    def result_of(self, tokens: int) -> int:
        """Returns the bytes of o and lse."""
        return tokens * self.heads * (self.head_dim * self.bytes + 4)

    def input_of(self, tokens: int) -> int:
        return tokens * self.hidden * self.bytes


def sizes_of(layer: Any, decoder: Any) -> LayerSizes:
    """Returns the sizes of a decoder layer of Transformers."""
    config = decoder.config
    return LayerSizes(
        hidden=config.hidden_size,
        intermediate=config.intermediate_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=layer.self_attn.head_dim,
        bytes=decoder.get_input_embeddings().weight.dtype.itemsize,
        gradients=sum(4 * each.numel() for each in layer.parameters() if each.requires_grad),
    )


def step_memory(
    layer: LayerSizes, *, layers: int, tokens: int, chunk: int, keep: int, offload: int, held: bool, head: int
) -> StepMemory:
    """Predicts the memory of a forward and backward. tokens and chunk count all sequences; head: bytes of the loss.

    The peak is in the backward of a layer, which holds its input, the gradients of its result and of its input, and q,
    k, v and o; then what a chunk saves for its own backward, or the gradients of q, k and v, that of q in float32 as
    well. Or the peak is in the loss, while it computes the gradient of the last layer's result.
    """
    of_input = layer.input_of(tokens)
    inputs = -(-layers // keep)
    on_host = min(offload, inputs - 1)
    kept = (inputs - on_host) * of_input + (layers * layer.result_of(tokens) if held else 0)
    again = (keep - 1) * (of_input + layer.result_of(tokens))
    passing = (2 if on_host else 0) * of_input
    of_chunk = chunk * (12 * layer.hidden + 7 * layer.intermediate) * layer.bytes
    of_attention = layer.heads_of(tokens) + tokens * layer.heads * layer.head_dim * 4
    angles_and_statistics = tokens * (4 * layer.head_dim * layer.bytes + 12 * layer.heads)
    shared = angles_and_statistics + 2 * of_input + layer.heads_of(tokens) + 2 * layer.result_of(tokens)
    backward = shared + max(of_chunk, of_attention) + again + passing + layer.gradients
    return StepMemory(card=kept + max(backward, 4 * of_input + head), host=on_host * of_input)
