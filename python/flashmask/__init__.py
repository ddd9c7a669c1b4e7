"""FlashMask: exact attention under rich masks, forward and backward."""

from flashmask._library import version as _version
from flashmask._mask import Mask, MaskShape

__version__ = _version()
__all__ = ["Mask", "MaskShape", "__version__"]
