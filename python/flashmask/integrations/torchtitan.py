# SPDX-License-Identifier: Apache-2.0
"""torchtitan: attention modules that replace its VarlenAttention and FlexAttention, and overrides that install them.

    torchtitan ... --override.imports flashmask.integrations.torchtitan.flashmask_attention
    torchtitan ... --override.imports flashmask.integrations.torchtitan.flashmask_flex_attention

for a model whose attn_backend is "varlen", or with FlexAttention. torchtitan passes documents and masks as it does to
its own modules. With context parallelism, which torchtitan refuses for VarlenAttention before it reads overrides, apply
the first where the config is made (docs/trainers.md). Nothing is cast: bfloat16, float16 and, on a CPU, float32 are
computed in the dtype given.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

import flashmask
from flashmask.integrations._host import Host
from flashmask.integrations._torchtitan_cp import CAUSAL, ShardedMask, install
from flashmask.integrations._torchtitan_masks import make_with_block_masks, of_block_mask

_HOST = Host("torchtitan", ("0.3",))
_HOST.check()
_ATTENTION = "torchtitan.models.common.attention"
_VarlenAttention: Any = _HOST.part(_ATTENTION, "VarlenAttention")
_FlexAttention: Any = _HOST.part(_ATTENTION, "FlexAttention")
_BlockMask: Any = _HOST.part(_ATTENTION, "BlockMask")
_VarlenMetadata: Any = _HOST.part(_ATTENTION, "VarlenMetadata")
_Module: Any = _HOST.part("torchtitan.protocols.module", "Module")
_override: Any = _HOST.part("torchtitan.config.override", "override")
_derive: Any = _HOST.part("torchtitan.config.override", "derive")

# Arguments that torchtitan passes besides those that forward() names, and that may be ignored.
_WITHOUT_MEANING = {"enable_gqa"}


class FlashMaskAttention(_VarlenAttention):  # type: ignore[misc]
    """An `inner_attention` for torchtitan's models; derived from VarlenAttention so that they make that one's masks."""

    @dataclass(kw_only=True, slots=True)
    class Config(_VarlenAttention.Config):  # type: ignore[misc]
        """window_size: how many keys before and after its own a token sees, -1 for no limit; (-1, 0) is causal."""

    def __init__(self, config: Config) -> None:
        _Module.__init__(self)  # VarlenAttention.__init__ would search for FlashAttention
        self.window_size = config.window_size
        self.is_spread = False  # True: over the ranks of context parallelism, whose masks are ShardedMasks

    def forward(
        self,
        q_BLNH: Tensor,
        k_BLNH: Tensor,
        v_BLNH: Tensor,
        *,
        attention_masks: Any,
        scale: float | None = None,
        out_transform: Callable[[Tensor, Tensor], Tensor] | None = None,
        **others: Any,
    ) -> Tensor:
        """Computes attention within the documents of attention_masks, a VarlenMetadata over the whole batch's tokens;
        with context parallelism a ShardedMask, and q, k and v are those of the tokens that this rank holds.

        q_BLNH [B, L, Hq, D], k_BLNH [B, L, Hkv, D], v_BLNH [B, L, Hkv, Dv]; returns o [B, L, Hq, Dv], or
        out_transform(o, lse) with lse [B, L, Hq]. Raises ValueError for masks or options of other modules.
        """
        _refuse(others, "FlashMaskAttention")
        if isinstance(attention_masks, ShardedMask):
            o, lse = attention_masks.attention(q_BLNH, k_BLNH, v_BLNH, self.window_size, scale)
            return o if out_transform is None else out_transform(o, lse)
        if not isinstance(attention_masks, _VarlenMetadata) or self.is_spread:
            raise ValueError(
                f"attention_masks is {type(attention_masks).__name__}; FlashMaskAttention takes a VarlenMetadata, "
                'which models of attn_backend="varlen" make, or with context parallelism what cp_shard() makes of it'
            )
        batch, length = q_BLNH.shape[:2]
        o, lse = flashmask.varlen_attention(
            q_BLNH.flatten(0, 1),
            k_BLNH.flatten(0, 1),
            v_BLNH.flatten(0, 1),
            attention_masks.cu_seq_q,
            attention_masks.cu_seq_k,
            softmax_scale=scale,
            window_size=self.window_size,
            return_lse=True,
        )
        out, of_rows = (each.view(batch, length, *each.shape[1:]) for each in (o, lse.mT))
        return out if out_transform is None else out_transform(out, of_rows)


class FlashMaskFlexAttention(_FlexAttention):  # type: ignore[misc]
    """An `inner_attention` for torchtitan's models; derived from FlexAttention so that they make that one's masks."""

    @dataclass(kw_only=True, slots=True)
    class Config(_FlexAttention.Config):  # type: ignore[misc]
        """block_size is that of the BlockMask, and decides nothing here; kernel_options are for Triton, and unused."""

    def __init__(self, config: Config) -> None:
        _Module.__init__(self)
        self.is_spread = False  # as in FlashMaskAttention
        make_with_block_masks()

    def forward(
        self,
        q_BLNH: Tensor,
        k_BLNH: Tensor,
        v_BLNH: Tensor,
        *,
        attention_masks: Any,
        scale: float | None = None,
        out_transform: Callable[[Tensor, Tensor], Tensor] | None = None,
        **others: Any,
    ) -> Tensor:
        """Computes attention under attention_masks, a BlockMask; with context parallelism a ShardedMask.

        Shapes and `out_transform` are those of FlashMaskAttention. Raises ValueError for other masks, and for a
        score_mod.
        """
        _refuse(others, "FlashMaskFlexAttention")
        if isinstance(attention_masks, ShardedMask):
            o, lse = attention_masks.attention(q_BLNH, k_BLNH, v_BLNH, CAUSAL, scale)
            return o if out_transform is None else out_transform(o, lse)
        if not isinstance(attention_masks, _BlockMask) or self.is_spread:
            raise ValueError(
                f"attention_masks is {type(attention_masks).__name__}; FlashMaskFlexAttention takes a BlockMask, which "
                "models with FlexAttention make, or with context parallelism what cp_shard() makes of it"
            )
        mask = of_block_mask(attention_masks)
        o, lse = flashmask.attention(q_BLNH, k_BLNH, v_BLNH, mask, scale=scale, return_lse=True)
        return o if out_transform is None else out_transform(o, lse.mT)


def _refuse(others: dict[str, Any], module: str) -> None:
    """Raises ValueError for an argument that would change the result."""
    for name, value in others.items():
        if name not in _WITHOUT_MEANING and value is not None:
            raise ValueError(f"{name} came to {module}, which does not know it, and would leave it out")


install(FlashMaskAttention, FlashMaskFlexAttention, _VarlenAttention, _VarlenMetadata, _BlockMask)


@_override(target=_VarlenAttention.Config, exact=True, description="FlashMask's kernels under VarlenAttention's masks")  # type: ignore[untyped-decorator]
def flashmask_attention(config: Any) -> Any:
    """Replaces each VarlenAttention of a model by a FlashMaskAttention with the same window."""
    return _derive(config, FlashMaskAttention.Config)


@_override(target=_FlexAttention.Config, exact=True, description="FlashMask's kernels under FlexAttention's masks")  # type: ignore[untyped-decorator]
def flashmask_flex_attention(config: Any) -> Any:
    """Replaces each FlexAttention of a model by a FlashMaskFlexAttention."""
    return _derive(config, FlashMaskFlexAttention.Config)
