// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "cuda/plan/tile_map.h"
#include "cuda/plan/tile_ranges.cuh"
#include "cuda/plan/words.cuh"
#include "cuda/runtime/status.h"
#include "flashmask/error.h"

/// Classifies the tiles of a share of a map from a mask of intervals: a block of threads marks in shared memory which
/// tiles each column touches and which it leaves uncovered, then takes prefix sums.
namespace flashmask::cuda {

constexpr int kClassifyWarps = 16, kClassifyThreads = 32 * kClassifyWarps;
/// Columns of tiles per block: one word of the map by rows.
constexpr int kTiles = 32;
constexpr int kMostTileRows = 256, kMostTileColumns = 256;

struct IntervalsView {
  const std::int32_t* values[4];
  BlockView blocks;
  int heads, rows, columns;
};

/// The tiles of a map.
struct Tiling {
  int tile_rows, tile_columns;
  int row_tiles, column_tiles, row_words, column_words;

  Tiling() = default;
  Tiling(const MaskShape& mask, TileShape tile) : tile_rows(tile.rows), tile_columns(tile.columns) {
    if (tile.columns % 32 != 0 || tile.columns > kMostTileColumns || tile.rows < 2 || tile.rows > kMostTileRows)
      throw Error(Status::internal, "plan: tiles of " + std::to_string(tile.rows) + " x " +
                                        std::to_string(tile.columns) + " have more than " +
                                        std::to_string(kMostTileRows) + " rows or " + std::to_string(kMostTileColumns) +
                                        " columns, or columns that are no multiple of 32");
    const TileGrid tiles(mask, tile);
    row_tiles = tiles.rows;
    column_tiles = tiles.columns;
    row_words = tiles.row_words();
    column_words = tiles.column_words();
  }
};

/// The part of a map that one block makes: kTiles columns of tiles, and `words` words of row tiles in each.
struct Share {
  const Tiling& tiling;
  int list, column_word, first_word, words;

  __device__ int first_column() const { return column_word * kTiles * tiling.tile_columns; }
  __device__ TileSlice slice(int rows) const {
    const int first_tile = first_word * 32;
    return TileSlice(first_tile, min(words * 32, tiling.row_tiles - first_tile), tiling.tile_rows, rows);
  }
};

/// Marks in shared memory, for each column of tiles: bits of touched and bits of uncovered tiles, for ranges that fill
/// part of a word, and the changes in the number of ranges that fill whole words, both kinds in one integer. settle()
/// turns the bits into partial and full tiles. An odd pitch puts the 32 columns into different banks.
struct Counts {
  static constexpr int kUncovered = 1 << 16;

  std::uint32_t* bits;
  int* changes;
  int words;

  __host__ __device__ static constexpr int integers(int words) { return kTiles * (2 * words + 1 + words); }
  __device__ Counts(int* memory, int of_block)
      : bits(reinterpret_cast<std::uint32_t*>(memory)),
        changes(memory + kTiles * (2 * of_block + 1)),
        words(of_block) {}
  __device__ std::uint32_t* bits_of(int tile, int kind) const { return bits + tile * (2 * words + 1) + kind * words; }
  __device__ int* changes_of(int tile) const { return changes + tile * words; }
};

struct SharedWords {
  std::uint32_t* bits;
  int* changes;
  int count, unit;

  __device__ void set(int word, std::uint32_t to) const { atomicOr(bits + word, to); }
  __device__ void change(int word, int by) const { atomicAdd(changes + word, by * unit); }
};

/// Only the first of neighbouring columns with equal ranges marks, so that lanes do not contend for one word.
__device__ inline void mark_once(TileRange range, const SharedWords& words) {
  const int own = range.begin < range.end ? range.begin << 16 | range.end : 0;
  const int left = __shfl_up_sync(kAllLanes, own, 1);
  if (own != 0 && (threadIdx.x % 32 == 0 || own != left)) mark(range, words.count, words);
}

/// Calls body(column of the share, its tiles) for each column of a share, one thread per column; a warp stays within
/// one column of tiles. Whole warps call the body: past the last column the tiles are empty.
template <class Body>
__device__ void for_each_column(const IntervalsView& mask, const Share& share, const Body& body) {
  const int first_column = share.first_column(), lane = threadIdx.x % 32;
  const int columns = min(kTiles * share.tiling.tile_columns, mask.columns - first_column);
  const std::int64_t begin = static_cast<std::int64_t>(share.list) * mask.columns + first_column;
  const TileSlice slice = share.slice(mask.rows);
  for (int i = threadIdx.x; i - lane < columns; i += kClassifyThreads) {
    ColumnTiles says{};
    if (i < columns)
      says = slice.of(mask.values[0][begin + i], mask.values[1][begin + i], mask.values[2][begin + i],
                      mask.values[3][begin + i]);
    body(i, says);
  }
}

__device__ inline void mark_columns(const IntervalsView& mask, const Share& share, const Counts& counts) {
  for_each_column(mask, share, [&](int i, const ColumnTiles& says) {
    const int tile = i / share.tiling.tile_columns;
    const SharedWords touched{counts.bits_of(tile, 0), counts.changes_of(tile), share.words, 1};
    const SharedWords uncovered{counts.bits_of(tile, 1), counts.changes_of(tile), share.words, Counts::kUncovered};
    for (const TileRange& range : says.touched) mark_once(range, touched);
    for (const TileRange& range : says.uncovered) mark_once(range, uncovered);
  });
}

/// Inclusive prefix sum of a value over the lanes of a warp.
__device__ inline int sum_before(int value) {
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(kAllLanes, value, step);
    if (threadIdx.x % 32 >= step) value += other;
  }
  return value;
}

