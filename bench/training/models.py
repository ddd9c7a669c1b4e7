# SPDX-License-Identifier: Apache-2.0
"""Transformers models with random weights, and their optimizer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification

from training.shapes import FROZEN, RANK, Shape

PROJECTIONS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def make_model(shape: Shape, layers: int, task: str, attention: str, device: torch.device, dtype: torch.dtype) -> Any:
    """A Llama; for all tasks but SFT its weights are frozen, and PEFT's LoRA learns beside them."""
    config = LlamaConfig(
        hidden_size=shape.hidden,
        intermediate_size=shape.mlp,
        num_hidden_layers=layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        vocab_size=shape.vocabulary,
        tie_word_embeddings=shape.tied,
        max_position_embeddings=2**21,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
        pad_token_id=0,
        num_labels=1,
        use_cache=False,
        attn_implementation=attention,
    )
    kind = LlamaForSequenceClassification if task == "rm" else LlamaForCausalLM
    held = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with device:
            model = kind(config)
            return with_adapters(model) if FROZEN[task] else model
    finally:
        torch.set_default_dtype(held)


def with_adapters(model: nn.Module) -> Any:
    """Adds LoRA in the dtype of the weights: float32, PEFT's default, would convert every input to float32 and back."""
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules=PROJECTIONS)
    adapted = get_peft_model(model, config, autocast_adapter_dtype=False)
    if hasattr(model, "score"):
        model.score.requires_grad_(True)
    return adapted


def fuse_with_liger(model: Any) -> None:
    """Replaces norms, rotary embedding and gates by Liger-kernel's; the loss is flashmask.training's, which uses
    Liger-kernel by itself."""
    from liger_kernel.transformers import apply_liger_kernel_to_llama

    whole = model.get_base_model() if hasattr(model, "get_base_model") else model
    apply_liger_kernel_to_llama(cross_entropy=False, fused_linear_cross_entropy=False, model=whole)


class Optimizer:
    """AdamW on float32 copies of weights that are held in another dtype."""

    def __init__(self, parameters: Iterable[nn.Parameter], rate: float) -> None:
        self._held = [each for each in parameters if each.requires_grad]
        self._copies = [nn.Parameter(each.detach().float()) for each in self._held]
        self._adam = torch.optim.AdamW(self._copies, lr=rate, weight_decay=0.0, fused=True)

    def gradient_norm(self) -> float:
        """The norm of the gradient, over all ranks where FSDP shards the weights."""
        found = nn.utils.get_total_norm([each.grad for each in self._held if each.grad is not None])
        return float(found.full_tensor() if isinstance(found, DTensor) else found)

    def step(self) -> None:
        for copy, held in zip(self._copies, self._held, strict=True):
            copy.grad = None if held.grad is None else held.grad.float()
            held.grad = None
        self._adam.step()
        with torch.no_grad():
            for copy, held in zip(self._copies, self._held, strict=True):
                held.copy_(copy)
                copy.grad = None

    def checksum(self) -> int:
        """A checksum of all learned bits: different bits have a different one with near certainty."""
        found = 0
        for held in self._held:
            for part in held.detach().view(torch.uint8).flatten().split(1 << 26):
                places = torch.arange(part.numel(), device=part.device)
                found = (31 * found + int(((places % 65521 + 1) * part).sum())) % (1 << 61)
        return found
