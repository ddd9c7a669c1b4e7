// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "cuda/plan/row_spans.h"
#include "cuda/plan/words.cuh"
#include "cuda/runtime/status.h"

namespace flashmask::cuda {
namespace {

constexpr int kWarps = 8, kThreads = 32 * kWarps;
/// Groups of columns, and row tiles, that a lane loads before it uses the first one.
constexpr int kGroupsAtOnce = 4, kRowsAtOnce = 8;
/// Limits on all blocks, and on blocks that take the same row tiles and so update the same words.
constexpr int kMostBlocks = 1024, kMostShares = 128;

/// A map by columns of tiles; a group is 32 columns of one list.
struct Columns {
  int row_tiles, column_tiles, row_words, column_words, groups;

  explicit Columns(const TileGrid& tiles)
      : row_tiles(tiles.rows),
        column_tiles(tiles.columns),
        row_words(tiles.row_words()),
        column_words(tiles.column_words()),
        groups(tiles.lists * tiles.column_words()) {}
  __device__ int first_column(int group) const { return group % column_words * 32; }
};

struct FlatMap : Columns {
  const std::uint32_t* map;

  /// Returns which of 32 row tiles the lane's column of a group visits, partial and full: apart, since joining them
  /// would wait for both loads. None past the last group.
  __device__ uint2 visited(int group, int word) const {
    const int column = first_column(group) + static_cast<int>(threadIdx.x % 32);
    if (group >= groups || column >= column_tiles) return {};
    const std::int64_t line = std::int64_t{group / column_words} * column_tiles + column;
    const std::uint32_t* partial = map + line * 2 * row_words + word;
    return {partial[0], partial[row_words]};
  }
};

struct MapInSquares : Columns {
  const std::uint32_t *numbers, *words;

  /// Returns the number of the square where a group and a word of rows meet; kSkipped past the last group.
  __device__ std::uint32_t number(int group, int word) const {
    return group < groups ? numbers[static_cast<std::int64_t>(group) * row_words + word] : MapSquares::kSkipped;
  }
  /// Returns what FlatMap::visited() does, for a given square.
  __device__ uint2 visited(std::uint32_t square, int group) const {
    const std::uint32_t lane = threadIdx.x % 32;
    if (first_column(group) + static_cast<int>(lane) >= column_tiles) return {};
    return {words[MapSquares::place(square, lane, 0)], words[MapSquares::place(square, lane, 1)]};
  }
};

/// The first column tile, counted from the end so that 0 means none, and the end of the last one: the maximum of each
/// is kept.
struct Ends {
  int from_end = 0, until = 0;

  __device__ void add(const Ends& other) {
    from_end = max(from_end, other.from_end);
    until = max(until, other.until);
  }
  /// Returns the value `distance` lanes below; the first lanes keep their own.
  __device__ Ends of_lane_before(int distance) const {
    return {__shfl_up_sync(kAllLanes, from_end, distance), __shfl_up_sync(kAllLanes, until, distance)};
  }
};

/// Adds the columns of a group that visit the lane's row tile.
__device__ void add_columns(Ends& ends, const Columns& by, int group, std::uint32_t columns) {
  const int column = by.first_column(group);
  if (columns != 0) ends.add({by.column_tiles - column - __ffs(columns) + 1, column + 32 - __clz(columns)});
}

/// Returns the ends of the lane's row tile of the word, over every `step`th group from `first` on.
__device__ Ends find_ends(const FlatMap& by, int word, int first, int step) {
  Ends ends;
  for (int group = first; group < by.groups; group += kGroupsAtOnce * step) {
    uint2 rows[kGroupsAtOnce];
    std::uint32_t columns[kGroupsAtOnce];
#pragma unroll
    for (int i = 0; i < kGroupsAtOnce; ++i) rows[i] = by.visited(group + i * step, word);
#pragma unroll
    for (int i = 0; i < kGroupsAtOnce; ++i) columns[i] = transpose(rows[i].x | rows[i].y);
#pragma unroll
    for (int i = 0; i < kGroupsAtOnce; ++i) add_columns(ends, by, group + i * step, columns[i]);
  }
  return ends;
}

/// Each lane looks up the number of one group's square; then all lanes read the visited squares, one by one.
__device__ Ends find_ends(const MapInSquares& by, int word, int first, int step) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  Ends ends;
  for (int group = first; group < by.groups; group += 32 * step) {
    const std::uint32_t own = by.number(group + lane * step, word);
    for (std::uint32_t some = __ballot_sync(kAllLanes, own != MapSquares::kSkipped); some != 0; some &= some - 1) {
      const int holder = __ffs(some) - 1, at = group + holder * step;
      const uint2 rows = by.visited(__shfl_sync(kAllLanes, own, holder), at);
      add_columns(ends, by, at, transpose(rows.x | rows.y));
    }
  }
  return ends;
}

/// Exclusive block scan starting from `all`; then adds the block's total to `all`.
__device__ Ends ends_before(Ends own, Ends& all) {
  __shared__ Ends of_warps[kWarps];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int distance = 1; distance < 32; distance *= 2) own.add(own.of_lane_before(distance));
  if (lane == 31) of_warps[warp] = own;
  Ends before = all;
  const Ends of_lanes = own.of_lane_before(1);
  if (lane != 0) before.add(of_lanes);
  __syncthreads();
  for (int other = 0; other < kWarps; ++other) {
    if (other < warp) before.add(of_warps[other]);
    all.add(of_warps[other]);
  }
  __syncthreads();
  return before;
}

