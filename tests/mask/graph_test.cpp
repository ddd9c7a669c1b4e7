// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "flashmask/builders.h"
#include "mask/visibility.h"

namespace flashmask {
namespace {

using testing::expect_visible;
using testing::refusal;
using Edges = std::vector<VisiblePair>;

/// With repeated edges and self loops.
Edges random_edges(std::int64_t nodes) {
  std::mt19937_64 random(9);
  Edges edges;
  for (std::int64_t k = 0; k < 2 * nodes; ++k) {
    edges.push_back({testing::draw(random, 0, nodes - 1), testing::draw(random, 0, nodes - 1)});
    if (k % 5 == 0) edges.push_back(edges.back());
  }
  return edges;
}

bool has(const Edges& edges, std::int64_t row, std::int64_t column) {
  return std::any_of(edges.begin(), edges.end(),
                     [&](const VisiblePair& e) { return e.row == row && e.column == column; });
}

TEST(Graph, SeesItsEdges) {
  for (const std::int64_t nodes : {0, 1, 10, 65, 130}) {
    const Edges edges = random_edges(nodes);
    expect_visible(masks::graph(nodes, edges), [&](auto i, auto j) { return has(edges, i, j); });
  }
}

TEST(Graph, SeesThemFromBothEndsAndEveryNodeItselfWhenAsked) {
  const Edges edges = random_edges(97);
  expect_visible(masks::graph(97, edges, {.symmetric = true}),
                 [&](auto i, auto j) { return has(edges, i, j) || has(edges, j, i); });
  expect_visible(masks::graph(97, edges, {.self_loops = true}),
                 [&](auto i, auto j) { return i == j || has(edges, i, j); });
}

TEST(Graph, RefusesAnEdgeToANodeThatIsNone) {
  EXPECT_EQ(refusal([] {
              masks::graph(5, Edges{{0, 1}, {2, 5}});
            }),
            "graph: edges[1] is (2, 5); give nodes from 0 to below 5");
  EXPECT_EQ(refusal([] {
              masks::graph(5, Edges{{-1, 1}});
            }),
            "graph: edges[0] is (-1, 1); give nodes from 0 to below 5");
}

}  // namespace
}  // namespace flashmask
