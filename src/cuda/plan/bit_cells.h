#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "cuda/plan/tile_map.h"
#include "plan/device_plan.h"

/// Makes the bits of a mask on a GPU, and what tiles look like from them.
namespace flashmask::cuda {

/// Tiles of kernels are multiples of this one, whose kinds are kept: a map by rows of tiles as in tile_map.h.
inline constexpr TileShape kGranule{64, 32};

/// Memory that a mask of bits is made in.
struct BitStorage {
  std::uint32_t* words;     ///< [stored + DeviceBits::kShared][DeviceBits::kCellWords]
  std::uint32_t stored;     ///< cells
  CellEntry* index;         ///< of a DeviceBits, or nullptr
  std::uint32_t* granules;  ///< map of the granules
};

/// How many cells a mask has, and entries an index of them.
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

/// Every cell stored, in one pass over the scores.
void pack_cells(const DeviceDenseMask& mask, const BitStorage& out, cudaStream_t stream);
void pack_cells(const DevicePackedMask& mask, const BitStorage& out, cudaStream_t stream);
/// Partial cells stored.
void pack_cells(const CellRuns& cells, const MaskShape& mask, const BitStorage& out, cudaStream_t stream);

/// The maps of tile_map.h from the granules. Either may be null: then it is not made.
void make_tile_map(const std::uint32_t* granules, const MaskShape& mask, TileShape tile, const TileMaps& maps,
                   cudaStream_t stream);

}  // namespace flashmask::cuda
