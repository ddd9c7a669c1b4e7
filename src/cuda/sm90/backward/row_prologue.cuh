// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/sm90/backward/column_memory.cuh"

namespace flashmask::cuda::sm90 {

/// One warp that computes the statistics of row tiles and clears their sums for the gradient of q, shortly before the
/// first key tile visits them, so that sums seldom leave the L2 cache. Row tiles are taken from a counter in the order
/// in which they are needed, because the blocks of a launch need not all run at once. While the rows of one tile are
/// read, the rows of the next are copied.
template <class Shape>
class RowPrologue {
  using T = typename Shape::Element;
  static constexpr int kQuarterRows = Shape::kRows / kQuarters, kPanelBytes = kQuarterRows * kPanel * 2,
                       kTensorBytes = kQuarterRows * Shape::kHeadDim * 2;
  static constexpr int kBuffers = kPrologueQuarters<Shape>;
  static constexpr bool kHasAll = kBuffers == kQuarters;
  static constexpr int kLaneQuarters = 32 / kQuarterRows;              // this many quarters have 32 rows, one per lane
  static constexpr int kFoursAtOnce = Shape::kHeadDim == 128 ? 4 : 1;  // unrolled as far as no register spills
  static_assert(2 * kTensorBytes == kQuarterBytes && Shape::kTileSums * 4 == kQuarters * kQuarterBytes);

 public:
  __device__ __forceinline__ RowPrologue(ColumnMemory<Shape>& shared, const ColumnArguments& arguments,
                                         const CUtensorMap* o, const CUtensorMap* grad_o)
      : shared_(shared), arguments_(arguments), o_(o), grad_o_(grad_o) {}

  __device__ __forceinline__ void run() {
    for (int i = lane_index(); i < kQuarterBytes / 16; i += 32) shared_.zeros[i] = {0, 0, 0, 0};
    fence_stores_for_async();
    __syncwarp();
    int tile = take();
    if (!is_tile(tile)) return;
    SectionTile row = arguments_.rows.tile(tile);
    if (exists(row)) copy_quarters(row);
    while (is_tile(tile)) {
      await_due(row);
      prepare(tile, row);
    }
  }

 private:
  static __device__ __forceinline__ int buffer_of(int quarter) { return kHasAll ? quarter : quarter % kBuffers; }
  __device__ __forceinline__ bool is_tile(int tile) const { return tile < arguments_.rows.all_tiles(); }
  /// Row tiles of padding are only cleared: no key tile visits them. The gradient of a bias does.
  __device__ __forceinline__ bool exists(const SectionTile& row) const {
    return row.tile * Shape::kRows < arguments_.query_length;
  }
  __device__ __forceinline__ int take() const {
    const int tile = lane_index() == 0 ? atomicAdd(arguments_.progress.next_row, 1) : 0;
    return __shfl_sync(~0U, tile, 0);
  }

  /// Waits until the first key tile that visits the row tile has been taken or is among those that blocks take next.
  /// The answer is the same for a whole bundle, and later bundles have no earlier key tiles, so a row tile that a key
  /// tile waits for is never queued behind one that is not due.
  __device__ __forceinline__ void await_due(const SectionTile& row) const {
    const int first = arguments_.visits.first(row.tile / kBundle * kBundle);
    const int due = arguments_.columns.index_of(row.section, first) - static_cast<int>(gridDim.x);
    while (!has_reached(arguments_.progress.next_column, due)) __nanosleep(100);
  }

  /// Prepares `row` and replaces it by the next row tile.
  __device__ __forceinline__ void prepare(int& tile, SectionTile& row) {
    clear(row);
    const int next = take();
    const SectionTile own = row;
    if (is_tile(next)) row = arguments_.rows.tile(next);
    const bool more = is_tile(next) && exists(row);
    if (exists(own)) {
      find_statistics(own, row, more);
      phase_ ^= 1;
    } else {
      if constexpr (AddsBias<Shape> || Changes<Shape>) hide_rows(own);
      if (more) copy_quarters(row);
    }
    __syncwarp();
    if (lane_index() == 0) {
      commit_stores();
      await_stores();
      __threadfence();
      atomicAdd(arguments_.progress.ready + arguments_.rows.bundle_of(own.section, own.tile), 1);
    }
    tile = next;
  }

  __device__ __forceinline__ void clear(const SectionTile& row) const {
    if (lane_index() != 0) return;
    float* const sums = arguments_.query_sums + arguments_.rows.place_of(row) * Shape::kTileSums;
    for (int quarter = 0; quarter < kQuarters; ++quarter)
      store_bytes(sums + quarter * (kQuarterBytes / 4), shared_.zeros, kQuarterBytes);
  }

