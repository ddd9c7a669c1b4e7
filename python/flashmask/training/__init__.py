# SPDX-License-Identifier: Apache-2.0
"""Tools for training on long sequences, beside attention; each can be used alone.

    from flashmask.training import long_context

    with long_context(model, offload=True):
        model(**batch).loss.backward()

docs/training.md says what to use when.
"""

from flashmask.training._families import layer_parts
from flashmask.training._host_memory import HostMemory
from flashmask.training._layer import LayerParts, chunked_layer
from flashmask.training._long_context import LongContext, long_context
from flashmask.training._loss import answer_log_probs, linear_cross_entropy, linear_log_probs
from flashmask.training._memory import StepMemory
from flashmask.training._offload import Offload

__all__ = [
    "HostMemory",
    "LayerParts",
    "LongContext",
    "Offload",
    "StepMemory",
    "answer_log_probs",
    "chunked_layer",
    "layer_parts",
    "linear_cross_entropy",
    "linear_log_probs",
    "long_context",
]
