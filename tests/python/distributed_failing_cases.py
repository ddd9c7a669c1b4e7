# SPDX-License-Identifier: Apache-2.0
"""What test_distributed.py has ranks run that end by it: a call that is wrong on one of them."""

import torch
from distributed_cases import Case, make, refused

import flashmask.distributed as fmd
from flashmask import masks

RANKS, FAILING = 3, 1
END_TOGETHER = False


def a_rank_whose_call_is_wrong_ends_and_so_do_those_that_wait_for_it(group, rank):
    sharding = make(group, masks.causal(2048, 2048), tokens=None, scheme="rows")
    q = torch.randn(1, sharding._held, 4, 16)
    kv = q[:, :, :2]
    if rank == FAILING:
        fmd.attention(q[:, 1:], kv, kv, sharding)
    refused(RuntimeError, "Connection closed by peer", lambda: fmd.attention(q, kv, kv, sharding))


CASES = [Case("one fails", RANKS, a_rank_whose_call_is_wrong_ends_and_so_do_those_that_wait_for_it)]
