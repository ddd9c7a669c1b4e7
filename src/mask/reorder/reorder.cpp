#include "flashmask/reorder.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "flashmask/schedule.h"
#include "mask/check.h"
#include "mask/reorder/cuthill_mckee.h"
#include "mask/reorder/graph.h"
#include "mask/to_bits.h"
#include "schedule/tile_shape.h"

namespace flashmask {
namespace {

/// Partial cells, of 512 bytes each, that a mask of intervals may become.
constexpr std::int64_t kMostPartialCells = std::int64_t{1} << 21;

constexpr int kSweeps = 4;

/// Which graph an order was made on.
enum class Sides : std::uint8_t { none, one, two };

/// Rows and columns of one batch entry in a new order; empty: as they are.
struct Order {
  Sides sides = Sides::none;
  std::vector<std::uint32_t> rows, columns;
  std::int64_t tiles = 0;  ///< active ones, of all heads taken together
};

/// Whether an order earns its keep. Gathering the rows of a tile of tokens takes about as long as computing one tile,
/// and tiles become emptier and cheaper the more of them a mask has: a tenth of them may come to nothing.
bool worthwhile(std::int64_t before, std::int64_t after, std::int64_t gathered_tiles) {
  const std::int64_t saved = before - after;
  return saved > gathered_tiles && saved > before / 10;
}

std::int64_t count_tiles(const Graph& visible, std::int64_t columns, const Order& order, TileShape tile) {
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

Order one_sided(const Graph& symmetric) {
  const std::vector<std::uint32_t> order = reverse_cuthill_mckee(symmetric);
  return {Sides::one, order, order, 0};
}

Order two_sided(const Graph& rows, const Graph& columns) {
  Order order;
  order.sides = Sides::two;
  const auto first_column = static_cast<std::uint32_t>(rows.nodes());
  for (const std::uint32_t node : reverse_cuthill_mckee(bipartite(rows, columns))) {
    if (node < first_column) {
      order.rows.push_back(node);
    } else {
      order.columns.push_back(node - first_column);
    }
  }
  return order;
}

/// Nodes by the mean position of those they are joined to; nodes joined to none come last.
std::vector<std::uint32_t> by_mean_position(const Graph& graph, const std::vector<std::uint32_t>& joined) {
  std::vector<double> position(joined.size());
  for (std::size_t i = 0; i < joined.size(); ++i) position[joined[i]] = static_cast<double>(i);
  std::vector<std::pair<double, std::uint32_t>> nodes;
  for (std::int64_t node = 0; node < graph.nodes(); ++node) {
    const auto neighbours = graph.neighbours_of(node);
    double sum = 0;
    for (const std::uint32_t neighbour : neighbours) sum += position[neighbour];
    if (neighbours.empty()) sum = std::numeric_limits<double>::infinity();
    nodes.emplace_back(sum / static_cast<double>(neighbours.size()), static_cast<std::uint32_t>(node));
  }
  std::sort(nodes.begin(), nodes.end());
  std::vector<std::uint32_t> order;
  for (const auto& node : nodes) order.push_back(node.second);
  return order;
}

/// Sorts either side by where the other one is (the barycentre method of Sugiyama, Tagawa and Toda 1981), a few times.
/// Straightens what a thinned graph left ragged, above all the diagonal of causal documents.
Order swept(Order order, const Graph& rows, const Graph& columns) {
  for (int sweep = 0; sweep < kSweeps; ++sweep) {
    order.rows = by_mean_position(rows, order.columns);
    order.columns = by_mean_position(columns, order.rows);
  }
  return order;
}

/// The best order for one batch entry, or the one it has.
Order find_order(const BitMask& mask, std::int64_t batch, TileShape tile, Executor& executor) {
  const MaskShape& shape = mask.shape();
  const Graph rows = visible_columns(mask, batch, executor);
  const Graph columns = transposed(rows, shape.columns);
  std::vector<Order> candidates;
  if (rows == columns) {
    candidates.push_back(one_sided(rows));
  } else {
    if (shape.rows == shape.columns) candidates.push_back(one_sided(united(rows, columns)));
    candidates.push_back(two_sided(rows, columns));
    candidates.push_back(swept(candidates.back(), rows, columns));
  }
  Order best;
  best.tiles = count_tiles(rows, shape.columns, best, tile);
  const std::int64_t before = best.tiles;
  for (Order& candidate : candidates) {
    candidate.tiles = count_tiles(rows, shape.columns, candidate, tile);
    const bool worth = worthwhile(before, candidate.tiles, row_tiles(shape, tile) + column_tiles(shape, tile));
    if (worth && candidate.tiles < best.tiles) best = std::move(candidate);
  }
  return best;
}

/// One order a batch entry, found side by side where there are several.
std::vector<Order> find_orders(const BitMask& mask, TileShape tile, Executor& executor) {
  std::vector<Order> orders(static_cast<std::size_t>(mask.shape().batch));
  Executor& inner = orders.size() > 1 ? serial_executor() : executor;
  executor.run(static_cast<int>(orders.size()),
               [&](int batch) { orders[static_cast<std::size_t>(batch)] = find_order(mask, batch, tile, inner); });
  return orders;
}

/// Appends a batch entry's permutation of `length` tokens.
void append(std::vector<std::int64_t>& all, const std::vector<std::uint32_t>& order, std::int64_t length) {
  const std::size_t begin = all.size();
  all.resize(begin + static_cast<std::size_t>(length));
  const auto first = all.begin() + static_cast<std::ptrdiff_t>(begin);
  if (order.empty()) {
    std::iota(first, all.end(), 0);
  } else {
    std::copy(order.begin(), order.end(), first);
  }
}

/// How the orders were made, for people.
std::string method(const std::vector<Order>& orders) {
  const auto count = [&](Sides sides) {
    return std::count_if(orders.begin(), orders.end(), [&](const Order& order) { return order.sides == sides; });
  };
  const std::int64_t one = count(Sides::one);
  const std::int64_t two = count(Sides::two);
  const std::string symmetrised = "on the symmetrised mask";
  const std::string both = "on the bipartite graph of rows and columns";
  const std::string name = "reverse Cuthill-McKee ";
  if (one == std::ssize(orders)) return name + symmetrised;
  if (two == std::ssize(orders)) return name + both;
  return name + symmetrised + " for " + grouped(one) + " and " + both + " for " + grouped(two) + " of " +
         grouped(std::ssize(orders)) + " batch entries";
}

/// Says no before bits are made; "" where it takes a closer look.
std::string refusal_at_once(const LoweredMask& mask, const TileCounts& before, std::int64_t gathered_tiles,
                            Executor& executor) {
  // A full tile's scores fill a tile in any order.
  if (!worthwhile(before.active(), before.full, gathered_tiles)) {
    return grouped(before.full) + " of " + grouped(before.active()) +
           " active tiles are full, and fewer of the others than gathering would cost";
  }
  if (mask.form() == MaskForm::bits) return "";
  const std::int64_t cells = schedule(mask, {}, Visit::active, executor).counts().partial;
  if (cells <= kMostPartialCells) return "";
  return "as bits it would have " + grouped(cells) + " partial cells of 512 bytes; at most " +
         grouped(kMostPartialCells) + " are looked at";
}

/// The mask in these orders.
Reordering in_orders(const Mask& mask, const std::vector<Order>& orders, TileShape tile, Executor& executor) {
  Reordering result{mask, {}, {}, tile, 0, 0, true, method(orders)};
  for (const Order& order : orders) {
    append(result.rows, order.rows, mask.shape().rows);
    append(result.columns, order.columns, mask.shape().columns);
  }
  result.mask = permute(mask, result.rows, result.columns, executor);
  result.tiles_after = schedule(result.mask.lowered(), tile, Visit::active, executor).counts().active();
  return result;
}

}  // namespace

Reordering reorder(const Mask& mask, TileShape tile, Executor& executor) {
  require_tile_shape("reorder", tile);
  const MaskShape& shape = mask.shape();
  const std::int64_t gathered_tiles = shape.batch * shape.heads * (row_tiles(shape, tile) + column_tiles(shape, tile));
  const TileCounts before = schedule(mask.lowered(), tile, Visit::active, executor).counts();
  const auto decline = [&](const std::string& why) {
    Reordering kept{mask, {}, {}, tile, before.active(), before.active(), false, why};
    for (std::int64_t batch = 0; batch < shape.batch; ++batch) {
      append(kept.rows, {}, shape.rows);
      append(kept.columns, {}, shape.columns);
    }
    return kept;
  };
  const std::string refusal = refusal_at_once(mask.lowered(), before, gathered_tiles, executor);
  if (!refusal.empty()) return decline(refusal);

  const std::string found_none =
      "no order was found that saves a tenth of the active tiles and more than gathering costs";
  const Mask bits(lower(mask, MaskForm::bits, executor), mask.description(), mask.misfit());
  const std::vector<Order> orders = find_orders(bits.lowered().bits(), tile, executor);
  if (std::ranges::all_of(orders, [](const Order& order) { return order.sides == Sides::none; }))
    return decline(found_none);
  Reordering made = in_orders(bits, orders, tile, executor);
  if (!worthwhile(before.active(), made.tiles_after, gathered_tiles)) return decline(found_none);
  made.tiles_before = before.active();
  made.why += ": " + grouped(made.tiles_after) + " of " + grouped(made.tiles_before) + " active tiles are left";
  return made;
}

}  // namespace flashmask
