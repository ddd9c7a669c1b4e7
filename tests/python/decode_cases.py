# SPDX-License-Identifier: Apache-2.0
"""Who sees whom when a request's last tokens attend to its cache, score by score, and calls that are held to it."""

import torch

MEDUSA = (-1, -1, -1, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8)  # breadth first
CHAIN = (-1, 0, 1, 2, 3)
SINGLE = (-1,)


def lineage(node, parents):
    """A node and its ancestors."""
    while node >= 0:
        yield node
        node = parents[node]


def visible(rows, keys, lengths, parents=None):
    """Booleans [batch, 1, rows, keys]: tokens before the new ones, and ancestors or what came earlier."""
    seen = torch.zeros(len(lengths), 1, rows, keys, dtype=torch.bool)
    for request, length in enumerate(lengths):
        first = length - rows
        for row in range(rows):
            seen[request, 0, row, : max(0, min(first, keys))] = True
            for node in range(row + 1) if parents is None else lineage(row, parents):
                if 0 <= first + node < keys:
                    seen[request, 0, row, first + node] = True
    return seen


# batch, rows, keys, heads, kv heads, lengths or None, parents or None, splits
CALLS = {
    "one token": (1, 1, 300, 4, 2, None, None, 3),
    "one part": (1, 5, 300, 4, 2, None, None, 1),
    "parts that do not divide the keys": (1, 5, 300, 4, 4, None, None, 7),
    "more parts than tiles": (1, 3, 90, 2, 1, None, None, 45),
    "a part for each key": (1, 2, 9, 2, 1, None, None, 9),
    "as many parts as is best": (1, 40, 700, 4, 1, None, None, None),
    "fewer keys than rows": (1, 9, 5, 4, 2, None, None, 2),
    "lengths": (3, 5, 300, 4, 2, [300, 17, 128], None, 4),
    "lengths of nothing, one and all": (3, 5, 300, 4, 1, [0, 1, 300], None, 5),
    "no keys at all": (2, 3, 0, 2, 2, None, None, None),
    "requests apart": (2, 6, 307, 4, 2, [300, 129], None, 4),
    "a tree": (1, 21, 400, 4, 2, None, MEDUSA, 5),
    "trees behind caches": (2, 21, 512, 8, 1, [512, 77], MEDUSA, 8),
    "a tree in order": (2, 5, 300, 2, 2, [200, 300], CHAIN, None),
    "a tree of one node": (1, 1, 200, 4, 1, None, SINGLE, 2),
    "the most rows": (1, 256, 600, 2, 1, [333], None, 3),
}