  /// Stores the statistics of rows that see nothing.
  __device__ __forceinline__ void hide_rows(const SectionTile& row) const {
    const std::int64_t first = arguments_.rows.place_of(row) * Shape::kRows;
#pragma unroll 1
    for (int in_tile = lane_index(); in_tile < Shape::kRows; in_tile += 32) {
      arguments_.statistics.lse_log2[first + in_tile] = INFINITY;
      arguments_.statistics.dot[first + in_tile] = 0;
    }
  }

  __device__ __forceinline__ void copy_quarters(const SectionTile& row) const {
    for (int quarter = 0; quarter < kBuffers; ++quarter) copy_quarter(row, quarter);
  }

  /// Copies a quarter of the tile's rows of o, then the same rows of its gradient.
  __device__ __forceinline__ void copy_quarter(const SectionTile& row, int quarter) const {
    if (lane_index() != 0) return;
    std::uint64_t* full = &shared_.prologue_full[buffer_of(quarter)];
    std::uint8_t* to = shared_.prologue[buffer_of(quarter)];
    const int batch = row.head / arguments_.query_heads, head = row.head % arguments_.query_heads;
    const int first = row.tile * Shape::kRows + quarter * kQuarterRows;
    barrier_arrive_expecting(full, kQuarterBytes);
    copy_rows<kQuarterRows, Shape::kHeadDim, Reads::once>(to, o_, full, first, head, batch);
    copy_rows<kQuarterRows, Shape::kHeadDim>(to + kTensorBytes, grad_o_, full, first, head, batch);
  }

  /// Computes the statistics of one row per lane. A buffer that has been read is refilled, from the next tile if there
  /// is `more`.
  __device__ __forceinline__ void find_statistics(const SectionTile& row, const SectionTile& next, bool more) const {
#pragma unroll 1
    for (int first = 0; first < kQuarters; first += kLaneQuarters) {
      const int in_tile = first * kQuarterRows + lane_index();
      const RowLse lse(arguments_.lse, row.head / arguments_.query_heads, row.head % arguments_.query_heads,
                       row.tile * Shape::kRows + in_tile);
      float sum = 0;
#pragma unroll 1
      for (int quarter = first; quarter < first + kLaneQuarters; ++quarter) {
        // Where a buffer takes two quarters of a tile, its phase is 0 again at the next.
        barrier_wait(&shared_.prologue_full[buffer_of(quarter)], kHasAll ? phase_ : quarter / kBuffers);
        add_own_row(sum, shared_.prologue[buffer_of(quarter)], (quarter - first) * (kQuarterRows / 4));
        __syncwarp();
        if (!kHasAll && quarter + kBuffers < kQuarters)
          copy_quarter(row, quarter + kBuffers);
        else if (more)
          copy_quarter(next, buffer_of(quarter));
      }
      lse.store(arguments_.statistics, arguments_.rows.place_of(row) * Shape::kRows + in_tile, sum);
    }
  }

  /// Sums o · grad_o over each row of a quarter, four rows at a time with eight lanes each; both tensors have the same
  /// swizzle. The lane that owns a row keeps its sum: lanes 4 (first_four + i) and the three after it for the i-th four
  /// rows.
  static __device__ __forceinline__ void add_own_row(float& own, const std::uint8_t* o, int first_four) {
    const int lane = lane_index();
#pragma unroll kFoursAtOnce
    for (int four = 0; four < kQuarterRows / 4; ++four) {
      float sum = 0;
#pragma unroll
      for (int panel = 0; panel < Shape::kHeadDim / kPanel; ++panel) {
        const std::uint8_t* at = o + panel * kPanelBytes + four * 512 + lane * 16;
        sum += dot<T>(*reinterpret_cast<const uint4*>(at), *reinterpret_cast<const uint4*>(at + kTensorBytes));
      }
#pragma unroll
      for (int distance = 4; distance > 0; distance /= 2) sum += __shfl_xor_sync(~0U, sum, distance);
      const float of_row = __shfl_sync(~0U, sum, lane % 4 * 8);
      if (lane / 4 == first_four + four) own = of_row;
    }
  }

  ColumnMemory<Shape>& shared_;
  const ColumnArguments& arguments_;
  const CUtensorMap *o_, *grad_o_;
  std::uint32_t phase_ = 0;
};

}  // namespace flashmask::cuda::sm90
