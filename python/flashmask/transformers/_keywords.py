# SPDX-License-Identifier: Apache-2.0
"""Other keywords that reach attention: those that would change the result are refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

_REFUSED = {
    "head_mask": "a mask of whole heads",
    "cache": "a paged cache (continuous batching)",
    "read_index": "a paged cache (continuous batching)",
}
_WITHOUT_A_MEANING = {
    "cache_position",  # cache slots of the queries: the mask says what they see
    "cu_seqlens",  # the documents again, for layers other than attention
    "input_ids",
    "labels",
    "logits_to_keep",
    "max_length_k",
    "max_length_q",
    "num_items_in_batch",  # for the loss
    "seq_idx",  # the documents again, for layers other than attention
    "shift_labels",  # for the loss
}
"""Tensors that models and trainers pass on to every layer, and that attention does not depend on."""


def refuse_keywords(others: Mapping[str, Any]) -> None:
    """Raises ValueError for keywords that attention would have to ignore."""
    for name, meaning in _REFUSED.items():  # first, since these messages are the most specific
        if others.get(name) is not None:
            raise ValueError(
                f"{name} came to flashmask's attention: {meaning} is not supported, and leaving it out would "
                'change the result; use another attn_implementation for this model, such as "eager"'
            )
    for name, value in others.items():
        if isinstance(value, Tensor) and name not in _WITHOUT_A_MEANING:
            raise ValueError(
                f"{name} came to flashmask's attention, a tensor {list(value.shape)} of {value.dtype} that it does not "
                'know, and leaving it out may change the result; use another attn_implementation, such as "eager", or, '
                "if it is a column of your batch, take it out before the model is called"
            )
    if others.get("output_attentions"):
        raise ValueError('output_attentions=True: flashmask never forms the weights; use attn_implementation="eager"')
