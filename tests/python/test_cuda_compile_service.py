# SPDX-License-Identifier: Apache-2.0
"""Kernels that a GPU's plan compiles: where they come from, what is said of them, and that front doors reach them."""

import os
import subprocess
import sys

import pytest
import torch
from cuda_device import needs_gpu

import flashmask
from flashmask import masks, scores
from flashmask.__main__ import main

pytestmark = needs_gpu
HEADS, TOKENS = 4, 200
SECOND_PROCESS = """
import torch, flashmask
from flashmask import masks, scores
q = torch.randn(1, 200, 4, 64, device="cuda", dtype=torch.bfloat16)
plan = flashmask.plan(masks.causal(200, 200), q, q, score=scores.function("{}"))
print(*(f"{{each.direction}}:{{each.origin}}:{{each.seconds < 1}}" for each in plan.explain().compiled))
"""


def tensors(tokens=TOKENS):
    torch.manual_seed(0)
    return [torch.randn(1, tokens, HEADS, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in "qkv"]


def origins(plan):
    return sorted((each.direction, each.origin) for each in plan.explain().compiled)


def test_a_plan_says_where_its_kernels_came_from(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FLASHMASK_CACHE", str(tmp_path / "kernels"))
    text = "mul(score, add(1, mul(0.25, exp(neg(abs(score))))))"
    change = scores.function(text)
    plan = flashmask.plan(masks.causal(TOKENS, TOKENS), *tensors(), score=change)
    assert origins(plan) == [("backward", "compiler"), ("forward", "compiler")]
    assert all("NVRTC 1" in each.compiler and each.spilled_bytes <= 16 for each in plan.explain().compiled)
    assert "compiled    forward " in str(plan.explain())
    again = flashmask.plan(masks.causal(90, 90), *tensors(90), score=change)
    assert origins(again) == [("backward", "memory"), ("forward", "memory")]
    code = SECOND_PROCESS.format(text)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)
    assert sorted(done.stdout.split()) == ["backward:disk:True", "forward:disk:True"]
    kept = len(list((tmp_path / "kernels").glob("*.kernel")))
    assert kept >= 2  # of several shapes that were tried, all are kept
    assert main(["cache"]) == 0
    assert f": {kept} kernels\n" in capsys.readouterr().out
    assert main(["cache", "--clear"]) == 0
    assert capsys.readouterr().out == f"removed {kept} kernels\n"


def test_calls_compile_the_backward_where_there_may_be_one(tmp_path, monkeypatch, capsys):
    """A table in bfloat16 is none that a plan expects; the first call compiles for it."""
    monkeypatch.setenv("FLASHMASK_CACHE", str(tmp_path / "kernels"))
    q, k, v = tensors()
    table = torch.linspace(0.5, 1.5, HEADS, device="cuda").bfloat16()

    def kept():
        assert main(["cache"]) == 0
        return capsys.readouterr().out.count("column_kernel"), len(list((tmp_path / "kernels").glob("*.kernel")))

    change = scores.function("mul(score, mul(at(0, h), sin(score)))", table)
    with torch.no_grad():
        flashmask.attention(q.detach(), k.detach(), v.detach(), score=change)
    forward = kept()
    assert forward[0] == 0 and forward[1] > 0
    flashmask.attention(q, k, v, score=change).sum().backward()
    first = kept()[1]
    assert first > forward[1]
    other = scores.function("mul(score, mul(at(0, h), cos(score)))", table)
    o = flashmask.attention(q, k, v, score=other)
    both = kept()[1]
    assert both > first + 1
    o.sum().backward()
    assert kept()[1] == both, "the backward's kernels were there"


@pytest.mark.parametrize("kind", ["a plan", "packed", "read ahead"])
def test_front_doors_reach_the_kernels(kind):
    q, k, v = tensors()
    gate = torch.linspace(0.5, 1.5, HEADS, device="cuda")
    mask = masks.causal(TOKENS, TOKENS)

    def change(s, b, h, i, j):
        return torch.where(s > 0, s * gate[h], 0.5 * s) * (1 + 0.1 * torch.cos((i - j) * 1.0))

    expected = flashmask.attention(q, k, v, mask, score=change)
    if kind == "a plan":
        found = flashmask.attention(q, k, v, plan=flashmask.plan(mask, q, k, v, score=change), score=change)
    elif kind == "packed":
        ends = torch.tensor([0, TOKENS], device="cuda", dtype=torch.int32)
        found = flashmask.varlen_attention(q[0], k[0], v[0], ends, ends, causal=True, score=change)[None]
    else:
        found = flashmask.attention(q, k, v, mask, score=scores.from_function(change, q, k))
    torch.testing.assert_close(found, expected, rtol=0.02, atol=0.02)
    for a, b in zip(*(torch.autograd.grad(o.sum(), (q, k, v)) for o in (found, expected)), strict=True):
        torch.testing.assert_close(a, b, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"])
@pytest.mark.parametrize("dim", ["64", "128"])
def test_score_compiles_for_kinds_of_gpus_that_are_not_here(arch, dim, capsys):
    assert main(["score", "mul(score, add(at(0, h), abs(score)))", "--arch", arch, "--head-dim", dim]) == 0
    told = capsys.readouterr().out
    assert told.count("\ncompiled  ") >= 2 and "not compiled" not in told, told
