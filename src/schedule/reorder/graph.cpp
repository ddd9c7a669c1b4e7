// SPDX-License-Identifier: Apache-2.0
#include "schedule/reorder/graph.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <functional>
#include <iterator>
#include <numeric>
#include <utility>

#include "base/bodies.h"
#include "base/changed_tiles.h"
#include "base/piece_count.h"
#include "schedule/reorder/row_words.h"

namespace flashmask {
namespace {

/// The most rows in which visible scores are counted.
constexpr std::int64_t kCountedRows = 512;
/// A node is a hub if its degree is more than this many times the mean.
constexpr std::int64_t kHubDegrees = 8;

/// Hashes a key to a number that looks random: the output function of SplitMix64 (Steele, Lea, Flood 2014).
std::uint64_t mixed(std::uint64_t key) {
  key = (key ^ key >> 30) * 0xbf58476d1ce4e5b9ULL;
  key = (key ^ key >> 27) * 0x94d049bb133111ebULL;
  return key ^ key >> 31;
}

/// Keeps one in 2^halvings of the bits of a word, chosen by a hash of `key`.
std::uint64_t thinned(std::uint64_t word, std::int64_t key, int halvings) {
  for (int i = 0; i < halvings && word != 0; ++i)
    word &= mixed(static_cast<std::uint64_t>(key) * 64 + static_cast<std::uint64_t>(i) + 1);
  return word;
}

/// Reads the rows of a batch entry, one after another.
class RowReader {
 public:
  RowReader(const BitMask& mask, std::int64_t batch, int halvings)
      : mask_(mask),
        batch_(batch),
        halvings_(halvings),
        words_(static_cast<std::size_t>(mask.cell_columns())),
        seen_(mask.cell_columns()) {}

  void append(std::int64_t row, Graph& graph) {
    for (std::int64_t head = 0; head < mask_.shape().heads; ++head) {
      for_each_word(mask_, batch_, head, row, [&](std::int64_t cell, std::uint64_t word) {
        words_[static_cast<std::size_t>(cell)] |= word;
        seen_.insert(static_cast<std::uint32_t>(cell));
      });
    }
    seen_.drain([&](std::size_t index) {
      const auto cell = static_cast<std::int64_t>(index);
      const std::uint64_t word = std::exchange(words_[index], 0);
      for_each_column(cell, thinned(word, row * mask_.cell_columns() + cell, halvings_),
                      [&](std::int64_t column) { graph.neighbours.push_back(static_cast<std::uint32_t>(column)); });
    });
    graph.offsets.push_back(static_cast<std::int64_t>(graph.neighbours.size()));
  }

 private:
  const BitMask& mask_;
  std::int64_t batch_;
  int halvings_;
  std::vector<std::uint64_t> words_;  ///< [cells], the OR of all heads
  ChangedTiles seen_;                 ///< which of them are not 0
};

void append(Graph& graph, const Graph& next) {
  const std::int64_t base = graph.offsets.back();
  for (std::size_t i = 1; i < next.offsets.size(); ++i) graph.offsets.push_back(base + next.offsets[i]);
  graph.neighbours.insert(graph.neighbours.end(), next.neighbours.begin(), next.neighbours.end());
}

}  // namespace

double visible_per_row(const BitMask& mask, std::int64_t batch) {
  const std::int64_t rows = mask.shape().rows;
  const std::int64_t counted = std::min(rows, kCountedRows);
  std::int64_t most = 0;
  for (std::int64_t head = 0; head < mask.shape().heads; ++head) {
    std::int64_t visible = 0;
    for (std::int64_t i = 0; i < counted; ++i) {
      // One row from each of `counted` equal parts, at a random place in it, since masks repeat.
      const std::int64_t begin = rows * i / counted;
      const auto choices = static_cast<std::uint64_t>(rows * (i + 1) / counted - begin);
      const std::int64_t row = begin + static_cast<std::int64_t>(mixed(static_cast<std::uint64_t>(i) + 1) % choices);
      for_each_word(mask, batch, head, row, [&](std::int64_t, std::uint64_t word) { visible += std::popcount(word); });
    }
    most = std::max(most, visible);
  }
  return counted == 0 ? 0 : static_cast<double>(most) / static_cast<double>(counted);
}

Graph visible_columns(const BitMask& mask, std::int64_t batch, int halvings, Executor& executor) {
  const std::int64_t rows = mask.shape().rows;
  const std::int64_t number = piece_count(executor, mask.cell_rows());
  std::vector<Graph> pieces(static_cast<std::size_t>(number));
  run_bodies(executor, static_cast<int>(number), [&](int i) {
    RowReader reader(mask, batch, halvings);
    for (std::int64_t row = rows * i / number; row < rows * (i + 1) / number; ++row)
      reader.append(row, pieces[static_cast<std::size_t>(i)]);
  });
  if (number == 1) return std::move(pieces[0]);
  std::size_t neighbours = 0;
  for (const Graph& piece : pieces) neighbours += piece.neighbours.size();
  Graph graph;
  graph.offsets.reserve(static_cast<std::size_t>(rows) + 1);
  graph.neighbours.reserve(neighbours);
  for (const Graph& piece : pieces) append(graph, piece);
  return graph;
}

Graph transposed(const Graph& graph, std::int64_t nodes) {
  Graph other;
  other.offsets.resize(static_cast<std::size_t>(nodes) + 1);
  other.neighbours.resize(graph.neighbours.size());
  for (const std::uint32_t node : graph.neighbours) ++other.offsets[std::size_t{node} + 1];
  std::partial_sum(other.offsets.begin(), other.offsets.end(), other.offsets.begin());
  std::vector<std::int64_t> next = other.offsets;
  for (std::int64_t node = 0; node < graph.nodes(); ++node) {
    for (const std::uint32_t target : graph.neighbours_of(node))
      other.neighbours[static_cast<std::size_t>(next[target]++)] = static_cast<std::uint32_t>(node);
  }
  return other;
}

Graph united(const Graph& a, const Graph& b) {
  Graph both;
  both.offsets.reserve(a.offsets.size());
  both.neighbours.reserve(a.neighbours.size() + b.neighbours.size());
  for (std::int64_t node = 0; node < a.nodes(); ++node) {
    std::ranges::set_union(a.neighbours_of(node), b.neighbours_of(node), std::back_inserter(both.neighbours));
    both.offsets.push_back(static_cast<std::int64_t>(both.neighbours.size()));
  }
  return both;
}

Graph bipartite(const Graph& rows, const Graph& columns) {
  Graph graph = rows;
  for (std::uint32_t& column : graph.neighbours) column += static_cast<std::uint32_t>(rows.nodes());
  append(graph, columns);
  return graph;
}

std::optional<Graph> without_hubs(const Graph& graph) {
  const std::int64_t mean = std::ssize(graph.neighbours) / std::max<std::int64_t>(graph.nodes(), 1) + 1;
  std::vector<bool> hub(static_cast<std::size_t>(graph.nodes()));
  for (std::size_t node = 0; node < hub.size(); ++node)
    hub[node] = graph.offsets[node + 1] - graph.offsets[node] > kHubDegrees * mean;
  if (std::ranges::none_of(hub, std::identity())) return std::nullopt;
  Graph rest;
  for (std::int64_t node = 0; node < graph.nodes(); ++node) {
    if (!hub[static_cast<std::size_t>(node)]) {
      for (const std::uint32_t neighbour : graph.neighbours_of(node))
        if (!hub[neighbour]) rest.neighbours.push_back(neighbour);
    }
    rest.offsets.push_back(std::ssize(rest.neighbours));
  }
  return rest;
}

}  // namespace flashmask
