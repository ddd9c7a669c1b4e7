// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "flashmask/mask_shape.h"
#include "flashmask/tile.h"

/// Maps of the tiles that a kernel visits, for a GPU: bits, since the length of a list would not be known without
/// asking the device. For each (batch, head) of the mask and each row of tiles: ⌈column tiles / 32⌉ words of partial
/// tiles, then as many of full ones; bit t of word w is column tile 32 w + t. A tile in neither is skipped.
namespace flashmask::cuda {

struct TileGrid {
  int lists, rows, columns;  ///< lists: batch · heads of the mask

  TileGrid(const MaskShape& mask, TileShape tile);
  int row_words() const { return (rows + 31) / 32; }
  int column_words() const { return (columns + 31) / 32; }
  /// Words of the map by rows of tiles, and of its transpose.
  std::size_t by_row_words() const { return std::size_t{2} * lists * rows * column_words(); }
  std::size_t by_column_words() const { return std::size_t{2} * lists * columns * row_words(); }
};

/// Which blocks of scores of a mask are kept, in device memory. No tile spans two blocks.
struct BlockView {
  const void* keep;  ///< [batch, heads, rows, columns] of blocks, not 0 = keep; nullptr: all are kept
  bool wide;         ///< 32-bit integers instead of bytes
  int batch, heads, rows, columns;
  int block;  ///< scores per side
};

/// Device memory to fill; a map that is null is not made.
struct TileMaps {
  std::uint32_t* by_column;
  std::uint32_t* by_row;
  std::uint32_t* visited = nullptr;  ///< the number of visited tiles is added to it; may be nullptr
};

/// Maps in one tile shape.
struct TiledMaps {
  TileShape tile;
  TileMaps maps;
};

/// The most TiledMaps that one launch fills.
inline constexpr int kMostMaps = 5;

/// Fills maps by counting (docs/flow.md), on the stream: equal to schedule() tile by tile. intervals: first begin,
/// first end, second begin, second end, [lists, columns] each, in IntervalMask's normal form; tiles in blocks that are
/// not kept are skipped. `made` has at most kMostMaps elements.
void make_tile_maps(const std::int32_t* const (&intervals)[4], const BlockView& blocks, const MaskShape& mask,
                    std::span<const TiledMaps> made, cudaStream_t stream);

}  // namespace flashmask::cuda
