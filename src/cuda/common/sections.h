#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

/// In which order the column kernel works, and how far it is.
namespace flashmask::cuda {

/// Tiles in a row, of one kind, that are counted together.
constexpr int kStretch = 8;

/// A tile of one head among those of all heads.
struct SectionTile {
  int section;
  int head;  // of all batch entries
  int tile;
};

/// Heads that run side by side, so that what they share stays in the L2 cache: a section. Tiles of all heads follow one
/// another section by section, in one the first tiles first, those of its heads side by side.
struct Sections {
  int heads;         // of all batch entries
  int side_by_side;  // of a section; the last may have fewer
  int tiles;         // of a head

  __host__ __device__ int count() const { return (heads + side_by_side - 1) / side_by_side; }
  __host__ __device__ int all_tiles() const { return heads * tiles; }
  __host__ __device__ int stretches() const { return (tiles + kStretch - 1) / kStretch; }

  __host__ __device__ int heads_of(int section) const {
    const int left = heads - section * side_by_side;
    return left < side_by_side ? left : side_by_side;
  }
  __host__ __device__ SectionTile tile(int index) const {
    const int section = index / (side_by_side * tiles), size = heads_of(section);
    const int rest = index - section * side_by_side * tiles;
    return {section, section * side_by_side + rest % size, rest / size};
  }
  /// Where the tiles of this number of a section begin in that order.
  __host__ __device__ int index_of(int section, int tile) const {
    return section * side_by_side * tiles + tile * heads_of(section);
  }
  /// Among the tiles of all heads, one head after another.
  __host__ __device__ std::int64_t place_of(const SectionTile& tile) const {
    return static_cast<std::int64_t>(tile.head) * tiles + tile.tile;
  }
  /// Of counters for all stretches, that of a tile.
  __host__ __device__ int stretch_of(int section, int tile) const { return section * stretches() + tile / kStretch; }
  /// How many tiles of all heads its stretch has.
  __host__ __device__ int in_stretch_of(int section, int tile) const {
    const int left = tiles - tile / kStretch * kStretch;
    return (left < kStretch ? left : kStretch) * heads_of(section);
  }
};

/// How far a launch is, in global memory; all are 0 at its start.
struct Progress {
  int* next_column;  // key tiles that were taken
  int* next_row;     // row tiles that somebody opens or has opened
  int* added;        // key tiles of each stretch whose sums for the gradient of q are there
  int* opened;       // row tiles of each stretch that are
};

}  // namespace flashmask::cuda
