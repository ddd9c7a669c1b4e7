# SPDX-License-Identifier: Apache-2.0
"""torchtitan's context parallelism for FlashMaskAttention, which torchtitan itself refuses for VarlenAttention.

torchtitan cuts a batch over the ranks of its mesh "cp" in cp_shard(), and gives each inner attention the mesh in
apply_cp_to_forward(). Both get a case for the masks and the module of this package, and stay what they are for others.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from torch import Tensor

import flashmask.distributed as fmd
from flashmask import Mask, masks

_PARTITIONS = {"headtail": "zigzag", "ptrr": "balanced", None: "contiguous"}
"""torchtitan's load balancers, and the partition that stands for each."""


class ShardedDocuments:
    """The attention_masks of one batch on one rank: the documents of whole sequences, and who holds which tokens."""

    def __init__(self, cu_seqlens: Tensor, batch: int, tokens: int, group: Any, partition: str) -> None:
        self._lengths = _lengths(cu_seqlens.tolist(), batch, tokens)
        self._tokens, self._group = tokens, group
        self._shardings: dict[tuple[Any, ...], fmd.Sharding] = {}
        # Which tokens a rank holds must be known before the heads of a layer are: one head stands for all here.
        self._first = self._made((-1, 0), 1, 1, 128, partition)

    def _made(self, window: tuple[int, int], heads: int, kv_heads: int, dim: int, partition: Any) -> fmd.Sharding:
        return fmd.shard(
            self._mask(window),
            self._group,
            query_heads=heads,
            kv_heads=kv_heads,
            head_dim=dim,
            scheme="rows",
            partition=partition,
        )

    def _mask(self, window: tuple[int, int]) -> Mask:
        return masks.stack_batch([_within(lengths, self._tokens, window) for lengths in self._lengths])

    def shard(self, tensor: Tensor, dim: int) -> Tensor:
        """Selects this rank's tokens."""
        part: Tensor = self._first.shard(tensor, dim=dim)
        return part

    def sharding(self, window: tuple[int, int], q: Tensor, k: Tensor) -> fmd.Sharding:
        """Returns the sharding of layers with this window and these heads; the first such layer makes it, on all
        ranks."""
        key = window, q.shape[2], k.shape[2], q.shape[3]
        found = self._shardings.get(key)
        if found is None:
            found = self._shardings[key] = self._made(*key, self._first.partition)
        return found


def _lengths(ends: Sequence[int], batch: int, tokens: int) -> list[list[int]]:
    """Returns the documents' lengths of each sequence, from their ends in all sequences one after another."""
    cuts = sorted({*ends, *range(0, batch * tokens + 1, tokens)})
    found: list[list[int]] = [[] for _ in range(batch)]
    for begin, end in pairwise(cuts):
        found[begin // tokens].append(end - begin)
    return found


def _within(lengths: Sequence[int], tokens: int, window: tuple[int, int]) -> Mask:
    """Returns documents within a window (tokens before, tokens after), -1 for no limit."""
    left, right = (None if side < 0 else side for side in window)
    documents = masks.causal_document(lengths, tokens) if right == 0 else masks.document(lengths, tokens)
    if left is None and not right:
        return documents
    return documents & masks.window(tokens, tokens, left, right)


_REFUSING = ("torchtitan.models.llama3.model", "torchtitan.models.qwen3.model")
"""Modules whose configs refuse VarlenAttention with context parallelism, which they know by that name."""


def install(module_type: Any, varlen_type: Any, metadata_type: type) -> None:
    """Lets torchtitan's functions serve modules of `module_type`, a VarlenAttention, with masks of `metadata_type`."""
    api = importlib.import_module("torchtitan.distributed.context_parallel.api")
    models = [importlib.import_module(name) for name in _REFUSING]
    replaced = {
        "apply_cp_to_forward": _around_apply(api.apply_cp_to_forward, module_type),
        "cp_shard": _around_shard(api.cp_shard, metadata_type),
    }
    for name, ours in replaced.items():
        original = getattr(api, name)
        # Models, the trainer and programs have imported the function by its name, or will, from the package.
        for module in list(sys.modules.values()):
            if getattr(module, "__dict__", {}).get(name) is original:
                setattr(module, name, ours)
    for module in models:
        module.VarlenAttention = _others_than(module_type, varlen_type)  # type: ignore[attr-defined]


def _others_than(module_type: Any, varlen_type: Any) -> type:
    """Returns what stands for VarlenAttention where its configs are refused: those of this package are not its."""

    class Refused(type):
        def __instancecheck__(cls, config: object) -> bool:
            return isinstance(config, varlen_type.Config) and not isinstance(config, module_type.Config)

    return type("VarlenAttention", (), {"Config": Refused("Config", (), {})})


def _around_apply(original: Callable[..., None], module_type: type) -> Callable[..., None]:
    def apply_cp_to_forward(attention_modules: Sequence[Any], cp_mesh: Any) -> None:
        if not isinstance(attention_modules[0], module_type):
            original(attention_modules, cp_mesh)
            return
        for module in attention_modules:
            module.is_spread = True

    return apply_cp_to_forward


def _around_shard(original: Callable[..., Any], metadata_type: type) -> Callable[..., Any]:
    def cp_shard(
        cp_mesh: Any,
        inputs: tuple[Tensor, ...],
        attention_masks: Any,
        load_balancer_type: str | None = "headtail",
        input_seq_dim: int = 1,
        ptrr_mask_key: str | None = None,
    ) -> tuple[tuple[Tensor, ...], Any]:
        given = attention_masks if isinstance(attention_masks, Mapping) else {"": attention_masks}
        documents = [each for each in given.values() if each is not None]
        if not documents or not all(isinstance(each, metadata_type) for each in documents):
            theirs: tuple[tuple[Tensor, ...], Any] = original(
                *(cp_mesh, inputs, attention_masks, load_balancer_type, input_seq_dim), ptrr_mask_key=ptrr_mask_key
            )
            return theirs
        if load_balancer_type not in _PARTITIONS:
            raise ValueError(f"the load balancer is {load_balancer_type!r}; expected 'headtail', 'ptrr' or None")
        batch, tokens = inputs[0].shape[0], inputs[0].shape[input_seq_dim]
        kind = _PARTITIONS[load_balancer_type]
        made: dict[int, ShardedDocuments] = {}  # of each tensor of ends once: masks of a batch have the same documents
        for each in documents:
            if id(each.cu_seq_q) not in made:
                made[id(each.cu_seq_q)] = ShardedDocuments(each.cu_seq_q, batch, tokens, cp_mesh.get_group(), kind)
        first = next(iter(made.values()))
        parts = tuple(first.shard(each, input_seq_dim) for each in inputs)
        found = {name: None if each is None else made[id(each.cu_seq_q)] for name, each in given.items()}
        return parts, found if isinstance(attention_masks, Mapping) else found[""]

    return cp_shard
