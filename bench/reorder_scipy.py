# SPDX-License-Identifier: Apache-2.0
"""Time and result of scipy's reverse_cuthill_mckee on the graphs of bench/reorder.cpp; needs numpy and scipy."""

import time

import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import reverse_cuthill_mckee

TOKENS = 16384


def band():
    rows = np.repeat(np.arange(TOKENS), 33)
    columns = rows + np.tile(np.arange(-16, 17), TOKENS)
    inside = (columns >= 0) & (columns < TOKENS)
    return rows[inside], columns[inside]


def grid(side=128):
    token = np.arange(TOKENS)
    rows, columns = [], []
    for dx, dy in ((0, 0), (1, 0), (-1, 0), (0, 1), (0, -1)):
        x, y = token % side + dx, token // side + dy
        inside = (x >= 0) & (x < side) & (y >= 0) & (y < side)
        rows.append(token[inside])
        columns.append((y * side + x)[inside])
    return np.concatenate(rows), np.concatenate(columns)


def active_tiles(rows, columns, tile=64):
    return len(np.unique(rows // tile * TOKENS + columns // tile))


for name, pairs in (("band", band()), ("grid", grid())):
    scramble = np.random.default_rng(1).permutation(TOKENS)
    rows, columns = scramble[pairs[0]], scramble[pairs[1]]
    graph = csr_matrix((np.ones(len(rows), np.int8), (rows, columns)), shape=(TOKENS, TOKENS))
    seconds = []
    for _ in range(50):
        begin = time.perf_counter()
        order = reverse_cuthill_mckee(graph, symmetric_mode=True)
        seconds.append(time.perf_counter() - begin)
    position = np.argsort(order)
    print(
        f"{name}: {1e3 * min(seconds):.2f} ms, {active_tiles(rows, columns):,} tiles of 64 x 64 before, "
        f"{active_tiles(position[rows], position[columns]):,} after"
    )
