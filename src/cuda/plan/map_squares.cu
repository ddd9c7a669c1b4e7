// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>

#include "cuda/plan/classify.cuh"
#include "cuda/plan/map_squares.h"

namespace flashmask::cuda {
namespace {

/// The most words of 32 squares, of one column of squares, that a block takes.
constexpr int kMostWords = 64;
constexpr int kNumberThreads = 256;

int slices_of(int row_squares) { return divide_up(divide_up(row_squares, 32), kMostWords); }

/// A square among those of a list.
struct Square {
  int list, row, column;
};

/// The map to make.
struct Job {
  Tiling tiling;
  SquareMap to;
  bool by_rows;
  int slices;                // per column of squares
  std::uint32_t* counts;     // [slices of all columns]: squares of each that are neither visible nor masked throughout
  std::uint32_t* used;       // how many squares have words
  std::uint32_t* unsettled;  // [lists, columns of squares, ⌈rows of squares / 32⌉], one bit each: is it in `counts`?

  __device__ std::uint32_t place(const Square& square) const {
    const std::uint32_t row = square.list * tiling.row_words + square.row,
                        column = square.list * tiling.column_words + square.column;
    return by_rows ? row * tiling.column_words + square.column : column * tiling.row_words + square.row;
  }
  /// Inverse of place().
  __device__ Square square_at(std::uint32_t place) const {
    const std::uint32_t inner = by_rows ? tiling.column_words : tiling.row_words,
                        outer = by_rows ? tiling.row_words : tiling.column_words;
    const int line = static_cast<int>(place / inner), at = static_cast<int>(place % inner);
    const int list = line / static_cast<int>(outer), own = line % static_cast<int>(outer);
    return by_rows ? Square{list, own, at} : Square{list, at, own};
  }
  /// Returns the shared square for `kind`, which is kPartial or kFull: AtEnd if inner tiles end in this square.
  __device__ std::uint32_t shared(MapSquares::Shared kind, const Square& square) const {
    const bool at_end = by_rows ? square.column == tiling.column_words - 1 : square.row == tiling.row_words - 1;
    return kind + (at_end ? 1 : 0);
  }
  __device__ int tiles_of(const Square& square) const {
    return min(32, tiling.row_tiles - 32 * square.row) * min(32, tiling.column_tiles - 32 * square.column);
  }
};

/// Neighbouring squares of a column of squares that one block takes; the blocks of a list are consecutive.
struct Slice {
  int list, column, first, squares;
  std::uint32_t* unsettled;

