# SPDX-License-Identifier: Apache-2.0
"""Checks the models and batches of a trainer whose sequences are to share a prefix."""

from __future__ import annotations

import math
import sys
import warnings
from typing import Any

import torch
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

from flashmask import masks, plan
from flashmask.transformers._mask import flashmask_mask
from flashmask.transformers._stateful import carriers_of, why_no_forks

_LAYERS = {"full_attention", "sliding_attention"}


def without_adapters(model: Any, prefix: str) -> Any:
    """Returns the model under adapters of PEFT, or `model`; raises ValueError for adapters that learn a prompt."""
    peft = sys.modules.get("peft")  # imported where there are adapters; Accelerate's check reads the disk in each call
    if peft is None or not isinstance(model, peft.PeftModel):
        return model
    kinds = [kind for kind, config in model.peft_config.items() if config.is_prompt_learning]
    if kinds:
        raise ValueError(
            f"adapter {kinds[0]!r} learns a prompt, whose tokens stand before each padded sequence; shared {prefix}s "
            f"are packed without it: train it without shared {prefix}s"
        )
    return model.get_base_model()


def check_attention(model: Any, prefix: str) -> None:
    """Raises ValueError for a model whose attention would not read the mask of a packed batch."""
    implementation = model.config._attn_implementation
    if ALL_MASK_ATTENTION_FUNCTIONS.get(implementation) is not flashmask_mask:
        raise ValueError(
            f"{type(model).__name__} has attn_implementation={implementation!r}, under which answers to one {prefix} "
            'would see each other; make it with attn_implementation="flashmask" after '
            "flashmask.transformers.register()"
        )


def check_layers(model: Any, prefix: str) -> None:
    """Raises ValueError for a model whose layers would carry one sequence into the next."""
    name, config = type(model).__name__, model.config
    if config.get_text_config() is not config:
        raise ValueError(f"{name} is a model of text and images; shared {prefix}s are packed for models of text only")
    others = set(getattr(config, "layer_types", None) or ()) - _LAYERS
    unforked = why_no_forks(model)
    if unforked or ((others or getattr(model, "_is_stateful", False)) and not carriers_of(model)):
        what = unforked or (f"{sorted(others)} layers" if others else "layers with a state")
        raise ValueError(f"{name} has {what}, which carry one answer into the next; train it without shared {prefix}s")


def check_dropout(model: Any) -> None:
    """Raises ValueError for a model that drops something, whose layers would not give an answer the same bits twice."""
    for name, module in model.named_modules():
        attention = getattr(module, "attention_dropout", 0.0)
        dropped = module.p if isinstance(module, torch.nn.Dropout) else attention
        if isinstance(dropped, float) and dropped > 0:
            raise ValueError(
                f"{name} of {type(model).__name__} drops with a probability of {dropped}, beside invariant=True: a "
                "prompt's decisions would be drawn once for all of its answers, and anew in every call; set dropout to "
                "0, by disable_dropout=True where it is a layer's"
            )


def unit_of_bits(model: Any, device: torch.device) -> int:
    """Returns the tokens in whose multiples answers share a prompt and end, for the bits of each answer alone.

    Tiles of attention begin there in any batch: 128, but 192 for heads of up to 64 dims on a Hopper GPU, and 384 for
    heads of 192.
    """
    config = model.config.get_text_config()
    dims = {each.head_dim for each in model.modules() if isinstance(getattr(each, "head_dim", None), int)}
    dtype = next(model.parameters()).dtype
    if device.type == "cuda" and dtype == torch.float32:
        dtype = torch.bfloat16  # in which autocast computes
    units = []
    for dim in dims or {config.hidden_size // config.num_attention_heads}:
        tokens = torch.empty(1, 256, 1, dim, dtype=dtype, device=device)
        tile = plan(masks.causal(256, 256), tokens, tokens, tokens, invariant=True).explain()
        units.append(math.lcm(tile.tile_rows, tile.tile_columns))
    unit = math.lcm(*units)
    return 128 if 128 % unit == 0 else unit


def warn_of_cut_groups(trainer: Any, stacklevel: int) -> None:
    """Warns where micro-batches cut groups of answers; `stacklevel` counts from the caller of this, as for warn()."""
    size, group = trainer.args.per_device_train_batch_size, trainer.num_generations
    if size % group:
        warnings.warn(
            f"a group of {group} answers is cut over micro-batches of {size}, each of which computes its prompt; set "
            "per_device_train_batch_size to a multiple of num_generations",
            stacklevel=stacklevel + 1,
        )


def refuse_images(images: dict[str, Any]) -> None:
    """Raises ValueError for what comes with images, by name."""
    given = {name: each for name, each in images.items() if each is not None}
    if given:
        name = "pixel_values" if "pixel_values" in given else next(iter(given))
        raise ValueError(
            f"{name} came with {len(given[name])} rows: prompts with images are not shared yet; use the trainer "
            "without share_prompts()"
        )
