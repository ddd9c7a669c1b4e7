# SPDX-License-Identifier: Apache-2.0
"""FlashMask for JAX: exact attention under rich masks on CPUs and NVIDIA's GPUs. `pip install 'flashmask[jax]'`."""

from flashmask.jax._attention import attention
from flashmask.jax._documents import from_cu_seqlens, from_position_ids, from_segment_ids
from flashmask.jax._foreign import register as _register
from flashmask.jax._linear import linear_attention
from flashmask.jax._plan import Plan, plan
from flashmask.jax._rows import RowIndices

_register()
__all__ = [
    "Plan",
    "RowIndices",
    "attention",
    "from_cu_seqlens",
    "from_position_ids",
    "from_segment_ids",
    "linear_attention",
    "plan",
]
