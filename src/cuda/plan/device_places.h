// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "base/units.h"
#include "plan/device_plan.h"

/// Cuts tokens into units and moves a mask to their places, as schedule/places.h does on the host, without the host.
namespace flashmask::cuda {

/// Device memory for the result. A batch entry of the mask has as many units as places.shape has room for: empty ones,
/// past the last token, fill it up.
struct PlacesMemory {
  Unit *row_units, *column_units;          ///< [batch, units]
  std::int64_t *row_order, *column_order;  ///< [batch, places]: the token at each place, −1 in padding; or nullptr
  std::int32_t* intervals[4];              ///< [batch, heads, places of columns], as in DeviceMask
  std::int32_t* used_rows;                 ///< [1]: DeviceUnits::used of rows
  std::int32_t* scratch;                   ///< places_scratch() numbers
};

/// Returns how many numbers the cut needs while it runs.
std::size_t places_scratch(const PlacedRowIndices& places);

/// Fills the memory, on the stream. A mask with more islands than there is room for traps, after a line that says so.
void place_row_indices(const PlacedRowIndices& places, const PlacesMemory& memory, cudaStream_t stream);

}  // namespace flashmask::cuda
