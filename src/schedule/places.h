// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "base/units.h"
#include "flashmask/executor.h"
#include "flashmask/mask.h"
#include "flashmask/tile.h"

namespace flashmask {

/// The units of one axis: a list per batch entry of the mask.
struct UnitLists {
  std::vector<std::int64_t> offsets;  ///< [entries + 1]
  std::vector<Unit> units;
  std::int64_t size = 0;    ///< places of a unit
  std::int64_t tokens = 0;  ///< of the axis

  /// Returns the units of a batch entry; a mask of one entry lends them to every entry.
  PlacedTokens of(std::int64_t batch) const;
  /// Returns how many units the entry has that has most.
  std::int64_t most() const;
  /// Returns [entries, most()]: the units, and behind them empty ones past the last token.
  std::vector<Unit> padded() const;
  /// Returns [entries, most() · size]: the token at each place; -1 in padding.
  std::vector<std::int64_t> order() const;
};

/// A mask on the grid of places, for tiles that begin where islands begin. Places of padding columns are masked, and
/// whether padding rows see columns means nothing.
struct Places {
  UnitLists rows, columns;
  LoweredMask mask;
};

/// Returns the places of a unit that whole tiles make up: 128 on both sides, or 192 where tiles have sides of 96 or
/// 192. Throws Status::invalid_argument where neither is made up of whole tiles.
TileShape unit_of(TileShape tile);

/// Cuts rows and columns into units of at most `unit.rows` and `unit.columns` tokens, anew at every island, and moves
/// the mask to their places. Units begin at multiples of `multiple` tokens only: throws Status::unsupported at the
/// first island with sums that does not.
Places places(const LoweredMask& mask, TileShape unit, std::int64_t multiple, Executor& executor);

}  // namespace flashmask
