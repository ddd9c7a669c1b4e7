# SPDX-License-Identifier: Apache-2.0
"""ALiBi over ranks: distances are those of the whole sequence, wherever a rank's rows and columns lie in it."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from flashmask._plans.call import Call
from flashmask.distributed._exchange import Exchange
from flashmask.distributed._group import Group
from flashmask.distributed._local import Local
from flashmask.distributed._runs import Runs

MOST_TOKENS = 2**24
"""Length of a sequence up to which kernels hold all positions exactly, in float32."""


def fetch_keys(
    group: Group, columns: Exchange, k: Tensor, v: Tensor, call: Call, *, apart: bool = False
) -> tuple[Tensor, Tensor, Call]:
    """Returns the keys and values that a rank computes with, and the call with the positions of these keys."""
    if call.key_positions is None:
        whole_k, whole_v = columns.fetch(group, [k, v], apart=apart)
        return whole_k, whole_v, call
    whole_k, whole_v, positions = columns.fetch(group, [k, v, call.key_positions], apart=apart)
    return whole_k, whole_v, call._replace(key_positions=positions)


def with_own_positions(call: Call, local: Local, device: torch.device, *, owners: bool = False) -> Call:
    """Returns a call with ALiBi with the positions of the rank's rows and columns, unless it has some.

    `owners`: of the part with which a rank computes the gradients of its own keys.
    """
    if call.bias_kind != "alibi" or call.query_positions is not None:
        return call
    exchange = local.owners_rows if owners else local.columns
    assert exchange is not None
    own, others = (_of_runs(local, runs, device) for runs in (local.runs[local.rank], exchange.runs))
    rows, columns = (others, own) if owners else (own, others)
    return call._replace(query_positions=rows, key_positions=columns)


def _of_runs(local: Local, runs: Runs, device: torch.device) -> Tensor:
    """Returns float32 [1, tokens], the place of each token in the sequence."""
    key = tuple(map(tuple, runs)), device
    found = local.positions.get(key)
    if found is None:
        numbers = [np.arange(begin, end, dtype=np.float32) for begin, end in runs]
        whole = np.concatenate(numbers) if numbers else np.empty(0, np.float32)
        found = local.positions[key] = torch.from_numpy(whole)[None].to(device)
    return found
