// SPDX-License-Identifier: Apache-2.0
#include "schedule/reorder/cuthill_mckee.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <span>
#include <utility>

#include "base/checks.h"
#include "flashmask/reorder.h"
#include "mask/csr.h"

namespace flashmask {
namespace {

/// The most searches for an end of a component. Two or three find it; the limit is for adversarial graphs.
constexpr int kMostSearches = 5;
constexpr std::uint32_t kPlaced = ~0U;

/// The result of a breadth-first search: nodes in the order of Cuthill and McKee, in levels of equal distance.
struct Levels {
  std::vector<std::uint32_t> nodes;  ///< one slot more than the graph has nodes
  std::size_t size = 0;
  std::size_t last_level = 0;  ///< where the last level begins
  std::size_t depth = 0;
  std::size_t width = 0;  ///< nodes in the widest level
};

class CuthillMckee {
 public:
  explicit CuthillMckee(const Graph& graph)
      : graph_(graph), degrees_(static_cast<std::size_t>(graph.nodes())), searched_(degrees_.size()) {
    for (std::size_t v = 0; v < degrees_.size(); ++v)
      degrees_[v] = static_cast<std::uint32_t>(graph.offsets[v + 1] - graph.offsets[v]);
    best_.nodes.resize(degrees_.size() + 1);
    next_.nodes.resize(degrees_.size() + 1);
  }

  std::vector<std::uint32_t> reversed_order() {
    std::vector<std::uint32_t> order(degrees_.size());
    auto component_end = order.end();
    const std::vector<std::uint32_t> by_degree = nodes_by_degree();
    auto node = by_degree.begin();
    for (; node != by_degree.end() && degrees_[*node] == 0; ++node) {
      *--component_end = *node;
      searched_[*node] = kPlaced;
    }
    std::reverse(component_end, order.end());
    for (; node != by_degree.end(); ++node) {
      if (searched_[*node] == kPlaced) continue;
      search_from_an_end(*node);
      for (std::size_t i = 0; i < best_.size; ++i) searched_[best_.nodes[i]] = kPlaced;
      const auto begin = component_end - static_cast<std::ptrdiff_t>(best_.size);
      std::reverse_copy(best_.nodes.begin(), best_.nodes.begin() + static_cast<std::ptrdiff_t>(best_.size), begin);
      component_end = begin;
    }
    return order;
  }

 private:
  bool before(std::uint32_t a, std::uint32_t b) const {
    return degrees_[a] != degrees_[b] ? degrees_[a] < degrees_[b] : a < b;
  }

  /// Sorts the nodes by degree in linear time, by counting.
  std::vector<std::uint32_t> nodes_by_degree() const {
    const std::uint32_t most = degrees_.empty() ? 0 : *std::max_element(degrees_.begin(), degrees_.end());
    std::vector<std::size_t> begins(std::size_t{most} + 2);
    for (const std::uint32_t degree : degrees_) ++begins[degree + 1];
    std::partial_sum(begins.begin(), begins.end(), begins.begin());
    std::vector<std::uint32_t> nodes(degrees_.size());
    for (std::size_t v = 0; v < degrees_.size(); ++v) nodes[begins[degrees_[v]]++] = static_cast<std::uint32_t>(v);
    return nodes;
  }

  /// Searches the component of `start` from ever more distant ends; leaves the deepest search in best_, or the
  /// narrowest of equally deep ones.
  void search_from_an_end(std::uint32_t start) {
    search(start, best_);
    for (int searches = 1; searches < kMostSearches && best_.depth != 0; ++searches) {
      const std::span last_level(best_.nodes.data() + best_.last_level, best_.size - best_.last_level);
      search(*std::ranges::min_element(last_level, [&](auto a, auto b) { return before(a, b); }), next_);
      const bool deeper = next_.depth > best_.depth;
      if (deeper || (next_.depth == best_.depth && next_.width < best_.width)) std::swap(best_, next_);
      if (!deeper) return;
    }
  }

  void search(std::uint32_t start, Levels& found) {
    ++search_;
    std::uint32_t* const nodes = found.nodes.data();
    nodes[0] = start;
    searched_[start] = search_;
    std::size_t size = 1;
    found.last_level = found.depth = found.width = 0;
    std::size_t level_end = 1;
    while (true) {
      found.width = std::max(found.width, level_end - found.last_level);
      for (std::size_t i = found.last_level; i < level_end; ++i) size = append_neighbours(nodes, i, size);
      if (size == level_end) break;
      found.last_level = std::exchange(level_end, size);
      ++found.depth;
    }
    found.size = size;
  }

  /// Appends the neighbours of the node at `position` that were not reached before.
  std::size_t append_neighbours(std::uint32_t* nodes, std::size_t position, std::size_t size) {
    const std::size_t first = size;
    for (const std::uint32_t node : graph_.neighbours_of(nodes[position])) {
      // No branch here, since a processor cannot predict which neighbours are new.
      nodes[size] = node;
      size += static_cast<std::size_t>(searched_[node] < search_);
      searched_[node] = std::max(searched_[node], search_);
    }
    std::sort(nodes + first, nodes + size, [&](auto a, auto b) { return before(a, b); });
    return size;
  }

  const Graph& graph_;
  std::vector<std::uint32_t> degrees_;
  std::vector<std::uint32_t> searched_;  ///< last search to reach a node, from 1; 0: none; kPlaced: in the order
  std::uint32_t search_ = 0;
  Levels best_, next_;
};

}  // namespace

std::vector<std::uint32_t> reverse_cuthill_mckee(const Graph& graph) { return CuthillMckee(graph).reversed_order(); }

std::vector<std::int64_t> reverse_cuthill_mckee(std::span<const std::int64_t> offsets,
                                                std::span<const std::int64_t> column_indices) {
  const std::int64_t nodes = std::max<std::int64_t>(std::ssize(offsets) - 1, 0);
  check_size("reverse_cuthill_mckee", "nodes", nodes);
  check_csr("reverse_cuthill_mckee", {nodes, nodes}, offsets, column_indices);
  Graph graph;
  graph.offsets.assign(offsets.begin(), offsets.end());
  graph.neighbours.assign(column_indices.begin(), column_indices.end());
  const std::vector<std::uint32_t> order = reverse_cuthill_mckee(graph);
  return {order.begin(), order.end()};
}

}  // namespace flashmask
