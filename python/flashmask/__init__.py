"""FlashMask: exact attention under rich masks, forward and backward."""

import sys as _sys

from flashmask import block_maps, masks
from flashmask._block_map import BlockMap
from flashmask._explain import Explanation
from flashmask._library import version as _version
from flashmask._mask import Mask, MaskShape
from flashmask._reordering import Reordering
from flashmask._rows import RowIndices

__version__ = _version()
__all__ = [
    "BlockMap",
    "Explanation",
    "Mask",
    "MaskShape",
    "Reordering",
    "RowIndices",
    "__version__",
    "block_maps",
    "masks",
]

if "torch" in _sys.modules:
    from flashmask._pytree import register as _register

    _register()
