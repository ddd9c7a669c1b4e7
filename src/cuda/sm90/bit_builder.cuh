#pragma once

#include "cuda/sm90/row_memory.cuh"

namespace flashmask::cuda::sm90 {

/// Two warps: each every other masked tile, as bits in the order of accumulators.
template <class Shape>
class BitBuilder {
 public:
  __device__ __forceinline__ BitBuilder(RowMemory<Shape>& shared, const RowArguments& arguments, int builder)
      : shared_(shared), arguments_(arguments), lane_(threadIdx.x % 32), turn_(builder) {}

  __device__ __forceinline__ void run() {
    for (Work work = take_work(shared_, work_); work.exists(); work = take_work(shared_, work_)) {
      if (work.masked_tiles == 0) continue;
      const RowTile& tile = work.tile;
      const MapRow row(arguments_.map, tile.batch, tile.head, tile.row_tile);
      row.for_each_masked_tile(lane_, [&](int column_tile) {
        if (turn_ == 0) build_in_turn(tile, row.list, column_tile);
        turn_ = turn_ == 0 ? kBuilderWarps - 1 : turn_ - 1;
        bits_.advance();
      });
    }
  }

 private:
  __device__ __forceinline__ void build_in_turn(const RowTile& tile, int list, int column_tile) {
    barrier_wait(&shared_.bits_empty[bits_.slot], bits_.phase ^ 1);
    build(shared_.bits[bits_.slot], list, tile.row_tile * Shape::kRows, column_tile * Shape::kColumns);
    __syncwarp();
    if (lane_ == 0) barrier_arrive(&shared_.bits_full[bits_.slot]);
  }

  /// Marks the rows where a column turns masked or visible, then sums along the rows, modulo 2.
  __device__ __forceinline__ void build(TileBits<Shape::kRows>& bits, int list, int first_row, int first_column) {
    for (int i = lane_; i < TileBits<Shape::kRows>::kPitch; i += 32)
      reinterpret_cast<uint4*>(bits.words)[i] = {0, 0, 0, 0};
    __syncwarp();
    std::int32_t ends[Shape::kColumns / 32][4];
#pragma unroll
    for (int i = 0; i < Shape::kColumns / 32; ++i) load_intervals(ends[i], list, first_column + 32 * i + lane_);
#pragma unroll
    for (int i = 0; i < Shape::kColumns / 32; ++i) mark_column(bits, ends[i], first_row, 32 * i + lane_);
    __syncwarp();
#pragma unroll
    for (int q = 0; q < 4; ++q) sum_rows(bits.words + q * TileBits<Shape::kRows>::kPitch);
  }

  /// What lies past the last column is masked in every row.
  __device__ __forceinline__ void load_intervals(std::int32_t (&ends)[4], int list, int column) {
    const bool exists = column < arguments_.key_length;
    const std::int64_t at = static_cast<std::int64_t>(list) * arguments_.key_length + column;
#pragma unroll
    for (int i = 0; i < 4; ++i) ends[i] = exists ? __ldg(arguments_.intervals[i] + at) : i == 1 ? 1 << 30 : 0;
  }

  __device__ __forceinline__ void mark_column(TileBits<Shape::kRows>& bits, const std::int32_t (&ends)[4],
                                              int first_row, int column) {
    std::uint32_t* words = bits.words + column % 8 / 2 * TileBits<Shape::kRows>::kPitch;
    const std::uint32_t bit = 1U << (column / 8 * 2 + column % 2);
#pragma unroll
    for (int range = 0; range < 2; ++range) {
      const int begin = max(ends[2 * range] - first_row, 0), end = ends[2 * range + 1] - first_row;
      if (begin >= min(end, Shape::kRows)) continue;
      atomicXor(words + begin, bit);
      if (end < Shape::kRows) atomicXor(words + end, bit);
    }
  }

  /// words[row] becomes the sum of words[0 … row]; a lane has consecutive rows.
  __device__ __forceinline__ void sum_rows(std::uint32_t* words) {
    constexpr int kOwn = Shape::kRows / 32;
    struct alignas(kOwn % 4 == 0 ? 16 : 8) Rows {
      std::uint32_t word[kOwn];
    };
    Rows& rows = reinterpret_cast<Rows*>(words)[lane_];
    Rows own = rows;
#pragma unroll
    for (int i = 1; i < kOwn; ++i) own.word[i] ^= own.word[i - 1];
    std::uint32_t before = own.word[kOwn - 1];
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const std::uint32_t other = __shfl_up_sync(~0U, before, step);
      if (lane_ >= step) before ^= other;
    }
    before ^= own.word[kOwn - 1];
#pragma unroll
    for (int i = 0; i < kOwn; ++i) own.word[i] ^= before;
    rows = own;
  }

  RowMemory<Shape>& shared_;
  const RowArguments& arguments_;
  int lane_;
  int turn_;
  RingPosition<kWorkSlots> work_;
  RingPosition<Shape::kBitSlots> bits_;
};

}  // namespace flashmask::cuda::sm90
