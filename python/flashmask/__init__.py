"""FlashMask: exact attention under rich masks, forward and backward."""

import sys as _sys

from flashmask import masks
from flashmask._library import version as _version
from flashmask._mask import Mask, MaskShape
from flashmask._rows import RowIndices

__version__ = _version()
__all__ = ["Mask", "MaskShape", "RowIndices", "__version__", "masks"]

if "torch" in _sys.modules:
    from flashmask._pytree import register as _register

    _register()
