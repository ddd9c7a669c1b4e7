// SPDX-License-Identifier: Apache-2.0
#include "cuda/plan/bit_cells.h"
#include "cuda/plan/words.cuh"
#include "cuda/runtime/status.h"
#include "flashmask/error.h"

namespace flashmask::cuda {
namespace {

/// Bits [begin, end) of a word, clipped to it.
__device__ std::uint32_t bits_between(int begin, int end) { return low_word(end) & ~low_word(begin); }

/// The granules of a mask, and how many of them make a tile.
struct TilesOfGranules {
  const std::uint32_t* map;
  int row_granules, column_granules, words;  // granules of the mask; words per row of them
  int tile_rows, tile_columns;               // granules per tile

  __device__ TileKind kind(int list, int row_tile, int column_tile) const {
    const int first = column_tile * tile_columns, last = min(first + tile_columns, column_granules);
    const int end = min((row_tile + 1) * tile_rows, row_granules);
    bool any = false, all = true;
    for (int row = row_tile * tile_rows; row < end; ++row) {
      const std::uint32_t* partial = map + (static_cast<std::int64_t>(list) * row_granules + row) * 2 * words;
      const std::uint32_t* full = partial + words;
      for (int word = first / 32; word * 32 < last; ++word) {
        const std::uint32_t own = bits_between(first - word * 32, last - word * 32);
        any |= ((partial[word] | full[word]) & own) != 0;
        all &= (full[word] & own) == own;
      }
    }
    return !any ? TileKind::skip : all ? TileKind::full : TileKind::partial;
  }
};

/// Makes one word per warp: 32 tiles of a row of tiles, or of a column of tiles.
template <bool kByColumn>
__global__ void combine(TilesOfGranules granules, int rows, int columns, std::uint32_t* map, std::uint32_t* visited,
                        std::int64_t warps) {
  const std::int64_t warp = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
  if (warp >= warps) return;
  const int outer = kByColumn ? columns : rows, inner = kByColumn ? rows : columns, words = divide_up(inner, 32);
  const int lane = threadIdx.x % 32, word = static_cast<int>(warp % words), at = word * 32 + lane;
  const std::int64_t line = warp / words;
  const int list = static_cast<int>(line / outer), own = static_cast<int>(line % outer);
  TileKind kind = TileKind::skip;
  if (at < inner) kind = granules.kind(list, kByColumn ? at : own, kByColumn ? own : at);
  const std::uint32_t partial = __ballot_sync(kAllLanes, kind == TileKind::partial);
  const std::uint32_t full = __ballot_sync(kAllLanes, kind == TileKind::full);
  if (lane < 2) map[(line * 2 + lane) * words + word] = lane == 0 ? partial : full;
  const int count = __popc(partial | full);
  if (visited != nullptr && lane == 0 && count > 0) atomicAdd(visited, count);
}

constexpr int kWarps = 4;

/// Returns how many blocks of kWarps warps are needed.
unsigned blocks_of(std::int64_t warps) { return static_cast<unsigned>((warps + kWarps - 1) / kWarps); }

}  // namespace

void make_tile_map(const std::uint32_t* granules, const MaskShape& mask, TileShape tile, const TileMaps& maps,
                   cudaStream_t stream) {
  if (tile.rows % kGranule.rows != 0 || tile.columns % kGranule.columns != 0)
    throw Error(Status::internal, "plan: tiles of " + std::to_string(tile.rows) + " x " + std::to_string(tile.columns) +
                                      " are no multiple of 64 x 32");
  const TileGrid tiles(mask, tile), counts(mask, kGranule);
  const TilesOfGranules view{granules,
                             counts.rows,
                             counts.columns,
                             counts.column_words(),
                             tile.rows / kGranule.rows,
                             tile.columns / kGranule.columns};
  const std::int64_t rows = std::int64_t{tiles.lists} * tiles.rows * tiles.column_words();
  const std::int64_t columns = std::int64_t{tiles.lists} * tiles.columns * tiles.row_words();
  if (rows == 0 || columns == 0) return;
  constexpr int kThreads = 32 * kWarps;
  if (maps.by_row != nullptr)
    combine<false>
        <<<blocks_of(rows), kThreads, 0, stream>>>(view, tiles.rows, tiles.columns, maps.by_row, maps.visited, rows);
  if (maps.by_column != nullptr)
    combine<true><<<blocks_of(columns), kThreads, 0, stream>>>(
        view, tiles.rows, tiles.columns, maps.by_column, maps.by_row == nullptr ? maps.visited : nullptr, columns);
  check(cudaGetLastError(), "plan: combine");
}

}  // namespace flashmask::cuda
