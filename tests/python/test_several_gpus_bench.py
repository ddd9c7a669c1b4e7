# SPDX-License-Identifier: Apache-2.0
"""bench/several_gpus.py on a CPU: its contestants against one process, and its accounts. Timing is not tested."""

import re
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from ranks import torchrun

import flashmask
from flashmask import masks

BENCH = Path(__file__).parent.parent.parent / "bench"
sys.path.insert(0, str(BENCH))
from spread import contestants, report  # noqa: E402


@pytest.mark.slow
def test_every_contestant_has_the_results_of_one_process():
    """Over two ranks; also that what each of them does is timed and said."""
    names = ["causal", "window of 4,096", "documents of 105", "random eviction"]
    options = ["--device", "cpu", "--tokens", "768", "--heads", "4:2", "--calls", "1", "--peers", "--masks", *names]
    done = torchrun(BENCH / "several_gpus.py", *options, ranks=2)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split(" 768 ")[0] for line in lines if line] == names
    for line in lines[: len(names)]:
        assert " 7 ways, at most " in line
        assert len(re.findall(r"; (by|owner|all keys|ours).*?x", line)) >= 3


@pytest.fixture
def group():
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield dist.group.WORLD
    dist.destroy_process_group()


def test_results_that_are_wrong_or_not_numbers_are_seen(group):
    problem = contestants.problem_of(masks.causal(300, 300), (2, 1), torch.device("cpu"))
    way = contestants.alone(problem)
    expected = contestants.results(way)
    assert contestants.distance(way, expected) == 0
    local = way._replace(attend=lambda q, k, v: flashmask.attention(q, k, v, masks.causal_document([150, 150])))
    assert contestants.distance(local, expected) > 0.1
    spoilt = way._replace(attend=lambda q, k, v: way.attend(q, k, v) * torch.nan)
    assert not contestants.distance(spoilt, expected) <= 1


def test_context_parallel_goes_through_the_rings_of_torch(group):
    """They have kernels for GPUs alone: on a CPU the call is refused there, and not computed on a rank's own tokens."""
    problem = contestants.problem_of(masks.causal(64, 64), (4, 2), torch.device("cpu"))
    expected = contestants.results(contestants.alone(problem))
    with contestants.torch_context_parallel(problem) as way:
        with pytest.raises(NotImplementedError, match="does not have a sharding strategy"):
            way.attend(*way.leaves)

        def attend(q, k, v):
            q, k, v = (each.transpose(1, 2) for each in (q, k, v))
            return flashmask.attention(q, k, v, problem.mask).transpose(1, 2)

        assert contestants.distance(way._replace(attend=attend), expected) < 1e-6


def test_summary_says_means_and_rates():
    def row(tokens, ours, rate):
        times = {"one": [10, 30], "ours": ours, "kernels": [5, 14], "owner": [10, 30]}
        return {"mask": "documents", "heads": "32:8", "tokens": tokens, "TFLOP/s": rate, **times}

    rows = [row(131072, [5, 15], 400), row(131072, [5, 35], 300), row(524288, [5, 15], 343)]
    assert report.summary(rows) == [
        "documents 131072 32:8, mean of 2 packs: kernels 2.11x, ours 1.50x, owner 1.00x",
        "documents 524288 32:8: 0.98 of the rate of 131072 tokens",
    ]
    assert report.wire_share(rows[0]) == pytest.approx(0.05)
