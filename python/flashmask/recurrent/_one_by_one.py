# SPDX-License-Identifier: Apache-2.0
"""one_by_one: makes a recurrence of one sequence one of packed sequences."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from flashmask._torch.shared import shared
from flashmask.recurrent._states import changed


def one_by_one(run: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a recurrence that takes one sequence, so that flashmask.recurrent.over_nodes can call it.

    run: takes tensors (1, length, ...), initial_state (None, or a state of a batch of one) and output_final_state, and
        returns (output, state), as the PyTorch paths of Transformers' hybrid models do. Called once per sequence, with
        whatever other keywords the packed one is called with.
    """

    def packed(
        *inputs: Any, cu_seqlens: Any, initial_state: Any, output_final_state: bool, **others: Any
    ) -> tuple[Any, Any]:
        cuts = shared(Tensor.tolist, (cu_seqlens,))  # the host waits once for a mask, not in each layer
        outputs, states = [], []
        for number, (begin, end) in enumerate(pairwise(cuts)):
            given = [None if each is None else each[:, begin:end] for each in inputs]
            first = changed(lambda state, at=number: state[at : at + 1], initial_state)
            output, state = run(*given, initial_state=first, output_final_state=output_final_state, **others)
            outputs.append(output)
            states.append(state)
        final = changed(lambda *parts: torch.cat(parts), *states) if output_final_state else None
        return torch.cat(outputs, 1), final

    return packed
