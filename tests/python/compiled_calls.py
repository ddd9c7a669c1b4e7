# SPDX-License-Identifier: Apache-2.0
"""What people compile, held against eager mode by value: row indices to the integer, outputs to the bit."""

import numpy as np
import torch
from attention_oracle import random_inputs

import flashmask
from flashmask import masks

MODES = ["default", "reduce-overhead", "max-autotune-no-cudagraphs"]
# Lengths of the documents of two batch entries, and tokens; the second batch has other numbers of both. The documents
# of an entry leave room for padding, except the last.
BATCHES = [
    (([70, 0, 90, 20], [33, 1, 0, 100]), 192),
    (([9, 60, 0, 0, 31, 64], [5, 195, 4, 2, 1, 1]), 208),
]
OPTIONS = {
    "causal": {},
    "both ways": {"causal": False},
    "window": {"window": 9},
    "window both ways": {"window": 9, "causal": False},
    "prefix": {"prefix": 5},
    "prefix and window": {"prefix": 40, "window": 30},
}
# Nodes of a tree whose lengths are a batch's first, with padding behind them.
PARENTS = [[-1, 0, 0, -1], [-1, 0, 1, 1, 0, -1]]
FEWER_OPTIONS = ["causal", "window both ways", "prefix and window"]


class Batch:
    """One of BATCHES as tensors."""

    def __init__(self, number, device, dtype=torch.int64):
        lengths, self.tokens = BATCHES[number]
        of = [np.repeat(np.arange(len(n)), n) for n in lengths]
        ids = [np.append(o, np.full(self.tokens - len(o), -1)) for o in of]
        positions = [np.concatenate([np.arange(n) for n in (*each, self.tokens - sum(each))]) for each in lengths]

        def tensor(values):
            return torch.tensor(np.array(values), dtype=dtype, device=device)

        self.ends = tensor(np.cumsum([0, *lengths[0]]))
        self.longer_ends = tensor(np.cumsum([0, *lengths[1]]))
        self.ends_among_others = tensor([-3, *np.cumsum([0, *lengths[0]])])
        self.ids, self.positions = tensor(ids), tensor(positions)
        self.one_of_ids = self.ids[0].clone()
        self.prefixes = tensor(1 + 7 * np.arange(len(lengths[0])))
        self.parents, self.lengths = tensor(PARENTS[number]), tensor(lengths[0])
        self.mask = masks.causal_document(list(lengths[0]), self.tokens)


