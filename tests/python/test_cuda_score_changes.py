# SPDX-License-Identifier: Apache-2.0
"""Softcap and ALiBi on a GPU: every family of kernels against float64, and Hopper's where capping is hardest."""

import math

import pytest
import torch
from attention_oracle import assert_within_bound, softmax_attention, value_and_gradients
from cuda_device import KERNELS, inputs, needs_gpu
from mask_families import FAMILIES, N, visible

import flashmask
from flashmask import masks

pytestmark = needs_gpu
BATCH, HEADS = 2, 4
DIMS = (64, 128, 256)
ARCHITECTURES = sorted({kernel["name"].split(".")[0] for kernel in KERNELS if kernel["runs"]})
CAPS = {"reached by all": 0.05, "reached by some": 1.0, "far above": 50.0}


def bias_of(slopes, rows, columns):
    distance = (rows[:, None, :, None].double() - columns[:, None, None, :].double()).abs()
    return (-slopes[None, :, None, None].double() * distance).cuda()


def check(mask, given, formula, architecture, deterministic, tensors=None, **changes):
    """Holds o, lse and gradients by an architecture's kernels against float64."""
    leaves, dtype, seen = given[:3], given[0].dtype, visible(mask).cuda()
    plan = flashmask.plan(mask, *leaves, kernel=f"{architecture}.", deterministic=deterministic, **changes)

    def by_kernels(q, k, v):
        return flashmask.attention(q, k, v, plan=plan, return_lse=True, **(tensors or {}))

    def by_formula(q, k, v):
        return softmax_attention(q, k, v, seen, **formula)

    found, exact, naive = (
        value_and_gradients(function, leaves, *given[3:], kind)
        for function, kind in ((by_kernels, dtype), (by_formula, torch.float64), (by_formula, dtype))
    )
    assert_within_bound(found, exact, naive, dtype)


def has(architecture, feature, dim, deterministic, form="intervals"):
    """Whether both directions have a kernel for bfloat16 and masks of a form."""
    return {
        kernel["direction"]
        for kernel in KERNELS
        if kernel["name"].startswith(f"{architecture}.")
        and kernel["name"].split(".")[2:4] == ["bf16", f"d{dim}"]
        and form in kernel["name"]
        and feature in kernel["features"]
        and (not deterministic or "deterministic" in kernel["features"])
    } == {"forward", "backward"}


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("cap", CAPS)
def test_capped_scores_hold_the_bound(cap, architecture, dim, deterministic):
    served = [mask for mask in (make() for make in FAMILIES.values())
              if has(architecture, "softcap", dim, deterministic, mask.form)]  # fmt: skip
    if not served:
        pytest.skip(f"{architecture} has no kernels of both directions for this")
    for mask in served:
        given = inputs(BATCH, N, N, HEADS, 2, dim)
        check(mask, given, {"softcap": CAPS[cap]}, architecture, deterministic, softcap=CAPS[cap])


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("positions", [False, True])
def test_biased_scores_hold_the_bound(positions, architecture, dim, deterministic):
    if not has(architecture, "alibi", dim, deterministic):
        pytest.skip(f"{architecture} has no kernels of both directions for this")
    tokens = 700
    slopes = torch.tensor([0.5, -0.0625, 0.004, 0.0])
    rows, columns = torch.arange(tokens).expand(BATCH, -1), torch.arange(tokens).expand(BATCH, -1)
    tensors = {"alibi_slopes": slopes.cuda()}
    if positions:
        generator = torch.Generator().manual_seed(3)
        rows, columns = (torch.randint(0, 900, (BATCH, tokens), generator=generator) for _ in range(2))
        tensors |= {"query_positions": rows.cuda(), "key_positions": columns.cuda()}
    formula = {"bias": bias_of(slopes, rows, columns)}
    for mask in (masks.full(tokens, tokens), masks.causal_document([300, 257, 143])):
        check(
            mask,
            inputs(BATCH, tokens, tokens, HEADS, 2, dim),
            formula,
            architecture,
            deterministic,
            tensors,
            alibi=True,
        )


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("changed", ["softcap", "alibi", "both"])
def test_rows_of_a_rank_have_the_bits_of_the_whole_sequence(changed, dim):
    """As flashmask.distributed calls kernels: some rows and the columns that they see, with their positions."""
    tokens, own = 1536, slice(768, 1152)
    q, k, v, grad_o, _ = inputs(1, tokens, tokens, HEADS, 2, dim)
    mask = masks.causal_document([1200, 336])
    part = mask.slice([(own.start, own.stop)], [(0, own.stop)])
    changes, positions = {}, {}
    if changed != "alibi":
        changes["softcap"] = 2.0
    if changed != "softcap":
        changes["alibi_slopes"] = torch.tensor([0.5, 0.0625, 0.004, 0.0]).cuda()
        places = torch.arange(tokens, device="cuda")[None]
        positions = {"query_positions": places[:, own], "key_positions": places[:, : own.stop]}
    found = []
    for given, of_part, extra in (
        ((q, k, v, grad_o), mask, {}),
        ((q[:, own], k[:, : own.stop], v[:, : own.stop], grad_o[:, own]), part, positions),
    ):
        leaves = [each.detach().clone().requires_grad_() for each in given[:3]]
        o, lse = flashmask.attention(*leaves, of_part, return_lse=True, deterministic=True, **changes, **extra)
        (grad_q,) = torch.autograd.grad(o, leaves[0], given[3])
        found.append((o, lse.transpose(1, 2), grad_q))
    for whole, mine in zip(*found, strict=True):
        assert torch.equal(mine, whole[:, own])


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("score", [-8.0, -15.0, -20.0, 5.0, 37.0, 38.0, 300.0])
def test_lse_of_thousands_of_equal_scores(score, architecture, dim):
    """Errors of equal scores do not average out in lse, which here is near 0 for scores of −8."""
    keys, cap = 2981, 50.0
    q, k = (torch.zeros(1, length, 1, dim, device="cuda", dtype=torch.bfloat16) for length in (128, keys))
    q[..., 0], k[..., 0] = score, 1
    plan = flashmask.plan(masks.full(128, keys), q, k, k, kernel=f"{architecture}.", softcap=cap, scale=1.0)
    _, lse = flashmask.attention(q, k, k, plan=plan, return_lse=True)
    expected = cap * math.tanh(score / cap) + math.log(keys)
    assert (lse - expected).abs().max() <= 1e-3 * max(1, abs(expected))
