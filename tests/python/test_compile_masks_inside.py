# SPDX-License-Identifier: Apache-2.0
"""torch.compile of functions that make masks and plans: the graph breaks there, and results are those of eager mode."""

import numpy as np
import pytest
import torch
from attention_oracle import random_inputs
from mask_families import FAMILIES, N

import flashmask
from flashmask import block_maps, masks


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def with_gradients(function, seed):
    tensors = [t.requires_grad_() for t in random_inputs(2, N, N, 4, 2, 16, 16, seed=seed)[:3]]
    o = function(*tensors)
    return [o.detach(), *torch.autograd.grad(o.sum(), tensors)]


def check(function):
    """A function of q, k and v that returns a tensor, for two batches of other values."""
    compiled = torch.compile(function, backend="eager")
    for seed in (1, 2):
        for found, expected in zip(with_gradients(compiled, seed), with_gradients(function, seed), strict=True):
            assert torch.equal(found, expected)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_builder_makes_its_mask_inside(name):
    check(lambda q, k, v: flashmask.attention(q * 2, k, v, FAMILIES[name]()).sin())


def at_threshold(q):
    """Booleans [rows, columns] that the values of q decide."""
    scores = q[0, :, 0] @ q[0, :, 0].T
    return scores > scores.median()


INSIDE = {
    "booleans": lambda q, k, v: flashmask.attention(q, k, v, torch.ones(N, N, dtype=torch.bool).tril()),
    "booleans that values decide": lambda q, k, v: flashmask.attention(q, k, v, at_threshold(q.detach())),
    "booleans of NumPy": lambda q, k, v: flashmask.attention(q, k, v, np.tri(N, dtype=bool)),
    "lists": lambda q, k, v: flashmask.attention(q, k, v, [[j <= i for j in range(N)] for i in range(N)]),
    "from_dense that values decide": lambda q, k, v: flashmask.attention(
        q, k, v, masks.from_dense(at_threshold(q.detach()))
    ),
    "from_dense of NumPy": lambda q, k, v: flashmask.attention(
        q, k, v, masks.from_dense(at_threshold(q.detach()).numpy() & np.tri(N, dtype=bool))
    ),
    "from_mask_mod": lambda q, k, v: flashmask.attention(
        q, k, v, masks.from_mask_mod(lambda b, h, i, j: i >= j, None, None, q.shape[1], k.shape[1])
    ),
    "from_pairs": lambda q, k, v: flashmask.attention(q, k, v, masks.from_pairs(N, N, [(i, i // 2) for i in range(N)])),
    "row indices and back": lambda q, k, v: flashmask.attention(
        q, k, v, masks.from_startend_row_indices(masks.document([30, 40]).to_startend_row_indices()[0], causal=False)
    ),
    "row indices to a mask": lambda q, k, v: flashmask.attention(
        q, k, v, masks.from_cu_seqlens(torch.tensor([0, 30, N]), N).to_mask()
    ),
    "algebra": lambda q, k, v: flashmask.attention(
        q, k, v, (masks.causal(N, N) & ~masks.window(N, N, 3, 3)) | masks.document([30, 40])
    ),
    "stacks": lambda q, k, v: flashmask.attention(
        q, k, v, masks.stack_heads([masks.causal(N, N), masks.full(N, N)]).drop_queries([3])
    ),
    "a block map": lambda q, k, v: flashmask.attention(
        q, k, v, masks.causal(N, N) & block_maps.sliding((N, N), 16, 2, 0)
    ),
    "a block map of NumPy": lambda q, k, v: flashmask.attention(
        q, k, v, flashmask.BlockMap((N, N), 16, np.tri(5, dtype=bool)).to_mask()
    ),
    "what a mask says": lambda q, k, v: (
        flashmask.attention(q, k, v, masks.from_dense(masks.causal(N, N).to_dense()[0, 0, ::-1, ::-1]))
        * masks.causal(N, N).explain().density
        * masks.causal(N, N).shape.rows
    ),
    "a slice": lambda q, k, v: flashmask.attention(q[:, :9], k, v, masks.causal(N, N).slice([(0, 9)], [(0, N)])),
    "a plan": lambda q, k, v: flashmask.attention(
        q, k, v, plan=flashmask.plan(masks.document([30, 40]), q, k, v, form="bits")
    ),
    "a plan of booleans": lambda q, k, v: flashmask.attention(
        q, k, v, plan=flashmask.plan(at_threshold(q.detach()), q, k, v)
    ),
}


@pytest.mark.parametrize("name", INSIDE)
def test_whatever_is_made_inside_is_that_of_eager_mode(name):
    check(INSIDE[name])


def test_numpy_arrays_go_in_and_out():
    def attend(q, k, v):
        o = flashmask.attention(q.numpy(), k.numpy(), v.numpy(), masks.causal(N, N))
        again, lse = flashmask.attention(o, k.numpy(), v.numpy(), return_lse=True)
        joined, _ = flashmask.merge(again, lse, again, lse)
        return torch.from_numpy(joined) * 2

    compiled = torch.compile(attend, backend="aot_eager")
    for seed in (1, 2):
        tensors = random_inputs(2, N, N, 4, 2, 16, 16, seed=seed)[:3]
        assert torch.equal(compiled(*tensors), attend(*tensors))


def test_a_whole_graph_says_where_masks_belong():
    compiled = torch.compile(
        lambda q: flashmask.attention(q, q, q, masks.causal(8, 8)), fullgraph=True, backend="aot_eager"
    )
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"make them outside and pass them in|_between_graphs"):
        compiled(torch.ones(1, 8, 1, 8))
