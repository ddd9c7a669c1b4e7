#pragma once

#include <cstdint>

#include "cuda/sm90/ptx.h"
#include "cuda/sm90/tile_walk.cuh"

/// What the warps of the forward share: what a launch is about, shared memory and its barriers, row tiles and work.
namespace flashmask::cuda::sm90 {

constexpr int kPanel = 64;  // elements of a row that one copy and one swizzle cover
constexpr int kBuilderWarps = 2;
constexpr int kBitSlots = 4;
constexpr int kWorkSlots = 2;
constexpr float kRescaleThreshold = 8;  // in powers of two that the running maximum may lag behind

/// What one launch is about, beside the tensors that the copy engine reads.
struct ForwardArguments {
  void* o;
  float* lse;
  std::int64_t o_batch, o_row, o_head, lse_batch, lse_head;  // strides in elements
  int batch, query_length, key_length, query_heads, value_dim;
  int head_ratio;     // query heads that share a key head
  float scale_log2;   // softmax scale · log2(e)
  int section_heads;  // heads whose keys and values stay in the L2 cache together
  TileMapView map;
  const std::int32_t* intervals[4];  // of a DevicePlan
  int* next_item;                    // 0 at the start of a launch
};

template <class T, int kHeadDim_, int kValueDim_, int kGroups_, int kColumns_, int kProducerRegisters_,
          int kConsumerRegisters_, bool kTakesTurns_ = false>
struct ForwardShape {
  using Element = T;
  static constexpr int kHeadDim = kHeadDim_, kValueDim = kValueDim_, kGroups = kGroups_, kRows = 64 * kGroups,
                       kColumns = kColumns_;
  static constexpr int kStages = 2, kQueryStages = kHeadDim > 128 ? 1 : 2;
  static constexpr bool kTakesTurns = kTakesTurns_;
  static constexpr int kBlocks = kGroups == 1 ? 2 : 1;  // on a multiprocessor
  static constexpr int kConsumerWarps = 4 * kGroups, kThreads = 128 * (kGroups + 1);
  static constexpr int kProducerRegisters = kProducerRegisters_, kConsumerRegisters = kConsumerRegisters_;
  static constexpr int kQueryBytes = kRows * kHeadDim * 2, kKeyBytes = kColumns * kHeadDim * 2,
                       kValueBytes = kColumns * kValueDim * 2;
};

/// Bits of a partial tile in the order of accumulators: word [q][row] holds the columns 8 i + 2 q and 8 i + 2 q + 1 of
/// a row at bits 2 i and 2 i + 1, 1 = masked. The padding keeps builders and consumers off each other's banks.
template <int kRows>
struct TileBits {
  static constexpr int kPitch = kRows + 8;
  alignas(16) std::uint32_t words[4 * kPitch];
};

struct Work {
  int item, masked_tiles, full_tiles;
};

template <class Shape>
struct SharedMemory {
  alignas(1024) std::uint8_t q[Shape::kQueryStages][Shape::kQueryBytes];
  alignas(1024) std::uint8_t k[Shape::kStages][Shape::kKeyBytes];
  alignas(1024) std::uint8_t v[Shape::kStages][Shape::kValueBytes];
  alignas(16) TileBits<Shape::kRows> bits[kBitSlots];
  Work work[kWorkSlots];
  std::uint64_t q_full[Shape::kQueryStages], q_empty[Shape::kQueryStages];
  std::uint64_t k_full[Shape::kStages], k_empty[Shape::kStages], v_full[Shape::kStages], v_empty[Shape::kStages];
  std::uint64_t bits_full[kBitSlots], bits_empty[kBitSlots];
  std::uint64_t work_full[kWorkSlots], work_empty[kWorkSlots];
};

/// Where a ring stands. Producers begin in the phase that lets their first waits pass.
template <int kSlots>
struct RingPosition {
  int slot = 0;
  std::uint32_t phase = 0;

  __device__ __forceinline__ void advance() {
    if (++slot == kSlots) {
      slot = 0;
      phase ^= 1;
    }
  }
};

/// The row tile that an item stands for: sections of heads one after another, inside one the last rows first, because
/// with causal masks they take longest; the heads of a row tile side by side.
struct RowTile {
  int batch, head, row_tile;

  __device__ __forceinline__ RowTile(int item, const ForwardArguments& arguments) {
    const int heads = arguments.batch * arguments.query_heads;
    const int section = item / (arguments.section_heads * arguments.map.row_tiles);
    const int first_head = section * arguments.section_heads;
    const int section_heads = min(arguments.section_heads, heads - first_head);
    const int rest = item - first_head * arguments.map.row_tiles;
    const int flat_head = first_head + rest % section_heads;
    row_tile = arguments.map.row_tiles - 1 - rest / section_heads;
    batch = flat_head / arguments.query_heads;
    head = flat_head % arguments.query_heads;
  }
};

template <class Shape>
__device__ __forceinline__ void init_barriers(SharedMemory<Shape>& shared) {
  for (int i = 0; i < Shape::kQueryStages; ++i) {
    barrier_init(&shared.q_full[i], 1);
    barrier_init(&shared.q_empty[i], Shape::kConsumerWarps);
  }
  for (int i = 0; i < Shape::kStages; ++i) {
    barrier_init(&shared.k_full[i], 1);
    barrier_init(&shared.k_empty[i], Shape::kConsumerWarps);
    barrier_init(&shared.v_full[i], 1);
    barrier_init(&shared.v_empty[i], Shape::kConsumerWarps);
  }
  for (int i = 0; i < kBitSlots; ++i) {
    barrier_init(&shared.bits_full[i], 1);
    barrier_init(&shared.bits_empty[i], Shape::kConsumerWarps);
  }
  for (int i = 0; i < kWorkSlots; ++i) {
    barrier_init(&shared.work_full[i], 1);
    barrier_init(&shared.work_empty[i], Shape::kConsumerWarps + kBuilderWarps + 1);
  }
  barrier_init_fence();
}

/// Rows [row, row + kRows) of one head: a panel of 64 columns after the other.
template <int kRows, int kDim>
__device__ __forceinline__ void copy_rows(std::uint8_t* destination, const CUtensorMap* map, std::uint64_t* barrier,
                                          int row, int head, int batch) {
#pragma unroll
  for (int panel = 0; panel < kDim / kPanel; ++panel)
    copy_box(destination + panel * kRows * kPanel * 2, map, barrier, panel * kPanel, head, row, batch);
}

/// The next row tile that the scheduler published; item < 0: there is none.
template <class Shape>
__device__ __forceinline__ Work take_work(SharedMemory<Shape>& shared, RingPosition<kWorkSlots>& position) {
  barrier_wait(&shared.work_full[position.slot], position.phase);
  const Work work = shared.work[position.slot];
  __syncwarp();
  if (threadIdx.x % 32 == 0) barrier_arrive(&shared.work_empty[position.slot]);
  position.advance();
  return work;
}

}  // namespace flashmask::cuda::sm90