def built(options_by_name, tokens, ends, ends_among_others, ids, one_of_ids, positions, prefixes, parents, lengths):
    """Row indices of every builder that takes tensors, by name."""
    made = {"tree": masks.from_tree(parents, lengths, tokens)}
    made["two trees"] = masks.from_tree(torch.stack([parents, parents]), torch.stack([lengths, lengths // 2]), tokens)
    for name, options in options_by_name.items():
        made["ends, " + name] = masks.from_cu_seqlens(ends, tokens, **options)
        made["slice of ends, " + name] = masks.from_cu_seqlens(ends_among_others[1:], tokens, **options)
        made["ids, " + name] = masks.from_document_ids(ids, **options)
        made["ids of one, " + name] = masks.from_document_ids(one_of_ids, **options)
        made["positions, " + name] = masks.from_position_ids(positions, **options)
    for options in ({}, {"window": 30}):
        made[f"ends, a prefix each, {options}"] = masks.from_cu_seqlens(ends, tokens, prefix=prefixes, **options)
        made[f"ids, a prefix each, {options}"] = masks.from_document_ids(one_of_ids, prefix=prefixes, **options)
    return {name: rows.startend_row_indices for name, rows in made.items()}


def check_builders(device, dtype, mode, options=OPTIONS, dynamic=None):
    def build(*given):
        return built(options, *given)

    compiled = torch.compile(build, fullgraph=True, mode=mode, dynamic=dynamic)
    for number in (0, 1, 0):
        batch = Batch(number, device, dtype)
        documents = (batch.ends, batch.ends_among_others, batch.ids, batch.one_of_ids, batch.positions, batch.prefixes)
        given = (*documents, batch.parents, batch.lengths)
        expected = build(batch.tokens, *given)
        found = compiled(batch.tokens, *given)
        assert found.keys() == expected.keys()
        wrong = [name for name in expected if not torch.equal(found[name], expected[name])]
        assert not wrong, f"batch {number}: other row indices than in eager mode: {wrong}"


def rows_among_others(q, ends):
    """Row indices that are a part of what the graph computes."""
    made = masks.from_cu_seqlens(ends, q.shape[1], causal=False).startend_row_indices
    return torch.cat([made + 1, made], dim=1)[:, 1:]


# Calls whose masks are made of tensors, and calls with masks that lie on the host: CUDA graphs take none of the latter.
OF_TENSORS = {
    "no mask": lambda q, k, v, _: flashmask.attention(q, k, v),
    "ends": lambda q, k, v, b: flashmask.attention(q, k, v, masks.from_cu_seqlens(b["ends"], q.shape[1])),
    "slice of ends": lambda q, k, v, b: flashmask.attention(
        q, k, v, masks.from_cu_seqlens(b["ends_among_others"][1:], q.shape[1], window=20)
    ),
    "ids": lambda q, k, v, b: flashmask.attention(q, k, v, masks.from_document_ids(b["one_of_ids"], prefix=4)),
    "positions": lambda q, k, v, b: flashmask.attention(
        q, k, v, masks.from_position_ids(b["positions"][:1], causal=False)
    ),
    "tree": lambda q, k, v, b: flashmask.attention(q, k, v, masks.from_tree(b["parents"], b["lengths"], q.shape[1])),
    "row indices": lambda q, k, v, b: flashmask.attention(q, k, v, b["rows"]),
    "row indices of the papers": lambda q, k, v, b: flashmask.flashmask_attention(
        q, k, v, b["rows"].startend_row_indices, causal=True
    ),
    "computed row indices": lambda q, k, v, b: flashmask.flashmask_attention(q, k, v, rows_among_others(q, b["ends"])),
    "block mask": lambda q, k, v, b: flashmask.flashmask_attention(q, k, v, causal=True, block_mask=b["blocks"]),
    "window": lambda q, k, v, _: flashmask.flashmask_attention(q, k, v, window_size=(17, 3)),
    "varlen": lambda q, k, v, b: flashmask.varlen_attention(q[0], k[0], v[0], b["ends"], b["ends"], causal=True)[None],
    "varlen, a window": lambda q, k, v, b: flashmask.varlen_attention(
        q[0], k[0], v[0], b["ends"], b["ends"], window_size=(20, 5)
    )[None],
    "varlen of slices": lambda q, k, v, b: flashmask.varlen_attention(
        q[0], k[0], v[0], b["ends_among_others"][1:], b["ends_among_others"][1:], causal=True
    )[None],
}
BOOLEANS = {"booleans": lambda q, k, v, b: flashmask.attention(q, k, v, b["visible"])}
OF_HOST_MASKS = {
    "a mask": lambda q, k, v, b: flashmask.attention(q, k, v, b["mask"]),
    "a mask's complement": lambda q, k, v, b: flashmask.attention(q, k, v, b["complement"]),
    "heads first": lambda q, k, v, b: flashmask.attention(
        *(t.transpose(1, 2) for t in (q, k, v)), b["mask"], layout="bhsd"
    ).transpose(1, 2),
}


def arguments_of(batch, device):
    visible = torch.from_numpy(batch.mask.to_dense())[0, 0]
    blocks = -(-batch.tokens // 128)
    return {
        "ends": batch.ends,
        "ends_among_others": batch.ends_among_others,
        "one_of_ids": batch.one_of_ids,
        "positions": batch.positions,
        "parents": batch.parents,
        "lengths": batch.lengths,
        "rows": masks.from_cu_seqlens(batch.ends, batch.tokens),
        "blocks": torch.eye(blocks, dtype=torch.int32, device=device)[None, None],
        "visible": visible.to(device),
    }


def host_masks_of(batch):
    return {"mask": batch.mask, "complement": ~batch.mask}


def check_calls(calls, device, dtype, mode, number_of_batches=2):
    """All calls in one graph, forward and backward; each has tensors of its own."""

    def attend(inputs, given):
        return {name: call(*inputs[name], given) * 2 for name, call in calls.items()}

    compiled = torch.compile(attend, fullgraph=True, mode=mode)
    for number in range(number_of_batches):
        batch = Batch(number, device)
        given = host_masks_of(batch) if calls is OF_HOST_MASKS else arguments_of(batch, device)
        results = []
        for function in (attend, compiled):
            inputs, weight = {}, None
            for seed, name in enumerate(calls):
                *three, weight, _ = random_inputs(1, batch.tokens, batch.tokens, 4, 2, 64, 64, seed=seed)
                inputs[name] = [t.to(device, dtype).requires_grad_() for t in three]
            o = function(inputs, given)
            gradients = torch.autograd.grad(
                sum((each.float() * weight.to(device)).sum() for each in o.values()),
                [t for name in calls for t in inputs[name]],
            )
            results.append(({name: each.detach().clone() for name, each in o.items()}, gradients))
        (expected, expected_gradients), (found, found_gradients) = results
        wrong = [name for name in calls if not torch.equal(found[name], expected[name])]
        assert not wrong, f"batch {number}: other outputs than in eager mode: {wrong}"
        # On a GPU the parts of a gradient are added in any order.
        tolerance = 0 if device == "cpu" else 3e-2
        for at, (a, b) in enumerate(zip(found_gradients, expected_gradients, strict=True)):
            what = f"batch {number}: {list(calls)[at // 3]}, gradient of {'qkv'[at % 3]}"
            torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance, msg=lambda m, w=what: f"{w}: {m}")
