#pragma once

#include <cstddef>
#include <cstdint>

#include "flashmask/device_plan.h"
#include "flashmask/tile.h"

namespace flashmask {

/// What kernels of a GPU read: the mask's intervals and which tiles to visit, all in the memory of the device.
struct DevicePlan {
  MaskShape mask;
  TileShape tile;
  const std::int32_t* intervals[4];   ///< [batch, heads, columns]: first begin, first end, second begin, second end
  const std::uint32_t* tiles_by_row;  ///< described in cuda/tile_map.h
};

std::size_t device_plan_bytes(const MaskShape& mask, TileShape tile);

/// `tile` is that of the kernel. The place has enough memory.
DevicePlan make_device_plan(const IntervalMask& mask, TileShape tile, Device device, const PlanPlace& place);
DevicePlan make_device_plan(const DeviceRowIndices& rows, TileShape tile, Device device, const PlanPlace& place);

}  // namespace flashmask
