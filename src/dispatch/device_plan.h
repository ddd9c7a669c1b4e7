#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "flashmask/device_plan.h"
#include "flashmask/tile.h"

namespace flashmask {

/// The mask as kernels of a GPU read it, in the memory of the device.
struct DeviceMask {
  MaskShape shape;
  const std::int32_t* intervals[4];  ///< [batch, heads, columns]: first begin, first end, second begin, second end
};

/// Which tiles a kernel visits, in the memory of the device: the maps of cuda/tile_map.h, null where it reads none.
struct DeviceTiles {
  TileShape tile;
  const std::uint32_t* by_row;
  const std::uint32_t* by_column;
};

/// What kernels of a GPU read.
struct DevicePlan {
  DeviceMask mask;
  DeviceTiles forward;  ///< by rows of tiles
  DeviceTiles finer;    ///< the same in the kernel's finer tiles; empty where it has none, or where they are too many
  /// How many tiles `forward` and `finer` visit, on the device: nobody waits to read them here.
  const std::uint32_t* visited;
  DeviceTiles backward;  ///< by columns of tiles; empty where no kernel of the device has a backward for the problem
};

/// Tiles of the kernels that a plan is for.
struct DeviceTileShapes {
  TileShape forward;
  std::optional<TileShape> finer;
  std::optional<TileShape> backward;
};

std::size_t device_plan_bytes(const MaskShape& mask, const DeviceTileShapes& tiles);

/// The place has enough memory.
DevicePlan make_device_plan(const IntervalMask& mask, const DeviceTileShapes& tiles, Device device,
                            const PlanPlace& place);
DevicePlan make_device_plan(const DeviceRowIndices& rows, const DeviceTileShapes& tiles, Device device,
                            const PlanPlace& place);

}  // namespace flashmask