/// Turns each row tile's end into the maximum over the row tiles up to it, and its begin into the minimum over those
/// from it on.
__device__ void accumulate(const Columns& by, const RowSpans& spans) {
  Ends all;
  for (int first = 0; first < by.row_tiles; first += kThreads * kRowsAtOnce) {
    const int own = first + static_cast<int>(threadIdx.x) * kRowsAtOnce;
    // Begins are read from the last row tile backwards, so that one scan serves both.
    const auto from = [&](int i) { return spans.from + (by.row_tiles - 1 - own - i); };
    const auto until = [&](int i) { return spans.until + own + i; };
    Ends ends[kRowsAtOnce];
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i)
      if (own + i < by.row_tiles) ends[i] = {*from(i), *until(i)};
#pragma unroll
    for (int i = 1; i < kRowsAtOnce; ++i) ends[i].add(ends[i - 1]);
    const Ends before = ends_before(ends[kRowsAtOnce - 1], all);
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) {
      if (own + i >= by.row_tiles) break;
      ends[i].add(before);
      *from(i) = by.column_tiles - ends[i].from_end;
      *until(i) = ends[i].until;
    }
  }
}

/// Each warp takes one word of row tiles through a share of the groups; the other warps of its block take neighbouring
/// words, which share cache lines. The last block to finish runs accumulate().
template <class Map>
__global__ void __launch_bounds__(kThreads) find_spans(Map by, RowSpans spans) {
  __shared__ bool is_last;
  const int word = static_cast<int>(blockIdx.x * kWarps + threadIdx.x / 32), row_tile = word * 32 + threadIdx.x % 32;
  if (word < by.row_words) {
    const Ends ends = find_ends(by, word, static_cast<int>(blockIdx.y), static_cast<int>(gridDim.y));
    if (row_tile < by.row_tiles && ends.until > 0) {
      atomicMax(spans.from + row_tile, ends.from_end);
      atomicMax(spans.until + row_tile, ends.until);
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    is_last = atomicAdd(spans.done, 1) == static_cast<int>(gridDim.x * gridDim.y) - 1;
    __threadfence();
  }
  __syncthreads();
  if (is_last) accumulate(by, spans);
}

template <class Map>
void launch_find_spans(const Map& by, const RowSpans& spans, cudaStream_t stream) {
  if (by.row_words == 0 || by.groups == 0) return;
  const int blocks = divide_up(by.row_words, kWarps);
  const int shares = std::min({by.groups, kMostShares, std::max(kMostBlocks / blocks, 1)});
  find_spans<<<dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(shares)), kThreads, 0, stream>>>(by, spans);
  check(cudaGetLastError(), "plan: find_spans");
}

}  // namespace

void find_row_spans(const std::uint32_t* by_column, const TileGrid& tiles, const RowSpans& spans, cudaStream_t stream) {
  launch_find_spans(FlatMap{Columns(tiles), by_column}, spans, stream);
}

void find_row_spans(const SquareMap& by_column, const TileGrid& tiles, const RowSpans& spans, cudaStream_t stream) {
  launch_find_spans(MapInSquares{Columns(tiles), by_column.numbers, by_column.words}, spans, stream);
}

}  // namespace flashmask::cuda
