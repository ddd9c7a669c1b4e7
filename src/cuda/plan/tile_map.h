// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "flashmask/mask_shape.h"
#include "flashmask/tile.h"

/// Which tiles a kernel visits, as a GPU keeps it: no list's length is known there without asking the device, so a bit
/// a tile. For each (batch, head) of the mask and each row of tiles, ⌈column tiles / 32⌉ words of partial tiles, then
/// as many of full ones; bit t of word w is column tile 32 w + t. A tile in neither is skipped.
namespace flashmask::cuda {

struct TileGrid {
  int lists, rows, columns;  ///< lists: batch · heads of the mask

  TileGrid(const MaskShape& mask, TileShape tile);
  int row_words() const { return (rows + 31) / 32; }
  int column_words() const { return (columns + 31) / 32; }
  /// Of the map by rows of tiles, and of its transpose.
  std::size_t by_row_words() const { return std::size_t{2} * lists * rows * column_words(); }
  std::size_t by_column_words() const { return std::size_t{2} * lists * columns * row_words(); }
};

/// Which blocks of scores of a mask are kept, in the memory of the device. No tile lies in two blocks.
struct BlockView {
  const void* keep;  ///< [batch, heads, rows, columns] of blocks, not 0 = keep; nullptr: all are
  bool wide;         ///< 32-bit integers instead of bytes
  int batch, heads, rows, columns;
  int block;  ///< scores on a side
};

/// What is filled, on the device. What is null is not made.
struct TileMaps {
  std::uint32_t* by_column;
  std::uint32_t* by_row;
  std::uint32_t* visited = nullptr;  ///< to which the number of visited tiles is added
};

/// Maps in tiles of one shape.
struct TiledMaps {
  TileShape tile;
  TileMaps maps;
};

/// That one launch fills.
inline constexpr int kMostMaps = 5;

/// Fills maps by counting (docs/flow.md), on the stream: equal to schedule() tile by tile. intervals: first begin,
/// first end, second begin, second end, [lists, columns] each, in IntervalMask's normal form; tiles of blocks that are
/// not kept are skipped. At most kMostMaps.
void make_tile_maps(const std::int32_t* const (&intervals)[4], const BlockView& blocks, const MaskShape& mask,
                    std::span<const TiledMaps> made, cudaStream_t stream);

}  // namespace flashmask::cuda
