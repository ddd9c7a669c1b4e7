# SPDX-License-Identifier: Apache-2.0
"""torchtitan's context parallelism for the modules of this package.

torchtitan cuts a batch over the ranks of its mesh "cp" in cp_shard(), and gives each inner attention the mesh in
apply_cp_to_forward(). Both get a case for the masks and the modules of this package, and stay what they are for others:
refused for VarlenAttention; for FlexAttention, every rank gathers all keys.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from torch import Tensor

import flashmask.distributed as fmd
from flashmask import Mask, masks
from flashmask.integrations._torchtitan_masks import of_block_mask, replace_everywhere, within

CAUSAL = (-1, 0)
"""The window of a causal mask, and what layers pass that have none of their own."""
_PARTITIONS = {"headtail": "zigzag", "ptrr": "balanced", None: "contiguous"}
"""torchtitan's load balancers, and the partition that stands for each."""


class ShardedMask:
    """The attention_masks of one batch on one rank: the mask of whole sequences, and who holds which tokens."""

    def __init__(self, of_window: Callable[[tuple[int, int]], Mask], group: Any, partition: Any) -> None:
        """`of_window` returns the mask of layers with a window; `partition`: a kind, or that of another ShardedMask."""
        self._of_window, self._group = of_window, group
        self._shardings: dict[tuple[Any, ...], fmd.Sharding] = {}
        # Which tokens a rank holds must be known before the heads of a layer are: one head stands for all here.
        self._first = self._made(CAUSAL, 1, 1, 128, partition)

    def _made(self, window: tuple[int, int], heads: int, kv_heads: int, dim: int, partition: Any) -> fmd.Sharding:
        return fmd.shard(
            self._of_window(window),
            self._group,
            query_heads=heads,
            kv_heads=kv_heads,
            head_dim=dim,
            scheme="rows",
            partition=partition,
        )

    @property
    def partition(self) -> Any:
        """Which tokens each rank holds."""
        return self._first.partition

    def shard(self, tensor: Tensor, dim: int) -> Tensor:
        """Selects this rank's tokens."""
        part: Tensor = self._first.shard(tensor, dim=dim)
        return part

    def attention(
        self, q: Tensor, k: Tensor, v: Tensor, window: tuple[int, int], scale: float | None
    ) -> tuple[Tensor, Tensor]:
        """Computes o and lse [B, L, Hq] of this rank's tokens, in a layer with this window."""
        key = window, q.shape[2], k.shape[2], q.shape[3]
        sharding = self._shardings.get(key)
        if sharding is None:  # the first layer with these heads makes it, on all ranks
            sharding = self._shardings[key] = self._made(*key, self.partition)
        o, lse = fmd.attention(q, k, v, sharding, scale=scale, return_lse=True)
        return o, lse.mT


