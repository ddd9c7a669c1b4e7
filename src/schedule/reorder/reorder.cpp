// SPDX-License-Identifier: Apache-2.0
#include "flashmask/reorder.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/bodies.h"
#include "base/checks.h"
#include "base/tile_shape.h"
#include "flashmask/schedule.h"
#include "schedule/reorder/permute.h"
#include "schedule/reorder/token_order.h"

namespace flashmask {
namespace {

/// The most partial cells, of 512 bytes each, that a mask of intervals may have as bits.
constexpr std::int64_t kMostPartialCells = std::int64_t{1} << 21;

/// Finds one order for each batch entry, several in parallel.
std::vector<TokenOrder> find_orders(const BitMask& mask, TileShape tile, Executor& executor) {
  std::vector<TokenOrder> orders(static_cast<std::size_t>(mask.shape().batch));
  Executor& inner = orders.size() > 1 ? serial_executor() : executor;
  run_bodies(executor, static_cast<int>(orders.size()),
             [&](int batch) { orders[static_cast<std::size_t>(batch)] = find_order(mask, batch, tile, inner); });
  return orders;
}

/// Whether all orders together save more than gathering costs: if one batch entry is reordered, all are gathered.
bool worth_gathering(const std::vector<TokenOrder>& orders, const MaskShape& shape) {
  std::int64_t saved = 0;
  for (const TokenOrder& order : orders) saved += order.saved;
  return worthwhile(0, saved, shape.batch * (shape.rows + shape.columns));
}

/// Appends a batch entry's permutation of `length` tokens; an empty order changes nothing.
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

/// Returns how the orders were made, as text for people.
std::string method(const std::vector<TokenOrder>& orders) {
  const auto count = [&](Sides sides) {
    return std::count_if(orders.begin(), orders.end(), [&](const TokenOrder& order) { return order.sides == sides; });
  };
  const std::int64_t one = count(Sides::one);
  const std::int64_t two = count(Sides::two);
  const std::string symmetrised = "on the symmetrised mask";
  const std::string bipartite = "on the bipartite graph of rows and columns";
  const std::string name = "reverse Cuthill-McKee ";
  if (one == std::ssize(orders)) return name + symmetrised;
  if (two == std::ssize(orders)) return name + bipartite;
  return name + symmetrised + " for " + grouped(one) + " and " + bipartite + " for " + grouped(two) + " of " +
         grouped(std::ssize(orders)) + " batch entries";
}

/// Returns why not to reorder, from tile counts alone, before bits are made; "" where only a search can tell.
std::string refusal_at_once(const LoweredMask& mask, const TileCounts& before, Executor& executor) {
  // The scores of full tiles need as many tiles in any order.
  if (before.partial <= before.active() / 5)
    return grouped(before.full) + " of " + grouped(before.active()) + " active tiles are full";
  if (mask.form() == MaskForm::bits) return "";
  const std::int64_t cells = schedule(mask, {}, Visit::active, executor).counts().partial;
  if (cells <= kMostPartialCells) return "";
  return "as bits it would have " + grouped(cells) + " partial cells of 512 bytes; at most " +
         grouped(kMostPartialCells) + " are looked at";
}

/// Returns the mask in these orders.
Reordering in_orders(const Mask& mask, const std::vector<TokenOrder>& orders, TileShape tile, Executor& executor) {
  Reordering result{mask, {}, {}, tile, 0, 0, true, method(orders)};
  std::vector<std::shared_ptr<const Graph>> visible;
  for (const TokenOrder& order : orders) {
    append(result.rows, order.rows, mask.shape().rows);
    append(result.columns, order.columns, mask.shape().columns);
    visible.push_back(order.visible);
  }
  result.mask = permute(mask, result.rows, result.columns, visible, executor);
  result.tiles_after = schedule(result.mask.lowered(), tile, Visit::active, executor).counts().active();
  return result;
}

}  // namespace

Reordering reorder(const Mask& mask, TileShape tile, Executor& executor) {
  require_tile_shape("reorder", tile);
  const MaskShape& shape = mask.shape();
  const TileCounts before = schedule(mask.lowered(), tile, Visit::active, executor).counts();
  const auto decline = [&](const std::string& why) {
    Reordering kept{mask, {}, {}, tile, before.active(), before.active(), false, why};
    for (std::int64_t batch = 0; batch < shape.batch; ++batch) {
      append(kept.rows, {}, shape.rows);
      append(kept.columns, {}, shape.columns);
    }
    return kept;
  };
  const std::string refusal = refusal_at_once(mask.lowered(), before, executor);
  if (!refusal.empty()) return decline(refusal);

  const std::string no_gain = "no order was found that saves a fifth of the work and more than gathering costs";
  const Mask bits(lower(mask, MaskForm::bits, executor), mask.description(), mask.misfit());
  const std::vector<TokenOrder> orders = find_orders(bits.lowered().bits(), tile, executor);
  if (!worth_gathering(orders, shape)) return decline(no_gain);
  Reordering made = in_orders(bits, orders, tile, executor);
  if (made.tiles_after >= before.active()) return decline(no_gain);
  made.tiles_before = before.active();
  made.why += ": " + grouped(made.tiles_after) + " of " + grouped(made.tiles_before) + " active tiles are left";
  return made;
}

}  // namespace flashmask
