// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "flashmask/bit_mask.h"
#include "flashmask/executor.h"
#include "flashmask/tile.h"

namespace flashmask {

/// Compressed sparse rows: node v is joined to neighbours[offsets[v]] … neighbours[offsets[v + 1]), ascending.
struct Graph {
  std::vector<std::int64_t> offsets{0};
  std::vector<std::uint32_t> neighbours;

  std::int64_t nodes() const { return static_cast<std::int64_t>(offsets.size()) - 1; }
  std::span<const std::uint32_t> neighbours_of(std::int64_t node) const {
    const std::int64_t begin = offsets[static_cast<std::size_t>(node)];
    const std::int64_t end = offsets[static_cast<std::size_t>(node) + 1];
    return {neighbours.data() + begin, static_cast<std::size_t>(end - begin)};
  }
  friend bool operator==(const Graph&, const Graph&) = default;
};

/// Returns the mean number of visible scores per row of a batch entry, in the mask head that has the most: exact up to
/// a few hundred rows, else counted in that many of them.
double visible_per_row(const BitMask& mask, std::int64_t batch);

/// Returns a graph whose node i is row i of a batch entry, joined to the columns that it sees in any head. Takes one
/// score in 2^halvings at random: a sample shows a dense mask's structure in memory and time linear in its rows.
Graph visible_columns(const BitMask& mask, std::int64_t batch, int halvings, Executor& executor);

/// Returns the transpose, with `nodes` nodes: node j is joined to the nodes of `graph` that are joined to j.
Graph transposed(const Graph& graph, std::int64_t nodes);

/// Joins nodes where either graph does; both have the same nodes.
Graph united(const Graph& a, const Graph& b);

/// Makes rows and columns the nodes of one graph: column j is node rows.nodes() + j.
Graph bipartite(const Graph& rows, const Graph& columns);

/// Removes the edges of hubs, nodes that are joined to many more nodes than most. Returns nothing if there are no hubs.
std::optional<Graph> without_hubs(const Graph& graph);

}  // namespace flashmask
