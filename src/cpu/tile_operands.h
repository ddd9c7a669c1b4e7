// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cpu/kernel_tasks.h"
#include "cpu/register_tile.h"
#include "cpu/tile_memory.h"

/// The rows of k or v that a tile of scores meets, as products read them: where they lie, or copied.
namespace flashmask::cpu {

/// Where a tile's rows go if they have to be copied, and the rows that are needed.
template <class Unit>
struct TileCopy {
  Unit* to;
  std::int64_t stride;
  int begin, end;
};

/// Returns the keys of a tile for products along their rows. They are copied where they are of another type, are not
/// made of aligned whole units, or end inside the tile.
template <class Isa, int Columns>
FLASHMASK_INLINE Broadcast<typename Isa::Unit> key_operand(const TileCopies<Isa>& copies, const Rows& k,
                                                           const TileBounds& tile, int width,
                                                           const TileCopy<typename Isa::Unit>& copy) {
  using Unit = typename Isa::Unit;
  if (tile.columns == Columns) {
    const std::byte* const keys = copies.row(k, tile.column_token);
    const bool whole_units = width % Isa::step == 0 && k.stride % Isa::step == 0 &&
                             reinterpret_cast<std::uintptr_t>(keys) % alignof(Unit) == 0;
    if (Isa::step == 1 ? copies.units : whole_units)
      return {reinterpret_cast<const Unit*>(keys), k.stride / Isa::step, 1};
  }
  copies.load_rows(copy.to, copy.stride, k, tile.column_token, copy.begin, copy.end, tile.columns, width);
  return {copy.to, copy.stride, 1};
}

/// Returns the values of a tile for products over its rows. They are copied where they are of another type, are not
/// whole vectors, end inside the tile, or where their rows share cache sets.
template <class Isa, int Columns>
FLASHMASK_INLINE Panel<typename Isa::Unit> value_operand(const TileCopies<Isa>& copies, const Rows& v,
                                                         const TileBounds& tile, int width,
                                                         const TileCopy<typename Isa::Unit>& copy) {
  using Unit = typename Isa::Unit;
  const bool whole = tile.columns == Columns && width % Isa::lanes == 0;
  if (copies.units && whole && spread_over_sets(v.stride * static_cast<std::int64_t>(sizeof(Unit))))
    return {row_of<Unit>(v, tile.column_token), v.stride};
  copies.load_row_units(copy.to, copy.stride, v, tile.column_token, copy.begin, copy.end, tile.columns, width);
  return {copy.to, copy.stride};
}

}  // namespace flashmask::cpu
