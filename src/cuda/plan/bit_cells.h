// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "cuda/plan/tile_map.h"
#include "plan/device_plan.h"

/// Makes the bits of a mask on a GPU, and maps of tiles from them.
namespace flashmask::cuda {

/// A small tile; the tiles of all kernels are multiples of it. The kinds of granules are kept in a map by rows, as in
/// tile_map.h, and the maps of kernels are made from it.
inline constexpr TileShape kGranule{64, 32};

/// Memory for a mask of bits.
struct BitStorage {
  std::uint32_t* words;     ///< [stored + DeviceBits::kShared][DeviceBits::kCellWords]
  std::uint32_t stored;     ///< number of stored cells
  CellEntry* index;         ///< as in DeviceBits, or nullptr
  std::uint32_t* granules;  ///< map of granules
};

/// Return the number of cells of a mask, of entries in their index, and of words in the map of granules.
std::size_t cell_count(const MaskShape& mask);
std::size_t cell_entries(const MaskShape& mask);
std::size_t granule_words(const MaskShape& mask);

/// A BitMask's arrays, copied to the device.
struct CellRuns {
  const std::int64_t* offsets;
  const Run* runs;
  const std::int64_t* first_cells;
  const std::uint64_t* words;
};

/// Stores every cell, in one pass over the scores.
void pack_cells(const DeviceDenseMask& mask, const BitStorage& out, cudaStream_t stream);
void pack_cells(const DevicePackedMask& mask, const BitStorage& out, cudaStream_t stream);
/// Stores partial cells only.
void pack_cells(const CellRuns& cells, const MaskShape& mask, const BitStorage& out, cudaStream_t stream);

/// Makes the maps of tile_map.h from the granules; a map that is null is not made.
void make_tile_map(const std::uint32_t* granules, const MaskShape& mask, TileShape tile, const TileMaps& maps,
                   cudaStream_t stream);

}  // namespace flashmask::cuda
