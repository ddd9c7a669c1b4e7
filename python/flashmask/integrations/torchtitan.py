# SPDX-License-Identifier: Apache-2.0
"""torchtitan: an attention module that replaces its VarlenAttention, and the override that installs it.

    torchtitan ... --override.imports flashmask.integrations.torchtitan.flashmask_attention

for a model whose attn_backend is "varlen". torchtitan passes documents as it does to its own module. With context
parallelism, which torchtitan refuses for its own module before it reads overrides, apply the override where the config
is made (docs/trainers.md). Nothing is cast: bfloat16, float16 and, on a CPU, float32 are computed in the dtype given.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

import flashmask
import flashmask.distributed as fmd
from flashmask.integrations._host import Host
from flashmask.integrations._torchtitan_cp import ShardedDocuments, install

_HOST = Host("torchtitan", ("0.3",))
_HOST.check()
_ATTENTION = "torchtitan.models.common.attention"
_VarlenAttention: Any = _HOST.part(_ATTENTION, "VarlenAttention")
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
        self.is_spread = False  # True: over the ranks of context parallelism, whose masks are ShardedDocuments

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
        with context parallelism ShardedDocuments, and q, k and v are those of the tokens that this rank holds.

        q_BLNH [B, L, Hq, D], k_BLNH [B, L, Hkv, D], v_BLNH [B, L, Hkv, Dv]; returns o [B, L, Hq, Dv], or
        out_transform(o, lse) with lse [B, L, Hq]. Raises ValueError for masks or options of other modules.
        """
        for name, value in others.items():
            if name not in _WITHOUT_MEANING and value is not None:
                raise ValueError(f"{name} came to FlashMaskAttention, which does not know it, and would leave it out")
        if isinstance(attention_masks, ShardedDocuments):
            sharding = attention_masks.sharding(self.window_size, q_BLNH, k_BLNH)
            o, lse = fmd.attention(q_BLNH, k_BLNH, v_BLNH, sharding, scale=scale, return_lse=True)
            return o if out_transform is None else out_transform(o, lse.mT)
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


install(FlashMaskAttention, _VarlenAttention, _VarlenMetadata)


@_override(target=_VarlenAttention.Config, exact=True, description="FlashMask's kernels under VarlenAttention's masks")  # type: ignore[untyped-decorator]
def flashmask_attention(config: Any) -> Any:
    """Replaces each VarlenAttention of a model by a FlashMaskAttention with the same window."""
    return _derive(config, FlashMaskAttention.Config)
