#include <algorithm>

#include "cuda/row_spans.h"
#include "cuda/status.h"
#include "cuda/words.cuh"

namespace flashmask::cuda {
namespace {

constexpr int kWarps = 8, kThreads = 32 * kWarps;
/// Columns of tiles that a warp looks at, where blocks do not become too many.
constexpr int kColumns = 32, kMostBlocks = 4096;

struct MapByColumn {
  const std::uint32_t* map;
  int row_tiles, column_tiles, words;
  std::int64_t lines;  // columns of tiles of all lists

  __device__ std::uint32_t visited(std::int64_t line, int word) const {
    const std::uint32_t* partial = map + line * 2 * words + word;
    return partial[0] | partial[words];
  }
};

/// The first column tile, counted from the end so that 0 is none, and the end of the last one: by both the greater
/// wins.
struct Ends {
  int from_end = 0, until = 0;

  __device__ void add(const Ends& other) {
    from_end = max(from_end, other.from_end);
    until = max(until, other.until);
  }
};

/// A lane a row tile of the word, a warp every so many columns of tiles.
__device__ Ends find_ends(const MapByColumn& by, int word, std::int64_t first, std::int64_t step) {
  Ends ends;
#pragma unroll 4
  for (std::int64_t line = first; line < by.lines; line += step) {
    const int column = static_cast<int>(line % by.column_tiles);
    if (by.visited(line, word) >> threadIdx.x % 32 & 1) ends.add({by.column_tiles - column, column + 1});
  }
  return ends;
}

/// Each value becomes the greatest of those up to it, or of those from it on.
__device__ void accumulate(std::int32_t* values, int count, bool from_the_end) {
  __shared__ int greatest[kThreads];
  const int own = (count + kThreads - 1) / kThreads, begin = static_cast<int>(threadIdx.x) * own;
  const auto at = [&](int i) -> std::int32_t& { return values[from_the_end ? count - 1 - i : i]; };
  int most = 0;
  for (int i = begin; i < min(begin + own, count); ++i) most = max(most, at(i));
  greatest[threadIdx.x] = most;
  for (int distance = 1; distance < kThreads; distance *= 2) {
    __syncthreads();
    const int before = static_cast<int>(threadIdx.x) >= distance ? greatest[threadIdx.x - distance] : 0;
    __syncthreads();
    greatest[threadIdx.x] = max(greatest[threadIdx.x], before);
  }
  __syncthreads();
  most = threadIdx.x == 0 ? 0 : greatest[threadIdx.x - 1];
  for (int i = begin; i < min(begin + own, count); ++i) at(i) = most = max(most, at(i));
  __syncthreads();
}

/// A block takes a word of row tiles through a share of the columns; the last one to end puts it all together.
__global__ void __launch_bounds__(kThreads) find_spans(MapByColumn by, RowSpans spans) {
  __shared__ Ends of_warps[kWarps][32];
  __shared__ bool is_last;
  const int word = static_cast<int>(blockIdx.x), lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  of_warps[warp][lane] = find_ends(by, word, blockIdx.y * kWarps + warp, std::int64_t{gridDim.y} * kWarps);
  __syncthreads();
  if (warp == 0) {
    Ends ends;
    for (const auto& of_warp : of_warps) ends.add(of_warp[lane]);
    const int row_tile = word * 32 + lane;
    if (row_tile < by.row_tiles && ends.until > 0) {
      atomicMax(spans.from + row_tile, ends.from_end);
      atomicMax(spans.until + row_tile, ends.until);
    }
    __threadfence();
    __syncwarp(kAllLanes);
    if (lane == 0) is_last = atomicAdd(spans.done, 1) == static_cast<int>(gridDim.x * gridDim.y) - 1;
  }
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  accumulate(spans.until, by.row_tiles, false);
  accumulate(spans.from, by.row_tiles, true);
  for (int i = threadIdx.x; i < by.row_tiles; i += kThreads) spans.from[i] = by.column_tiles - spans.from[i];
}

}  // namespace

void find_row_spans(const std::uint32_t* by_column, const TileCounts& tiles, const RowSpans& spans,
                    cudaStream_t stream) {
  const MapByColumn by{by_column, tiles.rows, tiles.columns, tiles.row_words(),
                       std::int64_t{tiles.lists} * tiles.columns};
  if (by.words == 0 || by.lines == 0) return;
  const std::int64_t shares = std::clamp<std::int64_t>((by.lines + kWarps * kColumns - 1) / (kWarps * kColumns), 1,
                                                       std::max(kMostBlocks / by.words, 1));
  find_spans<<<dim3(static_cast<unsigned>(by.words), static_cast<unsigned>(shares)), kThreads, 0, stream>>>(by, spans);
  check(cudaGetLastError(), "plan: find_spans");
}

}  // namespace flashmask::cuda
