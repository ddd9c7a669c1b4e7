// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <variant>
#include <vector>

#include "flashmask/device_plan.h"
#include "flashmask/reorder.h"
#include "flashmask/tile.h"

namespace flashmask {

/// What 32 neighbouring cells of a row of cells are.
struct alignas(16) CellEntry {
  std::uint32_t stored;  ///< bit i: the words of cell i are there
  std::uint32_t full;    ///< bit i: cell i is visible throughout; in neither: it is masked
  std::uint32_t first;   ///< the number of the first stored one; the others follow
  std::uint32_t unused;
};

/// A mask as bits: cells of 64 × 64 scores, read through cuda/common/bit_cells.cuh.
struct DeviceBits {
  static constexpr int kCellWords = 256;  ///< 64 × 64 bits by rows, then the same by columns
  /// Cells behind those stored, which all cells share that are masked throughout, visible throughout, and the same at
  /// the last columns: what lies past the end is masked.
  enum Shared : std::uint32_t { kSkipped, kFull, kFullAtEnd, kShared };

  const std::uint32_t* words;  ///< [stored + kShared, kCellWords]
  const CellEntry* index;  ///< [batch, heads, rows of cells, ⌈columns of cells / 32⌉]; nullptr: all cells are stored
  std::uint32_t stored;
};

/// The mask as kernels of a GPU read it, in the memory of the device: one of the two forms, the other is null.
struct DeviceMask {
  MaskShape shape;
  const std::int32_t* intervals[4];  ///< [batch, heads, columns]: first begin, first end, second begin, second end
  DeviceBits bits;
};

/// Between which column tiles the row tiles of a map are visited, whatever the batch entry and head, in the memory of
/// the device.
struct DeviceRowSpans {
  const std::int32_t* from = nullptr;   ///< where those begin that visit this row tile or a later one
  const std::int32_t* until = nullptr;  ///< where those end that visit this row tile or an earlier one
};

/// Along which side of the tiles a map has its lists: row by row, or column by column.
enum class MapSide : std::uint8_t { rows, columns };

/// A map of the tiles that are visited, as a kernel of a GPU asks for it (cuda/plan/tile_map.h).
struct MapRequest {
  TileShape tile;
  MapSide side = MapSide::rows;
  bool counted = false;        ///< with how many tiles it visits
  bool spans = false;          ///< with DeviceRowSpans; of maps by columns
  std::size_t most_bytes = 0;  ///< beyond which the kernel does without it; 0: it needs it at any size

  bool is_same_map(const MapRequest& other) const { return tile == other.tile && side == other.side; }
};

/// What became of a request, in the memory of the device. No pointers: the map would have been too large.
struct DeviceMap {
  TileShape tile;
  MapSide side = MapSide::rows;
  const std::uint32_t* words = nullptr;
  const std::uint32_t* squares = nullptr;  ///< of a map in squares (cuda/plan/map_squares.h); null: it is flat
  const std::uint32_t* visited = nullptr;  ///< how many tiles, where counted: nobody waits to read it here
  DeviceRowSpans spans = {};               ///< null without rows
};

/// What kernels of a GPU read.
struct DevicePlan {
  DeviceMask mask;
  std::vector<DeviceMap> maps;  ///< each that the plan's kernels asked for, once
  /// [batch of the mask, tokens]: token i of the kernels is token order[i] of the caller; null where they agree.
  const std::int64_t* row_order;
  const std::int64_t* column_order;

  /// nullptr: nobody asked for it.
  const DeviceMap* find(TileShape tile, MapSide side) const;
  /// One that was asked for.
  const DeviceMap& map(TileShape tile, MapSide side) const;
};

/// Each map once, with all that is asked of it.
std::vector<MapRequest> merged(const std::vector<MapRequest>& requests);

/// A mask on the host; `reordering` says what became of the caller's order of tokens, if anything.
struct HostMask {
  LoweredMask lowered;
  const Reordering* reordering = nullptr;
};

/// What a plan is made from.
using DeviceSource =
    std::variant<const HostMask*, const DeviceRowIndices*, const DeviceDenseMask*, const DevicePackedMask*>;

/// How maps of intervals are kept. Tests lower it.
struct MapLimits {
  /// Of a map's words of one batch entry and head of the mask: with more it is made in squares.
  std::size_t flat_bytes = std::size_t{8} << 20;
  /// How many squares have words of their own, for each 32 row tiles and for each 32 column tiles.
  int squares_of_strip = 8;
};

/// With maps as merged() gives them.
std::size_t device_plan_bytes(const DeviceSource& source, const std::vector<MapRequest>& maps,
                              const MapLimits& limits = {});

/// The place has enough memory.
DevicePlan make_device_plan(const DeviceSource& source, const std::vector<MapRequest>& maps, Device device,
                            const PlanPlace& place, const MapLimits& limits = {});

}  // namespace flashmask
