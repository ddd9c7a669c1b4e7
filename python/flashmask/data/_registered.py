# SPDX-License-Identifier: Apache-2.0
"""A check that an attention is registered which reads the masks of shared questions and trees."""

from __future__ import annotations

import sys
import warnings


def warn_where_nobody_reads_masks() -> None:
    """Warns (Python shows it once) if Transformers is loaded without FlashMask.

    After register(), other attention implementations refuse these batches.
    """
    if "transformers" in sys.modules and "flashmask.transformers" not in sys.modules:
        warnings.warn(
            "the mask of this batch is in startend_row_indices, which other attention implementations of Transformers "
            "ignore without a word; call flashmask.transformers.register(), and make the model with "
            'attn_implementation="flashmask"',
            stacklevel=3,
        )
