# SPDX-License-Identifier: Apache-2.0
"""Log-probabilities in place of logits, out of a model's own call."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor

from flashmask.training import linear_log_probs


def log_probs_of_call(model: Any, called: Any, inputs: dict[str, Any], temperature: float) -> tuple[Tensor, Tensor]:
    """Calls a model for inputs that hold `shift_labels` int64 [1, T]; returns log-probabilities and entropies [1, T].

    `called` is `model` or what a trainer wrapped it in: the head computes within the call, where its weights are
    gathered. Logits never exist as a whole. Raises ValueError for a head that is not one linear layer, and for a model
    that changes logits after its head.
    """
    labels = inputs["shift_labels"]
    with _head_replaced(model, labels, temperature):
        given = {name: value for name, value in inputs.items() if name != "shift_labels"}
        found = called(**given).logits
    if found.shape != (*labels.shape, 3) or not bool((found[..., 2] == 1).all()):
        raise ValueError(
            f"{type(model).__name__} changes logits after its head, as a softcap or a scale of logits does; prompts "
            "are shared for models that do not: train without shared prompts"
        )
    return found[..., 0], found[..., 1]


@contextmanager
def _head_replaced(model: Any, labels: Tensor, temperature: float) -> Iterator[None]:
    """Has the head of a model return log-probabilities, entropies and ones, [1, T, 3]."""
    head = model.get_output_embeddings()
    if not isinstance(head, torch.nn.Linear):
        kind = f"{type(head).__module__}.{type(head).__name__}"
        raise ValueError(
            f"the head of {type(model).__name__} is a {kind}; prompts are shared for heads that are one "
            "torch.nn.Linear, without adapters: train without shared prompts"
        )
    before = vars(head).get("forward")

    def forward(hidden: Tensor) -> Tensor:
        found = linear_log_probs(hidden, head.weight, labels, bias=head.bias, temperature=temperature, entropies=True)
        return torch.stack([*found, torch.ones_like(found[0])], -1)

    replaced = cast(Any, head)
    replaced.forward = forward
    try:
        yield
    finally:
        if before is None:
            del replaced.forward
        else:
            replaced.forward = before
