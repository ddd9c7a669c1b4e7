// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "cuda/plan/tile_map.h"
#include "plan/device_plan.h"

/// Makes the bits of a mask on a GPU, and what tiles look like from them.
namespace flashmask::cuda {

/// A small tile of which those of all kernels are multiples. Kinds of granules are kept in a map by rows, as in
/// tile_map.h, from which the maps of kernels are made.
inline constexpr TileShape kGranule{64, 32};

/// Memory that a mask of bits is made in.
struct BitStorage {
  std::uint32_t* words;     ///< [stored + DeviceBits::kShared][DeviceBits::kCellWords]
  std::uint32_t stored;     ///< cells
  CellEntry* index;         ///< of a DeviceBits, or nullptr
  std::uint32_t* granules;  ///< map of the granules
};

/// How many cells a mask has, entries an index of them, and words a map of its granules.
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

/// Makes the maps of tile_map.h from the granules: those that are not null.
void make_tile_map(const std::uint32_t* granules, const MaskShape& mask, TileShape tile, const TileMaps& maps,
                   cudaStream_t stream);

}  // namespace flashmask::cuda
