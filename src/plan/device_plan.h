// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <variant>
#include <vector>

#include "base/units.h"
#include "flashmask/device_plan.h"
#include "flashmask/tile.h"
#include "plan/device_arrays.h"

namespace flashmask {

/// The mask as GPU kernels read it, in device memory: in one of the two forms; the other one is null.
struct DeviceMask {
  MaskShape shape;
  const std::int32_t* intervals[4];  ///< [batch, heads, columns]: first begin, first end, second begin, second end
  DeviceBits bits;
};

/// Whether the lists of a map run along rows of tiles or along columns of tiles.
enum class MapSide : std::uint8_t { rows, columns };

/// A map of the visited tiles, as a GPU kernel requests it (cuda/plan/tile_map.h).
struct MapRequest {
  TileShape tile;
  MapSide side = MapSide::rows;
  bool counted = false;        ///< with the number of visited tiles
  bool spans = false;          ///< with DeviceRowSpans; only for maps by columns
  std::size_t most_bytes = 0;  ///< size beyond which the kernel does without it; 0: needed at any size

  bool is_same_map(const MapRequest& other) const { return tile == other.tile && side == other.side; }
};

/// The map made for a request, in device memory. If all pointers are null, it would have been too large, or empty.
struct DeviceMap {
  TileShape tile;
  MapSide side = MapSide::rows;
  const std::uint32_t* words = nullptr;
  const std::uint32_t* squares = nullptr;  ///< for a map in squares (cuda/plan/map_squares.h); null: it is flat
  const std::uint32_t* visited = nullptr;  ///< number of visited tiles, if counted; the host does not wait to read it
  DeviceRowSpans spans = {};               ///< null if not requested, or without rows
};

/// The plan as GPU kernels read it.
struct DevicePlan {
  DeviceMask mask;
  std::vector<DeviceMap> maps;  ///< each map that the plan's kernels asked for, once
  /// [batch of the mask, tokens]: token i of the kernels is token order[i] of the caller, and padding where that is
  /// negative; null if the orders agree.
  const std::int64_t* row_order;
  const std::int64_t* column_order;
  DeviceUnits row_units, column_units;

  /// Returns nullptr if no kernel asked for the map.
  const DeviceMap* find(TileShape tile, MapSide side) const;
  /// Returns a map that a kernel asked for; throws std::logic_error if none did.
  const DeviceMap& map(TileShape tile, MapSide side) const;
};

/// Merges the requests for each map into one that asks for all that any of them does.
std::vector<MapRequest> merged(const std::vector<MapRequest>& requests);

/// The units of one axis, [batch of the mask, units of an entry].
struct HostUnits {
  std::span<const Unit> units = {};
  std::int64_t size = 1;    ///< places of a unit
  std::int64_t tokens = 0;  ///< of the axis
};

/// A mask on the host; the orders and units are as in DevicePlan, empty if tokens keep the caller's order and places.
struct HostMask {
  LoweredMask lowered;
  std::span<const std::int64_t> row_order = {}, column_order = {};
  HostUnits row_units = {}, column_units = {};
};

/// Row indices on the device that are moved to places there. What the host does not see, how many units there are, has
/// room for `most_islands` islands of an entry; empty units, which are padding, fill it up.
struct PlacedRowIndices {
  DeviceRowIndices rows;
  TileShape unit;  ///< places of a unit
  std::int64_t most_islands;
  bool orders;      ///< whether kernels run on gathered tokens; else they find tokens by units
  MaskShape shape;  ///< in places

  /// Throws Status::unsupported if there are too many places.
  PlacedRowIndices(const DeviceRowIndices& rows, TileShape unit, bool orders);
};

/// The mask that a plan is made from.
using DeviceSource = std::variant<const HostMask*, const DeviceRowIndices*, const PlacedRowIndices*,
                                  const DeviceDenseMask*, const DevicePackedMask*>;

/// Limits on how maps of interval masks are stored. Tests lower them.
struct MapLimits {
  /// Bytes of a map per batch entry and head of the mask; a larger map is made in squares.
  std::size_t flat_bytes = std::size_t{8} << 20;
  /// Squares that have words of their own, per 32 row tiles and per 32 column tiles.
  int squares_of_strip = 8;
};

/// Returns the bytes that a plan takes on the device; `maps` are as merged() gives them.
std::size_t device_plan_bytes(const DeviceSource& source, const std::vector<MapRequest>& maps,
                              const MapLimits& limits = {});

/// Makes the plan in `place`, which must have enough memory.
DevicePlan make_device_plan(const DeviceSource& source, const std::vector<MapRequest>& maps, Device device,
                            const PlanPlace& place, const MapLimits& limits = {});

/// Memory of a GPU that is made and freed in the order of a stream, without waiting for the device.
std::shared_ptr<void> device_memory(Device device, void* stream, std::size_t bytes);

}  // namespace flashmask
