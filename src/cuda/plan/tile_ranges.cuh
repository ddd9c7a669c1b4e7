// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

/// Counts the tiles that a mask's ranges touch and cover, in words of 32 tiles: a range costs the same however long it
/// is. Runs on the device and, for tests, on the host.
namespace flashmask::cuda {

/// Tiles [begin, end); none where begin >= end.
struct TileRange {
  int begin, end;
};

/// The tiles that one column of a mask touches, and leaves uncovered, in its column of tiles.
struct ColumnTiles {
  TileRange touched[2];    ///< tiles that either range of masked rows touches
  TileRange uncovered[3];  ///< above, between and below the tiles that the ranges cover
};

/// Neighbouring tiles of a column of tiles. A mask's last tile counts as whole, and a range that ends with the mask
/// ends with that tile.
struct TileSlice {
  std::uint32_t first_row, tiles, tile_rows;
  std::uint32_t mask_rows, mask_end;  ///< the mask's rows, and those rounded up to whole tiles
  std::uint32_t inverse;              ///< 2^32 / tile_rows, rounded up

  __host__ __device__ TileSlice(std::uint32_t first_tile, std::uint32_t tile_count, std::uint32_t rows_of_tile,
                                std::uint32_t rows)
      : first_row(first_tile * rows_of_tile),
        tiles(tile_count),
        tile_rows(rows_of_tile),
        mask_rows(rows),
        mask_end((rows + rows_of_tile - 1) / rows_of_tile * rows_of_tile),
        inverse(0xffffffffU / rows_of_tile + 1) {}

  /// Takes two ranges of masked rows, [a, b) and [c, d), in IntervalMask's normal form. Returned tiles are numbered
  /// from the first tile of the slice.
  __host__ __device__ ColumnTiles of(int a, int b, int c, int d) const {
    const Place first = place(a), first_end = place(b), second = place(c), second_end = place(d);
    TileRange above{first.up, first_end.down}, below{second.up, second_end.down};
    const int all = static_cast<int>(tiles);
    if (above.begin >= above.end) above = {0, 0};
    if (below.begin >= below.end) below = {all, all};
    // If a range has no rows in the slice, both of its ends are clamped to one end of the slice: no tile.
    return {{{first.down, first_end.up}, {second.down, second_end.up}},
            {{0, above.begin}, {above.end, below.begin}, {below.end, all}}};
  }

 private:
  /// A row of the slice in units of tiles, rounded down and up.
  struct Place {
    int down, up;
  };

  /// Clamps a row outside the slice to the nearer end.
  __host__ __device__ Place place(int row) const {
    const std::uint32_t of_tiles = static_cast<std::uint32_t>(row) == mask_rows ? mask_end : row;
    const std::uint32_t past = of_tiles <= first_row ? 0 : of_tiles - first_row;
    const std::uint32_t at = past < tiles * tile_rows ? past : tiles * tile_rows;
    // Exact while the rows of a slice times the rows of a tile stay below 2^32.
    const auto down = static_cast<std::uint32_t>(std::uint64_t{at} * inverse >> 32);
    return {static_cast<int>(down), static_cast<int>(down + (down * tile_rows != at ? 1 : 0))};
  }
};

/// Returns the squares of 32 × 32 tiles (map_squares.h) that a range of tiles lies in.
__host__ __device__ inline TileRange squares_of(TileRange tiles) {
  return tiles.begin < tiles.end ? TileRange{tiles.begin / 32, (tiles.end + 31) / 32} : TileRange{0, 0};
}

/// Marks a range, which must not be empty, in `count` words of 32 tiles: calls words.set(word, bits) for its first and
/// last word, and words.change(word, by) where the number of ranges that fill whole words changes.
template <class Words>
__host__ __device__ void mark(TileRange range, int count, const Words& words) {
  const int first = range.begin / 32, last = range.end / 32;
  const std::uint32_t head = ~0U << range.begin % 32, tail = (1U << range.end % 32) - 1;
  if (first == last) {
    words.set(first, head & tail);
    return;
  }
  words.set(first, head);
  if (tail != 0) words.set(last, tail);
  if (first + 1 == last) return;
  words.change(first + 1, 1);
  if (last < count) words.change(last, -1);
}

}  // namespace flashmask::cuda
