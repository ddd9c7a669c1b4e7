// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

/// The order in which kernels take the tiles of all heads, and the progress of a launch of the backward by sums.
namespace flashmask::cuda {

/// Neighbouring tiles of a section that share a counter.
constexpr int kBundle = 8;

/// A tile of one head among those of all heads.
struct SectionTile {
  int section;
  int head;  // counted over all batch entries
  int tile;
};

/// A section is heads that run side by side, so that what they share stays in the L2 cache. Tiles are taken section by
/// section: in each the first tile of every head, then the second of every head, and so on.
struct Sections {
  int heads;         // over all batch entries
  int side_by_side;  // heads per section; the last may have fewer
  int tiles;         // per head

  __host__ __device__ int count() const { return (heads + side_by_side - 1) / side_by_side; }
  __host__ __device__ int all_tiles() const { return heads * tiles; }
  __host__ __device__ int bundles() const { return (tiles + kBundle - 1) / kBundle; }

  __host__ __device__ int heads_of(int section) const {
    const int left = heads - section * side_by_side;
    return left < side_by_side ? left : side_by_side;
  }
  __host__ __device__ SectionTile tile(int index) const {
    const int section = index / (side_by_side * tiles), size = heads_of(section);
    const int rest = index - section * side_by_side * tiles;
    return {section, section * side_by_side + rest % size, rest / size};
  }
  /// Index, in that order, of a section's first tile with this number; each of its heads has one.
  __host__ __device__ int index_of(int section, int tile) const {
    return section * side_by_side * tiles + tile * heads_of(section);
  }
  /// The tile's number when tiles are counted head by head, as they lie in memory.
  __host__ __device__ std::int64_t place_of(const SectionTile& tile) const {
    return static_cast<std::int64_t>(tile.head) * tiles + tile.tile;
  }
  /// The index of the counter for a tile's bundle.
  __host__ __device__ int bundle_of(int section, int tile) const { return section * bundles() + tile / kBundle; }
  /// The final value of that counter: the tiles of the bundle, over the section's heads.
  __host__ __device__ int in_bundle_of(int section, int tile) const {
    const int left = tiles - tile / kBundle * kBundle;
    return (left < kBundle ? left : kBundle) * heads_of(section);
  }
};

/// The progress of a launch, counted in global memory; all counters are 0 at its start.
struct Progress {
  int* next_column;  // key tiles that blocks have taken
  int* next_row;     // row tiles that prologues have taken
  int* added;        // for each bundle: key tiles whose sums for the gradient of q are all in global memory
  int* ready;        // for each bundle: row tiles whose prologue is done
};

}  // namespace flashmask::cuda
