// SPDX-License-Identifier: Apache-2.0
#include "schedule/reorder/token_order.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <optional>
#include <utility>

#include "schedule/reorder/cuthill_mckee.h"
#include "schedule/reorder/graph.h"

namespace flashmask {
namespace {

constexpr TileShape kBlock{32, 8};
constexpr std::int64_t kScoresPerBlock = 256;
/// Tokens whose rows of q, k, v, o and gradients are gathered and scattered in the time that one block takes.
constexpr std::int64_t kTokensPerBlock = 6;
constexpr int kSweeps = 4;

/// Mean visible scores per row to which a dense mask is thinned: few to see whether any order helps, then more to find
/// that order.
constexpr double kFirstLook = 32;
constexpr double kCloseLook = 256;
/// The most visible scores of all rows together; each takes four bytes, a few times over.
constexpr double kMostScores = 1 << 24;

/// Returns how often to halve `per_row`, the mean visible scores per row, until it is at most `enough`.
int halvings_of(double per_row, double enough) {
  return per_row <= enough ? 0 : static_cast<int>(std::ceil(std::log2(per_row / enough)));
}

/// Counts the active tiles of a batch entry, all heads taken together.
std::int64_t count_tiles(const Graph& visible, std::int64_t columns, const TokenOrder& order, TileShape tile) {
  std::vector<std::uint32_t> tile_of(static_cast<std::size_t>(columns));
  for (std::size_t i = 0; i < tile_of.size(); ++i) {
    const std::size_t column = order.columns.empty() ? i : order.columns[i];
    tile_of[column] = static_cast<std::uint32_t>(i / static_cast<std::size_t>(tile.columns));
  }
  std::vector<std::int64_t> last_row_tile(tile_of.size() / static_cast<std::size_t>(tile.columns) + 1, -1);
  std::int64_t tiles = 0;
  for (std::int64_t i = 0; i < visible.nodes(); ++i) {
    const std::int64_t row = order.rows.empty() ? i : std::int64_t{order.rows[static_cast<std::size_t>(i)]};
    const std::int64_t row_tile = i / tile.rows;
    for (const std::uint32_t column : visible.neighbours_of(row))
      tiles += static_cast<std::int64_t>(std::exchange(last_row_tile[tile_of[column]], row_tile) != row_tile);
  }
  return tiles;
}

/// Returns the work in blocks: one for each block that holds a visible score, and one more for each active tile. A mask
/// so dense that it was thinned is taken to fill its active tiles.
std::int64_t work(const Graph& visible, std::int64_t columns, const TokenOrder& order, TileShape tile, bool thinned) {
  const std::int64_t tiles = count_tiles(visible, columns, order, tile);
  if (thinned) return tiles * (1 + std::int64_t{tile.rows} * tile.columns / kScoresPerBlock);
  return tiles + count_tiles(visible, columns, order, kBlock);
}

TokenOrder one_sided(const Graph& tokens) {
  const std::vector<std::uint32_t> order = reverse_cuthill_mckee(tokens);
  return {Sides::one, order, order, 0, nullptr};
}

TokenOrder two_sided(const Graph& rows_and_columns, std::int64_t rows) {
  TokenOrder order;
  order.sides = Sides::two;
  const auto first_column = static_cast<std::uint32_t>(rows);
  for (const std::uint32_t node : reverse_cuthill_mckee(rows_and_columns)) {
    if (node < first_column) {
      order.rows.push_back(node);
    } else {
      order.columns.push_back(node - first_column);
    }
  }
  return order;
}

/// Adds the orders that make_order finds on a graph and, if it has hubs, on the graph without them: a token that sees
/// all others brings every distance down to 2, which hides any order.
template <class MakeOrder>
void add_orders(const Graph& graph, const MakeOrder& make_order, std::vector<TokenOrder>& orders) {
  if (const std::optional<Graph> rest = without_hubs(graph)) orders.push_back(make_order(*rest));
  orders.push_back(make_order(graph));
}

/// Sorts nodes by the mean position of their neighbours; nodes without neighbours come last.
std::vector<std::uint32_t> by_mean_position(const Graph& graph, const std::vector<std::uint32_t>& joined) {
  std::vector<double> position(joined.size());
  for (std::size_t i = 0; i < joined.size(); ++i) position[joined[i]] = static_cast<double>(i);
  std::vector<std::pair<double, std::uint32_t>> nodes;
  nodes.reserve(static_cast<std::size_t>(graph.nodes()));
  for (std::int64_t node = 0; node < graph.nodes(); ++node) {
    const auto neighbours = graph.neighbours_of(node);
    double sum = neighbours.empty() ? std::numeric_limits<double>::infinity() : 0;
    for (const std::uint32_t neighbour : neighbours) sum += position[neighbour];
    nodes.emplace_back(sum / static_cast<double>(neighbours.size()), static_cast<std::uint32_t>(node));
  }
  std::sort(nodes.begin(), nodes.end());
  std::vector<std::uint32_t> order;
  order.reserve(nodes.size());
  for (const auto& node : nodes) order.push_back(node.second);
  return order;
}

/// Sorts each side by the positions of the other, a few times (barycentre method of Sugiyama, Tagawa and Toda 1981).
/// Straightens what a thinned graph left ragged, above all the diagonal of causal documents.
TokenOrder swept(TokenOrder order, const Graph& rows, const Graph& columns) {
  for (int sweep = 0; sweep < kSweeps; ++sweep) {
    order.rows = by_mean_position(rows, order.columns);
    order.columns = by_mean_position(columns, order.rows);
  }
  return order;
}

std::vector<TokenOrder> candidates(const Graph& rows, const Graph& columns) {
  std::vector<TokenOrder> orders;
  if (rows == columns) {
    add_orders(rows, one_sided, orders);
    return orders;
  }
  if (rows.nodes() == columns.nodes()) add_orders(united(rows, columns), one_sided, orders);
  const auto split = [&](const Graph& graph) { return two_sided(graph, rows.nodes()); };
  add_orders(bipartite(rows, columns), split, orders);
  orders.push_back(swept(orders.back(), rows, columns));
  return orders;
}

/// Returns the best order found from one in 2^halvings of the scores, or none if it is not worthwhile.
TokenOrder best_order(const BitMask& mask, std::int64_t batch, TileShape tile, int halvings, Executor& executor) {
  const MaskShape& shape = mask.shape();
  Graph rows = visible_columns(mask, batch, halvings, executor);
  const Graph columns = transposed(rows, shape.columns);
  TokenOrder best;
  const std::int64_t before = work(rows, shape.columns, best, tile, halvings > 0);
  for (TokenOrder& order : candidates(rows, columns)) {
    order.saved = before - work(rows, shape.columns, order, tile, halvings > 0);
    if (order.saved > best.saved) best = std::move(order);
  }
  if (!worthwhile(before, best.saved, shape.rows + shape.columns)) return {};
  if (halvings == 0 && shape.heads == 1) best.visible = std::make_shared<const Graph>(std::move(rows));
  return best;
}

}  // namespace

bool worthwhile(std::int64_t before, std::int64_t saved, std::int64_t tokens) {
  return saved > before / 5 && saved > tokens / kTokensPerBlock;
}

TokenOrder find_order(const BitMask& mask, std::int64_t batch, TileShape tile, Executor& executor) {
  const double per_row = visible_per_row(mask, batch);
  const double enough = std::min(kCloseLook, kMostScores / static_cast<double>(mask.shape().rows));
  const int halvings = halvings_of(per_row, enough);
  const int more_halvings = halvings_of(per_row, std::min(kFirstLook, enough));
  if (halvings > 0 && more_halvings > halvings) {
    TokenOrder first = best_order(mask, batch, tile, more_halvings, executor);
    if (first.sides == Sides::none) return first;
  }
  return best_order(mask, batch, tile, halvings, executor);
}

}  // namespace flashmask
