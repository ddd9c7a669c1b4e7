#pragma once

#include "cuda/sm90/column_memory.cuh"
#include "cuda/sm90/store_rows.cuh"

namespace flashmask::cuda::sm90 {

/// One warp: counts the key tiles of a section whose sums for the gradient of q are all in global memory.
template <class Shape>
class ColumnCloser {
 public:
  __device__ __forceinline__ ColumnCloser(ColumnMemory<Shape>& shared, const ColumnArguments& arguments)
      : shared_(shared), arguments_(arguments) {}

  __device__ __forceinline__ void run() {
    for (;; work_.advance()) {
      barrier_wait(&shared_.work_full[work_.slot], work_.phase);
      const ColumnWork work = shared_.work[work_.slot];
      if (work.steps < 0) break;
      barrier_wait(&shared_.work_done[work_.slot], work_.phase);
      if (lane_index() == 0) {
        // What consumers added before they arrived is there for whoever reads the count.
        __threadfence();
        const int section = (work.batch * arguments_.kv_heads + work.kv_head) / arguments_.section_heads;
        atomicAdd(arguments_.closed + section, 1);
        barrier_arrive(&shared_.work_empty[work_.slot]);
      }
      __syncwarp();
    }
  }

 private:
  ColumnMemory<Shape>& shared_;
  const ColumnArguments& arguments_;
  RingPosition<Shape::kStages> work_;
};

/// A warp of those that turn the sums of closed sections into the gradient of q, while they are in the L2 cache and
/// others compute. A tile's sums come in quarters: of 64 rows 32 columns, in the order of add_to_queries().
template <class Shape>
class ColumnConverter {
  using T = typename Shape::Element;
  static constexpr int kQuarters = 4;

 public:
  __device__ __forceinline__ ColumnConverter(ColumnMemory<Shape>& shared, const ColumnArguments& arguments, int warp)
      : shared_(shared), arguments_(arguments), warp_(warp) {}

  __device__ __forceinline__ void run() {
    for (int tile = blockIdx.x * kConverterWarps + warp_; tile < arguments_.all_row_tiles;
         tile += gridDim.x * kConverterWarps) {
      const int head = tile / arguments_.padded_row_tiles;
      await_section(head / arguments_.head_ratio / arguments_.section_heads);
      convert(tile, head, tile % arguments_.padded_row_tiles);
    }
  }

 private:
  __device__ __forceinline__ void await_section(int section) {
    const int heads = min(arguments_.section_heads, arguments_.heads - section * arguments_.section_heads);
    const int tiles = heads * arguments_.map.row_tiles;
    while (load_acquire(arguments_.closed + section) < tiles) __nanosleep(500);
    __syncwarp();
    fence_loads_for_async();
  }

  __device__ __forceinline__ void convert(int tile, int head, int row_tile) {
    const float* sums = arguments_.query_sums + static_cast<std::int64_t>(tile) * (Shape::kRows * Shape::kHeadDim);
    copy(sums, 0);
    copy(sums, 1);
#pragma unroll 1
    for (int quarter = 0; quarter < kQuarters; ++quarter) {
      const int slot = quarter % 2;
      // Two quarters of each tile go through a slot: phases begin anew with it.
      barrier_wait(&shared_.sums_full[warp_][slot], quarter / 2);
      constexpr bool kSplitsRows = Shape::kRows == 128;
      write(shared_.sums[warp_][slot], head, row_tile * Shape::kRows + (kSplitsRows ? quarter / 2 * 64 : 0),
            (kSplitsRows ? quarter % 2 : quarter) * 32);
      __syncwarp();
      if (quarter + 2 < kQuarters) copy(sums, quarter + 2);
    }
  }

  __device__ __forceinline__ void copy(const float* sums, int quarter) {
    if (lane_index() != 0) return;
    std::uint64_t* full = &shared_.sums_full[warp_][quarter % 2];
    barrier_arrive_expecting(full, kQuarterBytes);
    copy_bytes(shared_.sums[warp_][quarter % 2], sums + quarter * (kQuarterBytes / 4), kQuarterBytes, full);
  }

  /// 32 columns of 64 rows: 16 rows a warp of the column kernel's group, two a thread.
  __device__ __forceinline__ void write(const float4* sums, int head, int first_row, int first_column) {
    const int lane = lane_index(), column = first_column + lane % 4 * 8;
    T* const out = static_cast<T*>(arguments_.grad_q) + head / arguments_.query_heads * arguments_.grad_q_batch +
                   head % arguments_.query_heads * arguments_.grad_q_head + column;
#pragma unroll 1
    for (int warp = 0; warp < 4; ++warp) {
      std::uint32_t words[2][4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float4 four = sums[i * 128 + warp * 32 + lane];
        words[0][i] = pack<T>(four.x * arguments_.scale, four.y * arguments_.scale);
        words[1][i] = pack<T>(four.z * arguments_.scale, four.w * arguments_.scale);
      }
      transpose_in_quad(words[0], lane % 4);
      transpose_in_quad(words[1], lane % 4);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = first_row + warp * 16 + h * 8 + lane / 4;
        if (row < arguments_.query_length && column < arguments_.head_dim)
          *reinterpret_cast<uint4*>(out + row * arguments_.grad_q_row) = {words[h][0], words[h][1], words[h][2],
                                                                          words[h][3]};
      }
    }
  }

  ColumnMemory<Shape>& shared_;
  const ColumnArguments& arguments_;
  int warp_;
};

}  // namespace flashmask::cuda::sm90
