# SPDX-License-Identifier: Apache-2.0
"""FlashMask: exact attention under rich masks, forward and backward."""

import importlib as _importlib
import sys as _sys
import typing as _typing

from flashmask import block_maps, masks, scores
from flashmask._abi.library import version as _version
from flashmask._attention import attention
from flashmask._block_map import BlockMap
from flashmask._decode import decode_attention
from flashmask._explain import Explanation
from flashmask._flash_attention import flash_attn_func, flash_attn_varlen_func
from flashmask._flex.attention import flex_attention
from flashmask._linear_attention import linear_attention
from flashmask._mask import Mask, MaskShape
from flashmask._merge import merge
from flashmask._nodes import Nodes, nodes
from flashmask._plans.plan import Plan, plan
from flashmask._reordering import Reordering
from flashmask._row_index_attention import flashmask_attention
from flashmask._rows import RowIndices
from flashmask._varlen import varlen_attention

__version__ = _version()
__all__ = [
    "BlockMap",
    "Explanation",
    "Mask",
    "MaskShape",
    "Nodes",
    "Plan",
    "Reordering",
    "RowIndices",
    "__version__",
    "attention",
    "block_maps",
    "decode_attention",
    "flash_attn_func",
    "flash_attn_varlen_func",
    "flashmask_attention",
    "flex_attention",
    "linear_attention",
    "masks",
    "merge",
    "nodes",
    "plan",
    "scores",
    "varlen_attention",
]

_LAZY = {"data", "distributed", "integrations", "jax", "operators", "recurrent", "training", "transformers", "trl"}

if "torch" in _sys.modules:
    from flashmask import operators as operators

if not _typing.TYPE_CHECKING:  # to which every name would be one of ours; where types are checked, import these modules

    def __getattr__(name):
        if name in _LAZY:
            return _importlib.import_module(f"flashmask.{name}")
        raise AttributeError(f"module 'flashmask' has no attribute {name!r}")