  __device__ Slice(const Job& job, int block) {
    const int slice = block / job.tiling.column_words % job.slices;
    list = block / job.tiling.column_words / job.slices;
    column = block % job.tiling.column_words;
    first = slice * kMostWords * 32;
    squares = min(kMostWords * 32, job.tiling.row_words - first);
    unsettled =
        job.unsettled +
        (static_cast<std::int64_t>(list) * job.tiling.column_words + column) * divide_up(job.tiling.row_words, 32) +
        first / 32;
  }
  __device__ int words() const { return divide_up(squares, 32); }
  __device__ Square square(int at) const { return {list, first + at, column}; }
};

/// Adds the counts of a warp's lanes to `visited` unless it is null.
__device__ void add_visited(std::uint32_t* visited, int own) {
  if (visited == nullptr) return;
  own = __reduce_add_sync(kAllLanes, own);
  if (threadIdx.x % 32 == 0 && own > 0) atomicAdd(visited, own);
}

/// Classifies whole squares the way classify.cuh classifies tiles: a square is masked throughout if no column leaves it
/// uncovered, and visible throughout if no range touches it. Notes the other squares.
__global__ void __launch_bounds__(kClassifyThreads, 2) find_squares(IntervalsView mask, Job job) {
  __shared__ std::uint32_t bits[2][kMostWords];
  __shared__ int changes[kMostWords];
  const Slice slice(job, static_cast<int>(blockIdx.x));
  const int words = slice.words();
  for (int i = threadIdx.x; i < words; i += kClassifyThreads) bits[0][i] = bits[1][i] = changes[i] = 0;
  __syncthreads();
  const Share share{job.tiling, slice.list, slice.column, slice.first, slice.squares};
  const SharedWords touched{bits[0], changes, words, 1}, uncovered{bits[1], changes, words, Counts::kUncovered};
  for_each_column(mask, share, [&](int, const ColumnTiles& says) {
    for (const TileRange& range : says.touched) mark_once(squares_of(range), touched);
    for (const TileRange& range : says.uncovered) mark_once(squares_of(range), uncovered);
  });
  __syncthreads();
  if (threadIdx.x < 32) {
    int count = 0;
    for_each_word(bits[0], bits[1], changes, words, [&](int word, std::uint32_t touch, std::uint32_t visible) {
      bits[0][word] = slice.unsettled[word] = touch & visible;
      bits[1][word] = visible & ~touch;
      count += __popc(touch & visible);
    });
    count = __reduce_add_sync(kAllLanes, count);
    if (threadIdx.x == 0) job.counts[blockIdx.x] = count;
  }
  __syncthreads();
  int visited = 0;
  for (int at = threadIdx.x; at < slice.squares; at += kClassifyThreads) {
    if (bits[0][at / 32] >> at % 32 & 1) continue;
    const Square square = slice.square(at);
    const bool full = bits[1][at / 32] >> at % 32 & 1;
    job.to.numbers[job.place(square)] = full ? job.shared(MapSquares::kFull, square) : MapSquares::kSkipped;
    if (full) visited += job.tiles_of(square);
  }
  __syncwarp();
  add_visited(job.to.visited, visited);
}

/// Fills the words of the squares that the whole map shares.
__device__ void fill_shared_squares(const Job& job) {
  const int inner = job.by_rows ? job.tiling.column_tiles : job.tiling.row_tiles;
  const std::uint32_t end = low_word(inner - (divide_up(inner, 32) - 1) * 32);
  for (std::uint32_t i = threadIdx.x; i < MapSquares::kShared * MapSquares::kWords; i += kNumberThreads) {
    const std::uint32_t square = i / MapSquares::kWords, kind = square < MapSquares::kFull ? 0 : 1;
    const bool at_end = square == MapSquares::kPartialAtEnd || square == MapSquares::kFullAtEnd;
    const std::uint32_t tiles = square == MapSquares::kSkipped ? 0 : at_end ? end : ~0U;
    job.to.words[i] = i % 2 == kind ? tiles : 0;
  }
}

/// Gives the noted squares of a slice their words while there is room, in the order of the slices, so that the same
/// squares get words every time. Until fill_squares(), the first of these words holds the square's place().
__global__ void __launch_bounds__(kNumberThreads) number_squares(Job job) {
  __shared__ std::uint32_t noted_before;
  const Slice slice(job, static_cast<int>(blockIdx.x));
  const int lane = threadIdx.x % 32;
  if (threadIdx.x == 0) noted_before = 0;
  if (blockIdx.x == 0) fill_shared_squares(job);
  __syncthreads();
  std::uint32_t before = 0;
  for (unsigned other = threadIdx.x; other < blockIdx.x; other += kNumberThreads) before += job.counts[other];
  before = __reduce_add_sync(kAllLanes, before);
  if (lane == 0 && before > 0) atomicAdd(&noted_before, before);
  __syncthreads();
  if (threadIdx.x >= 32) return;
  std::uint32_t next = noted_before;
  int visited = 0;
  for (int first = 0; first < slice.words(); first += 32) {
    std::uint32_t bits = first + lane < slice.words() ? slice.unsettled[first + lane] : 0;
    const int up_to_own = sum_before(__popc(bits));
    std::uint32_t number = next + up_to_own - __popc(bits);
    for (; bits != 0; bits &= bits - 1, ++number) {
      const Square square = slice.square((first + lane) * 32 + __ffs(bits) - 1);
      const std::uint32_t place = job.place(square);
      const bool has_words = number < job.to.stored;
      job.to.numbers[place] = has_words ? MapSquares::kShared + number : job.shared(MapSquares::kPartial, square);
      if (has_words)
        job.to.words[(MapSquares::kShared + number) * MapSquares::kWords] = place;
      else
        visited += job.tiles_of(square);
    }
    __syncwarp();
    next += __shfl_sync(kAllLanes, up_to_own, 31);
  }
  add_visited(job.to.visited, visited);
  if (blockIdx.x == gridDim.x - 1 && lane == 0) *job.used = min(next, job.to.stored);
}

/// Fills one square per block.
__global__ void __launch_bounds__(kClassifyThreads, 2) fill_squares(IntervalsView mask, Job job) {
  __shared__ int memory[Counts::integers(1)];
  if (blockIdx.x >= *job.used) return;
  const std::uint32_t number = MapSquares::kShared + blockIdx.x;
  const Square square = job.square_at(job.to.words[number * MapSquares::kWords]);
  const Share share{job.tiling, square.list, square.column, square.row, 1};
  const Counts counts(memory, 1);
  classify_share(mask, share, memory, counts, [&](int column, int, std::uint32_t partial, std::uint32_t full) {
    if (job.by_rows) return;
    job.to.words[MapSquares::place(number, column, 0)] = partial;
    job.to.words[MapSquares::place(number, column, 1)] = full;
  });
  if (!job.by_rows && job.to.visited == nullptr) return;
  transpose_tiles(share, counts, job.to.visited, [&](int row, int kind, std::uint32_t word) {
    if (!job.by_rows) return;
    job.to.words[MapSquares::place(number, row, kind)] = word;
  });
}

/// Finds the bits behind the numbers, for one strip of numbers per warp.
__global__ void __launch_bounds__(kNumberThreads)
    find_occupied(const std::uint32_t* numbers, std::uint32_t* occupied, int strips, int words, int shift) {
  const int strip = static_cast<int>((blockIdx.x * kNumberThreads + threadIdx.x) / 32), lane = threadIdx.x % 32;
  if (strip >= strips) return;
  std::uint32_t bits = 0;
  for (int first = 0; first < words; first += 32) {
    const int word = first + lane;
    const bool visited =
        word < words && numbers[static_cast<std::int64_t>(strip) * words + word] != MapSquares::kSkipped;
    if (__any_sync(kAllLanes, visited)) bits |= 1U << (first >> shift);
  }
  if (lane == 0) occupied[strip] = bits;
}

}  // namespace

SquareGrid::SquareGrid(const MaskShape& mask, TileShape tile, MapSide side, int of_strip) {
  const TileGrid tiles(mask, tile);
  const auto lists = static_cast<std::size_t>(tiles.lists), rows = static_cast<std::size_t>(tiles.row_words()),
             columns = static_cast<std::size_t>(tiles.column_words());
  squares_ = lists * rows * columns;
  strips_ = lists * (side == MapSide::rows ? rows : columns);
  stored_ =
      static_cast<std::uint32_t>(std::min(squares_, static_cast<std::size_t>(of_strip) * lists * (rows + columns)));
  slices_ = lists * columns * static_cast<std::size_t>(slices_of(tiles.row_words()));
  note_words_ = slices_ + 1 + lists * columns * static_cast<std::size_t>(divide_up(tiles.row_words(), 32));
}

void make_square_map(const std::int32_t* const (&intervals)[4], const MaskShape& mask, TileShape tile,
                     const SquareMap& map, cudaStream_t stream) {
  if (mask.batch * mask.heads * mask.rows * mask.columns == 0) return;
  const IntervalsView view{{intervals[0], intervals[1], intervals[2], intervals[3]},
                           {},
                           static_cast<int>(mask.heads),
                           static_cast<int>(mask.rows),
                           static_cast<int>(mask.columns)};
  const SquareGrid grid(mask, tile, map.side, 0);
  if (grid.squares() > INT32_MAX)
    throw Error(Status::unsupported, "plan: a map has " + std::to_string(grid.squares()) +
                                         " squares of 32 x 32 tiles; expected less than 2^31: split the batch");
  const auto slices = static_cast<unsigned>(grid.slices());
  Job job{Tiling(mask, tile), map, map.side == MapSide::rows};
  job.slices = slices_of(job.tiling.row_words);
  job.counts = map.notes;
  job.used = job.counts + slices;
  job.unsettled = job.used + 1;
  find_squares<<<slices, kClassifyThreads, 0, stream>>>(view, job);
  check(cudaGetLastError(), "plan: find_squares");
  number_squares<<<slices, kNumberThreads, 0, stream>>>(job);
  check(cudaGetLastError(), "plan: number_squares");
  const auto strips = static_cast<int>(grid.strips());
  const int words = job.by_rows ? job.tiling.column_words : job.tiling.row_words;
  find_occupied<<<static_cast<unsigned>(divide_up(strips, kNumberThreads / 32)), kNumberThreads, 0, stream>>>(
      map.numbers, map.numbers + grid.squares(), strips, words, occupied_shift(words));
  check(cudaGetLastError(), "plan: find_occupied");
  if (map.stored == 0) return;
  fill_squares<<<map.stored, kClassifyThreads, 0, stream>>>(view, job);
  check(cudaGetLastError(), "plan: fill_squares");
}

}  // namespace flashmask::cuda
