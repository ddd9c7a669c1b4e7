// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/instructions/arithmetic.cuh"
#include "cuda/sm90/backward/column_memory.cuh"

namespace flashmask::cuda::sm90 {

/// One warp that scales the sums of a row tile and writes them as the gradient of q, once all bundles of key tiles that
/// add to it or to an earlier row tile are done. The sums are then mostly still in the L2 cache. No other warp waits
/// for this one.
template <class Shape>
class RowEpilogue {
  using T = typename Shape::Element;
  static constexpr int kLineBytes = 128;

 public:
  __device__ __forceinline__ RowEpilogue(ColumnMemory<Shape>& shared, const ColumnArguments& arguments)
      : shared_(shared), arguments_(arguments) {}

  __device__ __forceinline__ void run() {
    for (int tile = blockIdx.x; tile < arguments_.rows.all_tiles(); tile += gridDim.x) {
      const SectionTile row = arguments_.rows.tile(tile);
      added_ = max(added_, arguments_.columns.bundle_of(row.section, 0));
      const int end = arguments_.visits.end(row.tile);
      while (!is_due(row, end)) __nanosleep(200);
      finish(row);
    }
  }

 private:
  /// Returns whether all key tiles that visit this or an earlier row tile have added their sums and the row tile's own
  /// prologue is done, which it may not be where no key tile visits the row tile. Each lane checks one bundle of key
  /// tiles, except the last, which checks the row tile's bundle.
  __device__ __forceinline__ bool is_due(const SectionTile& row, int end) {
    const Sections &columns = arguments_.columns, &rows = arguments_.rows;
    constexpr int kLooking = 31;
    const int lane = lane_index();
    for (;;) {
      const int first = (added_ - columns.bundle_of(row.section, 0) + lane) * kBundle;
      const int* counter = arguments_.progress.added + added_ + lane;
      int count = first < end ? columns.in_bundle_of(row.section, first) : 0;
      if (lane == kLooking) {
        counter = arguments_.progress.ready + rows.bundle_of(row.section, row.tile);
        count = rows.in_bundle_of(row.section, row.tile);
      }
      if (!__all_sync(~0U, count == 0 || load_acquire(counter) >= count)) return false;
      if (__shfl_sync(~0U, first, kLooking) >= end) return true;
      added_ += kLooking;
    }
  }

  __device__ __forceinline__ void finish(const SectionTile& row) {
    float* const sums = arguments_.query_sums + arguments_.rows.place_of(row) * Shape::kTileSums;
    __syncwarp();
    fence_loads_for_async();
    for (unsigned quarter = 0; quarter < kEpilogueQuarters; ++quarter) copy_quarter(sums, quarter);
#pragma unroll 1
    for (unsigned quarter = 0; quarter < kQuarters; ++quarter) {
      // Each buffer takes two quarters of a tile, so that its phase is 0 again at the next tile.
      static_assert(kQuarters == 2 * kEpilogueQuarters);
      const unsigned buffer = quarter % kEpilogueQuarters;
      barrier_wait(&shared_.epilogue_full[buffer], quarter / kEpilogueQuarters);
      discard(sums + quarter * (kQuarterBytes / 4));
      constexpr bool kSplitsRows = Shape::kRows == 128;
      write(reinterpret_cast<const float4*>(shared_.epilogue[buffer]), row.head,
            row.tile * Shape::kRows + (kSplitsRows ? quarter / 2 * 64 : 0), (kSplitsRows ? buffer : quarter) * 32);
      __syncwarp();
      if (quarter + kEpilogueQuarters < kQuarters) copy_quarter(sums, quarter + kEpilogueQuarters);
    }
  }

  /// Copies a quarter of a tile's sums: 64 rows by 32 columns, in the layout of add_to_queries().
  __device__ __forceinline__ void copy_quarter(const float* sums, unsigned quarter) const {
    if (lane_index() != 0) return;
    const unsigned buffer = quarter % kEpilogueQuarters;
    barrier_arrive_expecting(&shared_.epilogue_full[buffer], kQuarterBytes);
    copy_bytes(shared_.epilogue[buffer], sums + quarter * (kQuarterBytes / 4), kQuarterBytes,
               &shared_.epilogue_full[buffer]);
  }

  /// Discards sums that are not read again, which saves writing them from the cache to memory.
  static __device__ __forceinline__ void discard(float* quarter) {
#pragma unroll
    for (int line = 0; line < kQuarterBytes; line += 32 * kLineBytes)
      discard_line(reinterpret_cast<std::uint8_t*>(quarter) + line + lane_index() * kLineBytes);
  }

  /// Writes 32 columns of 64 rows, one consumer warp's 16 rows at a time, two rows per thread. A thread takes eight
  /// columns of its rows, two from each of the four threads of a quad that added them. Neighbouring threads begin with
  /// different ones to avoid bank conflicts.
  __device__ __forceinline__ void write(const float4* sums, int head, unsigned first_row, unsigned first_column) {
    const unsigned lane = lane_index(), quad = lane % 4;
    const int column = static_cast<int>(first_column + quad * 8);
    int row = static_cast<int>(first_row + lane / 4);
    T* out = static_cast<T*>(arguments_.grad_q) + head / arguments_.query_heads * arguments_.grad_q_batch +
             head % arguments_.query_heads * arguments_.grad_q_head + row * arguments_.grad_q_row + column;
#pragma unroll 1
    for (unsigned warp = 0; warp < 4; ++warp) {
      const unsigned own = quad * 128 + warp * 32 + lane / 4 * 4 + quad;
      std::uint32_t words[2][4];
#pragma unroll
      for (unsigned i = 0; i < 4; ++i) {
        const float4 four = sums[own ^ i];
        words[0][i] = pack<T>(four.x * arguments_.scale, four.y * arguments_.scale);
        words[1][i] = pack<T>(four.z * arguments_.scale, four.w * arguments_.scale);
      }
#pragma unroll
      for (unsigned h = 0; h < 2; ++h) {
        sort(words[h], quad);
        if (row < arguments_.query_length && column < arguments_.head_dim)
          __stcs(reinterpret_cast<uint4*>(out), make_uint4(words[h][0], words[h][1], words[h][2], words[h][3]));
        row += 8;
        out += 8 * arguments_.grad_q_row;
      }
    }
  }

  /// words[i] becomes words[i ^ by].
  static __device__ __forceinline__ void sort(std::uint32_t (&words)[4], unsigned by) {
    exchange_if((by & 1) != 0, words[0], words[1]);
    exchange_if((by & 1) != 0, words[2], words[3]);
    exchange_if((by & 2) != 0, words[0], words[2]);
    exchange_if((by & 2) != 0, words[1], words[3]);
  }
  static __device__ __forceinline__ void exchange_if(bool so, std::uint32_t& a, std::uint32_t& b) {
    const std::uint32_t first = a;
    a = so ? b : first;
    b = so ? first : b;
  }

  ColumnMemory<Shape>& shared_;
  const ColumnArguments& arguments_;
  int added_ = 0;  // how many bundles of key tiles, from the first on, are known to be done
};

}  // namespace flashmask::cuda::sm90
