# SPDX-License-Identifier: Apache-2.0
"""Changes of scores that models in the field ask for, as functions of FlexAttention, and what each becomes here.

Each is made of the tensors that it captures, so that tests can make it twice: for the call, and in double precision.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

B, H, N = 2, 4, 40  # sequences, query heads, tokens
WHERE_HIDDEN = -torch.inf


@dataclass
class Case:
    make: Callable[..., Any]  # (captured) -> score_mod
    becomes: list[str] = field(default_factory=list)  # parts of the recipe
    captured: Callable[[], dict[str, torch.Tensor]] = dict
    frozen: tuple[str, ...] = ()  # captured tensors of floating point that do not learn
    on_gpus: str = ""  # why they refuse it


def whole(*shape, below):
    return torch.randint(0, below, shape)


def softcap(c):
    return lambda s, b, h, i, j: 5.0 * torch.tanh(s / 5.0)


def alibi_signed(c):
    return lambda s, b, h, i, j: s + (j - i) * torch.exp2(-(h + 1) * 8.0 / H)


def alibi_of_positions(c):
    return lambda s, b, h, i, j: s - c["slopes"][h] * (c["at"][b, i] - c["at"][b, j]).abs()


def sandwich(c):
    def change(s, b, h, i, j):
        bias = 0.0
        for k in range(4):
            bias = bias + torch.cos((i - j) / 10000.0 ** (2 * k / 8))
        return s + bias / (h + 1)

    return change


def t5(c):
    def change(s, b, h, i, j):
        far, back = (j - i).abs(), (j > i).to(torch.int64) * 8
        by_log = 4 + (torch.log(far.clamp(min=1) / 4.0) / math.log(32 / 4.0) * 4).to(torch.int64)
        return s + c["weight"][back + torch.where(far < 4, far, by_log.clamp(max=7)), h]

    return change


def relative_table(c):
    return lambda s, b, h, i, j: s + c["table"][h, (i - j).clamp(-8, 8) + 8]


def pair_bias(c):
    return lambda s, b, h, i, j: s + c["pairs"][b, h, i, j]


def decomposed_images(c):
    """Patches of a picture: a bias by row and one by column, each of its query."""
    wide = 8
    return lambda s, b, h, i, j: s + c["down"][b, h, i, j // wide] + c["across"][b, h, i, j % wide]


def graph_distance(c):
    return lambda s, b, h, i, j: s + c["by_hops"][c["hops"][b, i, j], h]


def graph_edges(c):
    return lambda s, b, h, i, j: s + (c["by_hops"][c["hops"][b, i, j], h] + c["edges"][b, h, i, j])


def board_cells(c):
    """Squares of a board: a table by the two differences of their coordinates."""
    wide = 8

    def change(s, b, h, i, j):
        return s + c["table"][h, i // wide - j // wide + 5, i % wide - j % wide + wide]

    return change


def windows_of_images(c):
    return lambda s, b, h, i, j: s + c["table"][c["index"][i, j], h] + c["shifted"][b, i, j]


def as_transformers_says_it(c):
    def change(s, b, h, i, j):
        s = 3.0 * torch.tanh(s / 3.0)
        s = s + c["mask"][b, 0, i, j]
        return s + c["position_bias"][0, h, i, j]

    return change


def keys_with_gates(c):
    return lambda s, b, h, i, j: s + c["gate"][b, h, j]


def causal(c):
    return lambda s, b, h, i, j: torch.where(i >= j, s, WHERE_HIDDEN)


def documents_under_a_softcap(c):
    def change(s, b, h, i, j):
        capped = torch.tanh(s / 4.0) * 4.0
        return torch.where((c["ids"][b, i] == c["ids"][b, j]) & (j <= i), capped, WHERE_HIDDEN)

    return change


def padding(c):
    return lambda s, b, h, i, j: s.masked_fill(j >= c["lengths"][b], WHERE_HIDDEN)


def key_norms(c):
    return lambda s, b, h, i, j: s / c["norm"][b, j]


def temperature_of_a_query(c):
    return lambda s, b, h, i, j: s * (1.0 + 0.1 * torch.log(i // 8 + 1.0)) * c["temperature"]


def head_gates(c):
    return lambda s, b, h, i, j: s * c["gate"][h] + c["row"][b, i]


def local_tables(c):
    extent = 8

    def change(s, b, h, i, j):
        far = i - j
        near = (far >= 0) & (far < extent)
        return s + torch.where(near, c["table"][b, h, i, far.clamp(0, extent - 1)], 0.0)

    return change


def rotary_part(c):
    return lambda s, b, h, i, j: s + 0.1 * (c["q"][b, h, i] * c["k"][b, j]).sum(-1)


def sink_as_a_first_key(c):
    return lambda s, b, h, i, j: torch.where(j == 0, c["sinks"][h], s)


def activation(c):
    return lambda s, b, h, i, j: torch.nn.functional.silu(s)


def distance_gates(c):
    return lambda s, b, h, i, j: s * torch.exp(-0.1 * (i - j).abs())


def squares(c):
    return lambda s, b, h, i, j: s * s


CASES = {
    "softcap": Case(softcap, ["softcap"]),
    "ALiBi, signed": Case(alibi_signed, ["distances"]),
    "ALiBi of positions": Case(
        alibi_of_positions,
        ["alibi"],
        lambda: {"slopes": torch.tensor([0.5, 0.25, 0.125, 0.0625]), "at": whole(B, N, below=30)},
        frozen=("slopes",),
    ),
    "Sandwich": Case(sandwich, ["distances"]),
    "T5": Case(t5, ["distances"], lambda: {"weight": torch.randn(16, H)}),
    "relative table": Case(relative_table, ["distances"], lambda: {"table": torch.randn(H, 17)}),
    "pair bias": Case(pair_bias, ["pairs"], lambda: {"pairs": torch.randn(B, H, N, N)}),
    "SAM": Case(
        decomposed_images,
        ["pairs"],
        lambda: {"down": torch.randn(B, H, N, N // 8), "across": torch.randn(B, H, N, 8)},
    ),
    "Graphormer, hops": Case(
        graph_distance, ["pairs"], lambda: {"by_hops": torch.randn(6, H), "hops": whole(B, N, N, below=6)}
    ),
    "Graphormer, edges": Case(
        graph_edges,
        ["pairs"],
        lambda: {"by_hops": torch.randn(6, H), "hops": whole(B, N, N, below=6), "edges": torch.randn(B, H, N, N)},
    ),
    "cells of a board": Case(board_cells, ["pairs"], lambda: {"table": torch.randn(H, 12, 17)}),
    "Swin": Case(
        windows_of_images,
        ["pairs"],
        lambda: {
            "table": torch.randn(49, H),
            "index": whole(N, N, below=49),
            "shifted": -9.0 * whole(B, N, N, below=2),
        },
    ),
    "Transformers": Case(
        as_transformers_says_it,
        ["softcap", "pairs"],
        lambda: {
            "mask": torch.zeros(B, 1, N, N).masked_fill(torch.ones(N, N).triu(1).bool(), -torch.inf),
            "position_bias": torch.randn(1, H, N, N),
        },
        frozen=("mask",),
    ),
    "Doge": Case(keys_with_gates, ["keys"], lambda: {"gate": torch.randn(B, H, N)}),
    "causal": Case(causal, ["masks"]),
    "documents under a softcap": Case(
        documents_under_a_softcap, ["softcap", "masks"], lambda: {"ids": whole(B, N, below=3).sort().values}
    ),
    "padding": Case(padding, ["masks"], lambda: {"lengths": torch.tensor([N, 9])}),
    "norms of keys": Case(key_norms, ["key_factor"], lambda: {"norm": 1 + torch.rand(B, N)}),
    "temperature of a query": Case(
        temperature_of_a_query, ["query_factor"], lambda: {"temperature": torch.tensor(0.7)}
    ),
    "head gates": Case(
        head_gates, ["query_factor", "rows"], lambda: {"gate": torch.randn(H), "row": torch.randn(B, N)}
    ),
    "Inkling": Case(local_tables, ["pairs"], lambda: {"table": torch.randn(B, H, N, 8)}),
    "MLA's rotary part": Case(
        rotary_part, ["pairs"], lambda: {"q": torch.randn(B, H, N, 4), "k": torch.randn(B, N, 4)}
    ),
    "a sink as a first key": Case(
        sink_as_a_first_key,
        ["change"],
        captured=lambda: {"sinks": torch.randn(H)},
        on_gpus="a number in place of the score where a condition holds",
    ),
    "an activation": Case(activation, ["change"], on_gpus="silu() of the score"),
    "a gate by distance": Case(distance_gates, ["change"], on_gpus="the score times a factor of both tokens"),
    "squares": Case(squares, ["change"], on_gpus="a product of scores"),
}
SERVED = {name: case for name, case in CASES.items() if not case.on_gpus}  # on every device
FUNCTIONS = {name: case for name, case in CASES.items() if case.on_gpus}
