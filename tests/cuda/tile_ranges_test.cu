// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "cuda/plan/tile_ranges.cuh"
#include "flashmask/interval_mask.h"

/// What the device counts with, on the host: no GPU is needed here.
namespace flashmask {
namespace {

using cuda::TileRange;
using cuda::TileSlice;

struct HostWords {
  std::uint32_t* bits;
  int* changes;

  __host__ __device__ void set(int word, std::uint32_t to) const { bits[word] |= to; }
  __host__ __device__ void change(int word, int by) const { changes[word] += by; }
};

/// The tiles that any of the ranges holds, a bit each.
class Union {
 public:
  explicit Union(int words) : bits_(static_cast<std::size_t>(words), 0), changes_(static_cast<std::size_t>(words), 0) {}

  void add(TileRange range) {
    if (range.begin < range.end)
      cuda::mark(range, static_cast<int>(bits_.size()), HostWords{bits_.data(), changes_.data()});
  }
  std::vector<bool> tiles(int count) const {
    std::vector<bool> held;
    int filling = 0;
    for (std::size_t word = 0; word < bits_.size(); ++word) {
      filling += changes_[word];
      for (int bit = 0; bit < 32; ++bit) held.push_back(filling > 0 || (bits_[word] >> bit & 1) != 0);
    }
    held.resize(static_cast<std::size_t>(count));
    return held;
  }

 private:
  std::vector<std::uint32_t> bits_;
  std::vector<int> changes_;
};

TEST(TileRanges, FillTheTilesThatTheyHold) {
  const int words = 5;
  for (int begin = 0; begin < words * 32; ++begin)
    for (int end = begin; end <= words * 32; ++end) {
      Union all(words);
      all.add({begin, end});
      std::vector<bool> expected(words * 32, false);
      for (int tile = begin; tile < end; ++tile) expected[static_cast<std::size_t>(tile)] = true;
      ASSERT_EQ(all.tiles(words * 32), expected) << begin << " to " << end;
    }
}

/// One column of a mask of some rows: two ranges in normal form.
IntervalMask random_column(std::int64_t rows, std::mt19937& draw) {
  IntervalMask mask(MaskShape{1, 1, rows, 1});
  const auto row = [&] { return static_cast<std::int32_t>(draw() % static_cast<std::uint32_t>(rows + 1)); };
  mask.set(0, {row(), draw() % 4 == 0 ? static_cast<std::int32_t>(rows) : row()}, {draw() % 4 == 0 ? 0 : row(), row()});
  return mask;
}

/// Whether a range of masked rows touches a tile, and whether one covers it, row by row.
struct ByRow {
  bool touched = false, covered = true;

  ByRow(const IntervalMask& mask, int tile, int tile_rows) {
    for (std::int64_t row = std::int64_t{tile} * tile_rows; row < std::int64_t{tile + 1} * tile_rows; ++row) {
      if (row >= mask.shape().rows) break;
      const bool visible = mask.visible(0, 0, row, 0);
      touched |= !visible;
      covered &= !visible;
    }
  }
};

TEST(TileRanges, OfASliceAreTouchedOrUncoveredAsRowsSay) {
  std::mt19937 draw(1);
  for (int round = 0; round < 3000; ++round) {
    const int tile_rows = round % 3 == 0 ? 192 : 64 * (1 + round % 2), rows = 1 + static_cast<int>(draw() % 30000);
    const int row_tiles = (rows + tile_rows - 1) / tile_rows;
    const int first = static_cast<int>(draw() % static_cast<std::uint32_t>(row_tiles)), most = row_tiles - first;
    const int tiles = 1 + static_cast<int>(draw() % static_cast<std::uint32_t>(most));
    const IntervalMask mask = random_column(rows, draw);
    const TileSlice slice(static_cast<std::uint32_t>(first), static_cast<std::uint32_t>(tiles),
                          static_cast<std::uint32_t>(tile_rows), static_cast<std::uint32_t>(rows));
    const auto says =
        slice.of(mask.first_begin()[0], mask.first_end()[0], mask.second_begin()[0], mask.second_end()[0]);
    Union touched((tiles + 31) / 32), uncovered((tiles + 31) / 32);
    for (const TileRange& range : says.touched) touched.add(range);
    for (const TileRange& range : says.uncovered) uncovered.add(range);
    for (int tile = 0; tile < tiles; ++tile) {
      const ByRow expected(mask, first + tile, tile_rows);
      const auto at = static_cast<std::size_t>(tile);
      ASSERT_EQ(touched.tiles(tiles)[at], expected.touched) << "tile " << first + tile << " of " << rows << " rows";
      ASSERT_EQ(uncovered.tiles(tiles)[at], !expected.covered) << "tile " << first + tile << " of " << rows << " rows";
    }
  }
}

TEST(TileRanges, LieInSquaresThatAreTouchedOrUncoveredAsRowsSay) {
  std::mt19937 draw(2);
  for (int round = 0; round < 3000; ++round) {
    const int tile_rows = 2 + round % 3, square_rows = 32 * tile_rows, rows = 1 + static_cast<int>(draw() % 3000);
    const int row_tiles = (rows + tile_rows - 1) / tile_rows, squares = (row_tiles + 31) / 32;
    const IntervalMask mask = random_column(rows, draw);
    const TileSlice slice(0, static_cast<std::uint32_t>(row_tiles), static_cast<std::uint32_t>(tile_rows),
                          static_cast<std::uint32_t>(rows));
    const auto says =
        slice.of(mask.first_begin()[0], mask.first_end()[0], mask.second_begin()[0], mask.second_end()[0]);
    Union touched((squares + 31) / 32), uncovered((squares + 31) / 32);
    for (const TileRange& range : says.touched) touched.add(cuda::squares_of(range));
    for (const TileRange& range : says.uncovered) uncovered.add(cuda::squares_of(range));
    for (int square = 0; square < squares; ++square) {
      bool any_uncovered = false;
      for (int tile = square * 32; tile < std::min(square * 32 + 32, row_tiles); ++tile)
        any_uncovered |= !ByRow(mask, tile, tile_rows).covered;
      const auto at = static_cast<std::size_t>(square);
      ASSERT_EQ(touched.tiles(squares)[at], ByRow(mask, square, square_rows).touched)
          << "square " << square << " of " << rows << " rows";
      ASSERT_EQ(uncovered.tiles(squares)[at], any_uncovered) << "square " << square << " of " << rows << " rows";
    }
  }
}

TEST(TileRanges, EndWithTheLongestMasks) {
  const int rows = INT32_MAX, tile_rows = 128, row_tiles = 1 << 24;
  const TileSlice last(row_tiles - 64, 64, tile_rows, rows);
  const auto says = last.of(0, rows - 300, rows - 200, rows);
  EXPECT_EQ(says.touched[0].end, 62);      // row 2^31 - 301 lies in the third tile from the end
  EXPECT_EQ(says.uncovered[1].begin, 61);  // which the first range does not cover
  EXPECT_EQ(says.touched[1].begin, 62);
  EXPECT_EQ(says.uncovered[1].end, 63);  // the last tile is covered to the mask's end
  EXPECT_EQ(says.uncovered[2].begin, 64);
}

}  // namespace
}  // namespace flashmask
