// SPDX-License-Identifier: Apache-2.0
#include "mask/builders/visible_columns.h"

namespace flashmask::masks {
namespace {

void check_edge(std::size_t k, const VisiblePair& edge, std::int64_t nodes) {
  if (edge.row >= 0 && edge.row < nodes && edge.column >= 0 && edge.column < nodes) return;
  refuse("graph: edges[" + std::to_string(k) + "] is (" + grouped(edge.row) + ", " + grouped(edge.column) +
         "); give nodes from 0 to below " + grouped(nodes));
}

}  // namespace

Mask graph(std::int64_t nodes, Elements<VisiblePair> edges, const GraphEdges& meaning) {
  check_size("graph", "nodes", nodes);
  for (std::size_t k = 0; k < edges.size(); ++k) check_edge(k, edges[k], nodes);
  std::vector<VisiblePair> pairs(edges.begin(), edges.end());
  if (meaning.symmetric) {
    for (const VisiblePair& edge : edges) pairs.push_back({edge.column, edge.row});
  }
  if (meaning.self_loops) {
    for (std::int64_t node = 0; node < nodes; ++node) pairs.push_back({node, node});
  }
  const Mask mask = from_pairs(nodes, nodes, pairs);
  return {mask.lowered(),
          "graph(" + counted(static_cast<std::size_t>(nodes), "node") + ", " + counted(edges.size(), "edge") + ")",
          mask.misfit()};
}

}  // namespace flashmask::masks