/// Prefix-sums the changes in a warp, one word per lane, and calls body(word, tiles that some range touches, tiles that
/// some column leaves uncovered).
template <class Body>
__device__ void for_each_word(const std::uint32_t* touched, const std::uint32_t* uncovered, const int* changes,
                              int words, const Body& body) {
  int before = 0;
  for (int first = 0; first < words; first += 32) {
    const int word = first + static_cast<int>(threadIdx.x % 32);
    const bool own = word < words;
    const int count = before + sum_before(own ? changes[word] : 0);
    before = __shfl_sync(kAllLanes, count, 31);
    if (own)
      body(word, count % Counts::kUncovered != 0 ? ~0U : touched[word],
           count / Counts::kUncovered != 0 ? ~0U : uncovered[word]);
  }
}

/// Returns those of `tiles`, bits of 32 row tiles, whose block of scores is kept.
__device__ inline std::uint32_t kept_tiles(const IntervalsView& mask, const Share& share, int column_tile, int word,
                                           std::uint32_t tiles) {
  const BlockView& blocks = mask.blocks;
  if (blocks.keep == nullptr) return tiles;
  const int batch = blocks.batch == 1 ? 0 : share.list / mask.heads;
  const int head = blocks.heads == 1 ? 0 : share.list % mask.heads;
  const int column = column_tile * share.tiling.tile_columns / blocks.block;
  for (std::uint32_t left = tiles; left != 0; left &= left - 1) {
    const int tile = __ffs(left) - 1, row = (word * 32 + tile) * share.tiling.tile_rows / blocks.block;
    const std::int64_t at =
        ((static_cast<std::int64_t>(batch) * blocks.heads + head) * blocks.rows + row) * blocks.columns + column;
    const bool keep = blocks.wide ? static_cast<const std::int32_t*>(blocks.keep)[at] != 0
                                  : static_cast<const std::uint8_t*>(blocks.keep)[at] != 0;
    if (!keep) tiles &= ~(1U << tile);
  }
  return tiles;
}

/// Decides one column of tiles per warp, one word per lane: a tile that no column leaves uncovered is skipped, one that
/// no range touches is full. Calls by_column(column of tiles, word, partial, full), both numbered within the share.
template <class Store>
__device__ void settle(const IntervalsView& mask, const Share& share, const Counts& counts, const Store& by_column) {
  for (int tile = threadIdx.x / 32; tile < kTiles; tile += kClassifyWarps) {
    const int column = share.column_word * kTiles + tile;
    if (column >= share.tiling.column_tiles) return;
    std::uint32_t *const partial = counts.bits_of(tile, 0), *const full = counts.bits_of(tile, 1);
    for_each_word(partial, full, counts.changes_of(tile), share.words,
                  [&](int word, std::uint32_t touched, std::uint32_t visible) {
                    const std::uint32_t active = kept_tiles(mask, share, column, share.first_word + word, visible);
                    partial[word] = active & touched;
                    full[word] = active & ~touched;
                    by_column(tile, word, partial[word], full[word]);
                  });
  }
}

/// Marks and settles. All threads of the block call it, and may read the counts afterwards.
template <class Store>
__device__ void classify_share(const IntervalsView& mask, const Share& share, int* memory, const Counts& counts,
                               const Store& by_column) {
  for (int i = threadIdx.x; i < Counts::integers(counts.words); i += kClassifyThreads) memory[i] = 0;
  __syncthreads();
  mark_columns(mask, share, counts);
  __syncthreads();
  settle(mask, share, counts, by_column);
  __syncthreads();
}

/// Transposes 32 × 32 tiles per warp, partial ones and full ones, and calls by_row(row of tiles within the share, kind,
/// word of the map by rows). Adds the number of visited tiles to `all_visited` unless it is null.
template <class Store>
__device__ void transpose_tiles(const Share& share, const Counts& counts, std::uint32_t* all_visited,
                                const Store& by_row) {
  const int lane = threadIdx.x % 32;
  int visited = 0;
  for (int word = threadIdx.x / 32; word < share.words; word += kClassifyWarps) {
    const int row = word * 32 + lane;
    for (int kind = 0; kind < 2; ++kind) {
      const std::uint32_t own = counts.bits_of(lane, kind)[word], turned = transpose(own);
      visited += __popc(own);
      if (share.first_word * 32 + row < share.tiling.row_tiles) by_row(row, kind, turned);
    }
  }
  if (all_visited == nullptr) return;
  visited = __reduce_add_sync(kAllLanes, visited);
  if (lane == 0 && visited > 0) atomicAdd(all_visited, visited);
}

}  // namespace flashmask::cuda