def _of_documents(cu_seqlens: Tensor, batch: int, tokens: int) -> Callable[[tuple[int, int]], Mask]:
    """Returns the mask of documents within a window, given their ends in all sequences one after another."""
    cuts = sorted({*cu_seqlens.tolist(), *range(0, batch * tokens + 1, tokens)})
    lengths: list[list[int]] = [[] for _ in range(batch)]
    for begin, end in pairwise(cuts):
        lengths[begin // tokens].append(end - begin)
    return lambda window: masks.stack_batch([within(each, tokens, window) for each in lengths])


_REFUSING = ("torchtitan.models.llama3.model", "torchtitan.models.qwen3.model")
"""Modules whose configs refuse VarlenAttention with context parallelism, which they know by that name."""


def install(varlen: Any, flex: Any, varlen_type: Any, metadata_type: Any, block_mask_type: Any) -> None:
    """Lets torchtitan's functions serve modules `varlen`, a VarlenAttention, and `flex`, with their masks."""
    api = importlib.import_module("torchtitan.distributed.context_parallel.api")
    models = [importlib.import_module(name) for name in _REFUSING]
    spread: set[Any] = set()  # groups over which modules `flex` compute
    apply = _around_apply(api.apply_cp_to_forward, (varlen, flex), flex, spread)
    replace_everywhere(api.apply_cp_to_forward, apply)
    replace_everywhere(api.cp_shard, _around_shard(api.cp_shard, metadata_type, block_mask_type, spread))
    for module in models:
        module.VarlenAttention = _others_than(varlen, varlen_type)  # type: ignore[attr-defined]


def _others_than(module_type: Any, varlen_type: Any) -> type:
    """Returns what stands for VarlenAttention where its configs are refused: those of this package are not its."""

    class Refused(type):
        def __instancecheck__(cls, config: object) -> bool:
            return isinstance(config, varlen_type.Config) and not isinstance(config, module_type.Config)

    return type("VarlenAttention", (), {"Config": Refused("Config", (), {})})


def _around_apply(
    original: Callable[..., None], ours: tuple[type, ...], flex: type, spread: set[Any]
) -> Callable[..., None]:
    def apply_cp_to_forward(attention_modules: Sequence[Any], cp_mesh: Any) -> None:
        if not isinstance(attention_modules[0], ours):
            original(attention_modules, cp_mesh)
            return
        for module in attention_modules:
            module.is_spread = True
            if isinstance(module, flex):
                spread.add(cp_mesh.get_group())

    return apply_cp_to_forward


def _around_shard(
    original: Callable[..., Any], metadata_type: Any, block_mask_type: Any, spread: set[Any]
) -> Callable[..., Any]:
    def cp_shard(
        cp_mesh: Any,
        inputs: tuple[Tensor, ...],
        attention_masks: Any,
        load_balancer_type: str | None = "headtail",
        input_seq_dim: int = 1,
        ptrr_mask_key: str | None = None,
    ) -> tuple[tuple[Tensor, ...], Any]:
        given = attention_masks if isinstance(attention_masks, Mapping) else {"": attention_masks}
        kinds = {type(each) for each in given.values() if each is not None}
        if kinds != {metadata_type} and (kinds != {block_mask_type} or cp_mesh.get_group() not in spread):
            theirs: tuple[tuple[Tensor, ...], Any] = original(
                *(cp_mesh, inputs, attention_masks, load_balancer_type, input_seq_dim), ptrr_mask_key=ptrr_mask_key
            )
            return theirs
        if load_balancer_type not in _PARTITIONS:
            raise ValueError(f"the load balancer is {load_balancer_type!r}; expected 'headtail', 'ptrr' or None")
        partition: Any = _PARTITIONS[load_balancer_type]
        batch, tokens = inputs[0].shape[0], inputs[0].shape[input_seq_dim]
        made: dict[int, ShardedMask] = {}
        # The first of all masks, or that which is asked for, decides which tokens a rank holds.
        every = [each for each in given.values() if each is not None]
        for each in sorted(every, key=lambda each: each is not given.get(ptrr_mask_key or "")):
            key = _identity(each)
            if key not in made:
                made[key] = ShardedMask(_of_window(each, batch, tokens), cp_mesh.get_group(), partition)
                partition = made[key].partition
        first = next(iter(made.values()))
        parts = tuple(first.shard(each, input_seq_dim) for each in inputs)
        found = {name: None if each is None else made[_identity(each)] for name, each in given.items()}
        return parts, found if isinstance(attention_masks, Mapping) else found[""]

    def _identity(given: Any) -> int:
        """Equal for masks of a batch that have the same documents."""
        return id(given.cu_seq_q if isinstance(given, metadata_type) else given)

    def _of_window(given: Any, batch: int, tokens: int) -> Callable[[tuple[int, int]], Mask]:
        if isinstance(given, metadata_type):
            return _of_documents(given.cu_seq_q, batch, tokens)
        mask = of_block_mask(given)
        return lambda _: mask

    return cp_shard
