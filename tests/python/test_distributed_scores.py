# SPDX-License-Identifier: Apache-2.0
"""Softcap and ALiBi in flashmask.distributed, over processes with Gloo: one spawn for distributed_scores_cases.py."""

import pytest
from ranks import run_ranks

RANKS = 4


@pytest.mark.slow
def test_cases_on_all_ranks(tmp_path):
    codes, logs, failures = run_ranks("distributed_scores_cases", RANKS, tmp_path)
    assert not failures, "\n".join(failures)
    assert codes == [0] * RANKS, "\n".join(logs)
