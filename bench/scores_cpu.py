# SPDX-License-Identifier: Apache-2.0
"""Cost of changes of scores and max_scores on the CPU, both ways, as a multiple of the same call without them.

float32, one thread, full, a batch of 4, 4 heads: 1,024 tokens with heads of 64 and 128, and 512 with heads of 32. Calls
take turns; the numbers are ratios of the least CPU time of a call. "∂": the backward also computes the gradient of the
bias.

python bench/scores_cpu.py [--rounds 9]
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

import flashmask
from flashmask import masks, scores

BATCH, HEADS = 4, 4
SHAPES = ((64, 1024), (128, 1024), (32, 512))
Calls = dict[str, Callable[[], object]]


FUNCTIONS = {
    "f: squares": "mul(score, score)",
    "f: softcap": "mul(30, tanh(div(score, 30)))",
    "f: ALiBi": "sub(score, mul(at(0, h), abs(sub(q, k))))",
    "f: softcap, ALiBi": "sub(mul(30, tanh(div(score, 30))), mul(at(0, h), abs(sub(q, k))))",
    "f: silu": "mul(score, add(0.5, mul(0.5, tanh(mul(0.5, score)))))",
    "f: 1 + 0.1 cos(q - k)": "mul(score, add(1, mul(0.1, cos(sub(q, k)))))",
    "f: by document": "where(eq(at(0, q), at(0, k)), score, sub(score, 10))",
    "f: a table read": "add(score, at(0, add(sub(q, k), 1000)))",
    "f: softplus": "add(max(score, 0), log(add(1, exp(neg(abs(score))))))",
}
"""Functions of scores, which compute node by node what the rows above them have code for."""


def changes(tokens: int) -> dict[str, dict[str, Any]]:
    """What attention() is given, by the name of the change."""
    all_distances = {"distance_origin": tokens - 1}
    tensors = {
        "bias of scores": torch.randn(BATCH, HEADS, tokens, tokens),
        "bias of pairs": torch.randn(1, HEADS, tokens, tokens),
        "bias of keys": torch.randn(BATCH, 1, 1, tokens),
    }
    tables = {
        "distances": torch.randn(1, HEADS, 1, 2 * tokens - 1),
        "distances of rows": torch.randn(1, HEADS, tokens, 256),
    }
    given: dict[str, dict[str, Any]] = {
        "without": {},
        "softcap": {"softcap": 30.0},
        "ALiBi": {"alibi_slopes": torch.rand(HEADS)},
    }
    operand = torch.arange(2 * tokens) // 100.0
    for name, text in FUNCTIONS.items():
        given[name] = {"score": scores.function(text, *((operand,) if "at(" in text else ()))}
    for name, tensor in tensors.items():
        given[name] = {"bias": tensor}
        given[f"{name} ∂"] = {"bias": tensor.clone().requires_grad_()}
    for name, table in tables.items():
        given[name] = {"distance_bias": table} | (all_distances if name == "distances" else {})
        given[f"{name} ∂"] = given[name] | {"distance_bias": table.clone().requires_grad_()}
    return given


def least(calls: Calls, rounds: int) -> dict[str, float]:
    """The least CPU milliseconds of each call; they take turns."""
    found = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):
        for name, call in calls.items():
            begin = time.process_time()
            call()
            found[name] = min(found[name], 1e3 * (time.process_time() - begin))
    return found


def measure(dim: int, tokens: int, rounds: int) -> None:
    q, k, v, grad = (torch.randn(BATCH, tokens, HEADS, dim).requires_grad_() for _ in range(4))
    mask, ways = masks.full(tokens, tokens), {"forward": Calls(), "backward": Calls()}
    for name, given in changes(tokens).items():
        attend = partial(flashmask.attention, q.detach(), k.detach(), v.detach(), mask, **given)
        if not name.endswith("∂"):
            ways["forward"][name] = attend
        leaves = [q, k, v, *(t for t in given.values() if isinstance(t, Tensor) and t.requires_grad)]
        o = flashmask.attention(q, k, v, mask, **given)
        ways["backward"][name] = partial(torch.autograd.grad, o, leaves, grad.detach(), retain_graph=True)
    ways["forward"]["max_scores"] = partial(ways["forward"]["without"], return_max_scores=True)
    for way, calls in ways.items():
        found = least(calls, rounds)
        ratios = "".join(
            f"  {name} {taken / found['without']:.2f}" for name, taken in found.items() if name != "without"
        )
        print(f"{dim:3} {way:8} without {found['without']:.1f} ms{ratios}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="calls of each kind (default: %(default)s)")
    rounds = parser.parse_args().rounds
    torch.manual_seed(0)
    torch.set_num_threads(1)
    for dim, tokens in SHAPES:
        measure(dim, tokens, rounds)


if __name__ == "__main__":
    main()
