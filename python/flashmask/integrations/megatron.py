# SPDX-License-Identifier: Apache-2.0
"""Megatron-LM: a core_attention for its layers, with packed documents (thd) and context parallelism.

    spec = get_gpt_layer_local_spec()
    spec.submodules.self_attention.submodules.core_attention = FlashMaskCoreAttention

Ranks of context parallelism hold what Megatron gives them: of each document, padded to a multiple of twice the ranks,
chunk r and chunk 2 ranks - 1 - r. Each fetches the keys that its rows see. Nothing is cast.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import flashmask
import flashmask.distributed as fmd
from flashmask import Mask, masks
from flashmask.integrations._host import Host

_HOST = Host("megatron-core", ("0.16",))
_HOST.check()
_MegatronModule: Any = _HOST.part("megatron.core.transformer.module", "MegatronModule")
_AttnMaskType: Any = _HOST.part("megatron.core.transformer.enums", "AttnMaskType")
_Groups: Any = _HOST.part("megatron.core.process_groups_config", "ProcessGroupCollection")
_CAUSAL = {_AttnMaskType.causal: True, _AttnMaskType.padding_causal: True, _AttnMaskType.no_mask: False}


class FlashMaskCoreAttention(_MegatronModule):  # type: ignore[misc]
    """Megatron's core_attention by FlashMask: causal or bidirectional, within a window, over packed documents."""

    def __init__(
        self,
        config: Any,
        layer_number: int,
        attn_mask_type: Any,
        attention_type: str,
        attention_dropout: float | None = None,
        softmax_scale: float | None = None,
        cp_comm_type: str | None = None,
        pg_collection: Any = None,
    ) -> None:
        """The arguments of Megatron's DotProductAttention. `cp_comm_type` is ignored: what is sent follows the mask.

        Raises NotImplementedError for settings of `config` that FlashMask would leave out.
        """
        super().__init__(config=config)
        if getattr(config, "softmax_type", "vanilla") != "vanilla":
            raise NotImplementedError(
                f"softmax_type is {config.softmax_type!r}; FlashMaskCoreAttention takes 'vanilla'"
            )
        self.dropout = config.attention_dropout if attention_dropout is None else attention_dropout
        self.scale, self.mask_type = softmax_scale, attn_mask_type
        self.window = _window_of(config, layer_number)
        groups = pg_collection or _Groups.use_mpu_process_groups(required_pgs=["cp"])
        self.group = groups.cp if config.context_parallel_size > 1 else None
        self._unpacked: dict[Any, fmd.Sharding] = {}

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        attn_mask_type: Any = None,
        attention_bias: Tensor | None = None,
        packed_seq_params: Any = None,
    ) -> Tensor:
        """Computes attention of [s, b, heads, dim], or of [tokens, heads, dim] under packed_seq_params of "thd".

        Returns [s, b, heads * dim], or [tokens, heads, dim]. Raises ValueError for arguments that it would ignore.
        """
        mask_type = self.mask_type if attn_mask_type is None else attn_mask_type
        if mask_type not in _CAUSAL or attention_bias is not None:
            raise ValueError(
                f"attn_mask_type is {mask_type}, attention_bias {'None' if attention_bias is None else 'given'}; "
                "FlashMaskCoreAttention takes causal and no_mask without a bias: pack documents, with packed_seq_params"
            )
        causal = _CAUSAL[mask_type]
        if packed_seq_params is None:
            q, k, v = (each.transpose(0, 1) for each in (query, key, value))
            o = self._whole(q, k, v, causal) if self.group is None else self._spread(q, k, v, causal, self.group)
            return o.transpose(0, 1).flatten(2)
        if packed_seq_params.qkv_format != "thd":
            raise ValueError(f"qkv_format is {packed_seq_params.qkv_format!r}; expected 'thd'")
        if self.group is None and packed_seq_params.cp_group is None:
            return self._packed(query, key, value, causal, packed_seq_params)
        return self._packed_and_spread(query, key, value, causal, packed_seq_params)

    def _dropout(self) -> float:
        return float(self.dropout) if self.training else 0.0

    def _whole(self, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
        options: dict[str, Any] = {"causal": causal, "dropout": self._dropout(), "softmax_scale": self.scale}
        if self.window is not None:
            options["window_size"] = self.window
        o: Tensor = flashmask.flashmask_attention(q, k, v, **options)
        return o

    def _spread(self, q: Tensor, k: Tensor, v: Tensor, causal: bool, group: Any) -> Tensor:
        tokens = q.shape[1] * group.size()
        key = tokens, causal, q.shape[2:], k.shape[2]
        sharding = self._unpacked.get(key)
        if sharding is None:
            mask = _documents([tokens], causal, self.window)
            sharding = self._unpacked[key] = _sharding(mask, [tokens], group, q, k)
        return self._over_ranks(q, k, v, sharding)

    def _packed(self, q: Tensor, k: Tensor, v: Tensor, causal: bool, packed: Any) -> Tensor:
        ends = _ends_with_padding(packed)
        o: Tensor = flashmask.varlen_attention(
            *(q, k, v, ends, ends),
            dropout_p=self._dropout(),
            softmax_scale=self.scale,
            causal=causal,
            window_size=self.window or (-1, -1),
            deterministic=self.config.deterministic_mode,
        )
        return o

    def _packed_and_spread(self, q: Tensor, k: Tensor, v: Tensor, causal: bool, packed: Any) -> Tensor:
        group = packed.cp_group or self.group
        made = packed.__dict__.setdefault("_flashmask_shardings", {})  # one for all layers of a step
        key = causal, self.window, q.shape[1:], k.shape[1]
        if key not in made:
            padded = _ends_of(packed)[1].diff().tolist()
            mask = _documents(_ends_with_padding(packed).diff().tolist(), causal, self.window)
            made[key] = _sharding(mask, padded, group, q[None], k[None])
        return self._over_ranks(q[None], k[None], v[None], made[key])[0]

    def _over_ranks(self, q: Tensor, k: Tensor, v: Tensor, sharding: fmd.Sharding) -> Tensor:
        if self._dropout():
            raise NotImplementedError(
                f"attention_dropout is {self.dropout} with context parallelism, where Megatron's chunks do not begin "
                "at tiles; set it to 0"
            )
        o: Tensor = fmd.attention(q, k, v, sharding, scale=self.scale)
        return o


def _window_of(config: Any, layer_number: int) -> tuple[int, int] | None:
    """Returns the window of a layer, as Megatron chooses it."""
    window, skips = getattr(config, "window_size", None), getattr(config, "window_attn_skip_freq", None)
    if window is None:
        return None
    full = skips is not None and (
        layer_number % skips == 0 if isinstance(skips, int) else not bool(skips[layer_number - 1])
    )
    return None if full else (int(window[0]), int(window[1]))


def _ends_of(packed: Any) -> tuple[Tensor, Tensor]:
    """Returns the ends of documents without and with their padding, [documents + 1] each, from 0."""
    ends = packed.cu_seqlens_q
    return ends, ends if packed.cu_seqlens_q_padded is None else packed.cu_seqlens_q_padded


def _ends_with_padding(packed: Any) -> Tensor:
    """Returns the ends of documents and of the padding behind each, which then is a document of its own."""
    ends, padded = _ends_of(packed)
    if ends is padded:
        return ends
    begins = padded[:-1]
    return torch.cat([torch.stack([begins, begins + ends.diff()], 1).flatten(), padded[-1:]])


def _documents(lengths: list[int], causal: bool, window: tuple[int, int] | None) -> Mask:
    tokens = sum(lengths)
    documents = masks.causal_document(lengths, tokens) if causal else masks.document(lengths, tokens)
    if window is None:
        return documents
    left, right = (None if side < 0 else side for side in window)
    return documents & masks.window(tokens, tokens, left, 0 if causal else right)


def _sharding(mask: Mask, padded: list[int], group: Any, q: Tensor, k: Tensor) -> fmd.Sharding:
    """Returns the sharding of the tokens as Megatron spreads documents of these padded lengths; a collective."""
    ranks, tokens = group.size(), sum(padded)
    runs, begin = [], 0
    for length in padded:
        if length % (2 * ranks):
            raise ValueError(
                f"a document takes {length} tokens; with context parallelism over {ranks} ranks expected a multiple of "
                f"{2 * ranks}: pad it, and pass cu_seqlens_q_padded"
            )
        chunk = length // (2 * ranks)
        for piece in range(2 * ranks if chunk else 0):
            owner = min(piece, 2 * ranks - 1 - piece)
            runs.append((begin + piece * chunk, begin + (piece + 1) * chunk, owner))
        begin += length
    return fmd.shard(
        mask,
        group,
        query_heads=q.shape[2],
        kv_heads=k.shape[2],
        head_dim=q.shape[3],
        scheme="rows",
        partition=fmd.Partition.from_runs(tokens, ranks, runs),
    )
