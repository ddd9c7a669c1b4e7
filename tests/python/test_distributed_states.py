# SPDX-License-Identifier: Apache-2.0
"""Layers with a state over processes with Gloo: one spawn for distributed_states_cases.py, one for all families."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="spreads its tensors")
transformers = pytest.importorskip("transformers", reason="its models are most of the cases")

from docs_scripts import docs_script  # noqa: E402
from ranks import assert_cases_pass  # noqa: E402

import flashmask  # noqa: E402
from flashmask import masks  # noqa: E402
from flashmask.distributed._near import near_of  # noqa: E402

families = docs_script("transformers_families")
of_this_version = pytest.mark.skipif(
    transformers.__version__ != families.read()[0], reason="the table is about another Transformers"
)


@of_this_version
@pytest.mark.slow
def test_cases_on_all_ranks(tmp_path):
    assert_cases_pass("distributed_states_cases", 3, tmp_path)


@of_this_version
@pytest.mark.full
def test_all_families_on_all_ranks(tmp_path):
    assert_cases_pass("distributed_states_cases", 3, tmp_path, FLASHMASK_FAMILIES="all")


def test_a_rank_fetches_the_predecessors_that_it_does_not_hold():
    """Each answer follows the prompt's end; cut inside a document, a rank needs the width - 1 tokens before."""
    nodes = flashmask.nodes(masks.shared_question([(8, [4, 5]), (6, [])], 24))
    runs = [[(0, 6), (12, 15)], [(6, 12), (15, 24)]]
    near = near_of(nodes, runs, 0, 4)
    assert near.exchange.runs == [(0, 8), (12, 15)]  # 7, 6 and 5 before the second answer at 12
    assert near.held == [(0, 6), (8, 11)]
    assert near.nodes.predecessors.tolist() == [-1, *range(7), 7, 8, 9]
    other = near_of(nodes, runs, 1, 4)
    assert other.exchange.runs == [(3, 24)]  # 3 to 5 before 6, and 12 to 14 before 15
    assert other.held == [(3, 9), (12, 21)]


def test_of_a_million_tokens_over_many_ranks_each_finds_its_predecessors_soon():
    tokens, ranks = 1 << 20, 64
    nodes = flashmask.nodes(masks.causal_document(np.full(1000, 1000), tokens))
    cuts = np.linspace(0, tokens, 2 * ranks + 1).astype(int).tolist()
    runs = [[(cuts[r], cuts[r + 1]), (cuts[-r - 2], cuts[-r - 1])] for r in range(ranks)]
    near = near_of(nodes, runs, 5, 4)
    held = sum(end - begin for begin, end in runs[5])
    assert held < near.exchange.tokens <= held + 6
