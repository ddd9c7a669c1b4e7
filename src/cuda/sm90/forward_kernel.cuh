#pragma once

#include <cstdint>

#include "cuda/sm90/ptx.h"
#include "cuda/sm90/tile_walk.cuh"
#include "cuda/sm90/wgmma.h"

/// The forward on Hopper: one producer warp streams Q, K and V into shared memory through the copy engine, three warps
/// beside it turn the intervals of partial tiles into bits, and two warpgroups of 64 rows each compute. Blocks stay and
/// take row tiles from a counter.
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

/// One warp: takes row tiles from the counter and says how many tiles each has, one row tile ahead of those who work.
template <class Shape>
class Scheduler {
 public:
  __device__ __forceinline__ Scheduler(SharedMemory<Shape>& shared, const ForwardArguments& arguments)
      : shared_(shared), arguments_(arguments), lane_(threadIdx.x % 32) {}

  __device__ __forceinline__ void run(int items) {
    for (int item = blockIdx.x; item < items; item = next_item()) {
      const RowTile tile(item, arguments_);
      const TileCount count = MapRow(arguments_.map, tile.batch, tile.head, tile.row_tile).count(lane_);
      publish({item, count.masked, count.full});
    }
    publish({-1, 0, 0});
  }

 private:
  __device__ __forceinline__ int next_item() {
    int item = 0;
    barrier_wait(&shared_.work_empty[work_.slot], work_.phase ^ 1);
    if (lane_ == 0) item = static_cast<int>(gridDim.x) + atomicAdd(arguments_.next_item, 1);
    return __shfl_sync(~0U, item, 0);
  }

  __device__ __forceinline__ void publish(const Work& work) {
    barrier_wait(&shared_.work_empty[work_.slot], work_.phase ^ 1);
    if (lane_ == 0) {
      shared_.work[work_.slot] = work;
      barrier_arrive(&shared_.work_full[work_.slot]);
    }
    __syncwarp();
    work_.advance();
  }

  SharedMemory<Shape>& shared_;
  const ForwardArguments& arguments_;
  int lane_;
  RingPosition<kWorkSlots> work_;
};

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

/// One warp: keeps the rings of Q, K and V filled.
template <class Shape>
class Producer {
 public:
  __device__ __forceinline__ Producer(SharedMemory<Shape>& shared, const ForwardArguments& arguments,
                                      const CUtensorMap* q, const CUtensorMap* k, const CUtensorMap* v)
      : shared_(shared), arguments_(arguments), q_(q), k_(k), v_(v), lane_(threadIdx.x % 32) {}

  __device__ __forceinline__ void run() {
    for (Work work = take_work(shared_, work_); work.item >= 0; work = take_work(shared_, work_)) {
      if (work.masked_tiles + work.full_tiles == 0) continue;
      const RowTile tile(work.item, arguments_);
      stream(tile, MapRow(arguments_.map, tile.batch, tile.head, tile.row_tile));
    }
  }

 private:
  /// K runs one tile ahead of V, as the products do.
  __device__ __forceinline__ void stream(const RowTile& tile, const MapRow& row) {
    const int kv_head = tile.head / arguments_.head_ratio;
    barrier_wait(&shared_.q_empty[queries_.slot], queries_.phase ^ 1);
    if (lane_ == 0) {
      barrier_arrive_expecting(&shared_.q_full[queries_.slot], Shape::kQueryBytes);
      copy_rows<Shape::kRows, Shape::kHeadDim>(shared_.q[queries_.slot], q_, &shared_.q_full[queries_.slot],
                                               tile.row_tile * Shape::kRows, tile.head, tile.batch);
    }
    queries_.advance();
    int before = -1;
    row.for_each_tile(lane_, [&](int column_tile) {
      copy_keys(column_tile, kv_head, tile.batch);
      if (before >= 0) copy_values(before, kv_head, tile.batch);
      before = column_tile;
    });
    copy_values(before, kv_head, tile.batch);
  }

  __device__ __forceinline__ void copy_keys(int column_tile, int kv_head, int batch) {
    barrier_wait(&shared_.k_empty[keys_.slot], keys_.phase ^ 1);
    if (lane_ == 0) {
      barrier_arrive_expecting(&shared_.k_full[keys_.slot], Shape::kKeyBytes);
      copy_rows<Shape::kColumns, Shape::kHeadDim>(shared_.k[keys_.slot], k_, &shared_.k_full[keys_.slot],
                                                  column_tile * Shape::kColumns, kv_head, batch);
    }
    keys_.advance();
  }

  __device__ __forceinline__ void copy_values(int column_tile, int kv_head, int batch) {
    barrier_wait(&shared_.v_empty[values_.slot], values_.phase ^ 1);
    if (lane_ == 0) {
      barrier_arrive_expecting(&shared_.v_full[values_.slot], Shape::kValueBytes);
      copy_rows<Shape::kColumns, Shape::kValueDim>(shared_.v[values_.slot], v_, &shared_.v_full[values_.slot],
                                                   column_tile * Shape::kColumns, kv_head, batch);
    }
    values_.advance();
  }

  SharedMemory<Shape>& shared_;
  const ForwardArguments& arguments_;
  const CUtensorMap *q_, *k_, *v_;
  int lane_;
  RingPosition<kWorkSlots> work_;
  RingPosition<Shape::kQueryStages> queries_;
  RingPosition<Shape::kStages> keys_, values_;
};

/// Two warps: each every other masked tile, as bits in the order of accumulators.
template <class Shape>
class BitBuilder {
 public:
  __device__ __forceinline__ BitBuilder(SharedMemory<Shape>& shared, const ForwardArguments& arguments, int builder)
      : shared_(shared), arguments_(arguments), lane_(threadIdx.x % 32), turn_(builder) {}

  __device__ __forceinline__ void run() {
    for (Work work = take_work(shared_, work_); work.item >= 0; work = take_work(shared_, work_)) {
      if (work.masked_tiles == 0) continue;
      const RowTile tile(work.item, arguments_);
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

  SharedMemory<Shape>& shared_;
  const ForwardArguments& arguments_;
  int lane_;
  int turn_;
  RingPosition<kWorkSlots> work_;
  RingPosition<kBitSlots> bits_;
};

/// A warpgroup: 64 rows of every row tile. A thread holds parts of two rows, quads of threads hold whole ones.
template <class Shape>
class Consumer {
  using T = typename Shape::Element;
  static constexpr int kScores = Shape::kColumns / 2;
  static constexpr int kOutputs = Shape::kValueDim / 2;
  static constexpr int kSteps = Shape::kColumns / 16;

 public:
  __device__ __forceinline__ Consumer(SharedMemory<Shape>& shared, const ForwardArguments& arguments)
      : shared_(shared),
        arguments_(arguments),
        group_(threadIdx.x / 128 - 1),
        row_(group_ * 64 + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4) {}

  __device__ __forceinline__ void run() {
    float o[kOutputs];
    if (group_ + 1 == Shape::kGroups) pass_turn();
    for (Work work = take_work(shared_, work_); work.item >= 0; work = take_work(shared_, work_)) {
      begin_rows(o);
      if (work.masked_tiles + work.full_tiles > 0) attend(o, work);
      finish_rows(o, RowTile(work.item, arguments_));
    }
  }

 private:
  static __device__ __forceinline__ int lane() { return lane_index(); }

  __device__ __forceinline__ void release(std::uint64_t* barrier) {
    __syncwarp();
    if (lane() == 0) barrier_arrive(barrier);
  }

  /// Warpgroups ask for their products one after the other, so that one computes exponentials while the other
  /// multiplies.
  __device__ __forceinline__ void await_turn() {
    if constexpr (Shape::kTakesTurns) named_barrier(1 + group_, 2 * 128);
  }
  __device__ __forceinline__ void pass_turn() {
    if constexpr (Shape::kTakesTurns) named_barrier_arrive(1 + (group_ + 1) % Shape::kGroups, 2 * 128);
  }

  __device__ __forceinline__ void begin_rows(float (&o)[kOutputs]) {
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) o[i] = 0;
    maximum_[0] = maximum_[1] = -INFINITY;
    sum_[0] = sum_[1] = 0;
  }

  /// The products of one tile overlap the softmax of the next.
  __device__ __forceinline__ void attend(float (&o)[kOutputs], const Work& work) {
    std::uint32_t p[kSteps][4];
    barrier_wait(&shared_.q_full[queries_.slot], queries_.phase);
    first_tile(p, work.masked_tiles > 0);
#pragma unroll 1
    for (int tile = 1; tile < work.masked_tiles; ++tile) next_tile<true>(o, p);
    const int full_tiles = work.full_tiles - (work.masked_tiles == 0 ? 1 : 0);
#pragma unroll 1
    for (int tile = 0; tile < full_tiles; ++tile) next_tile<false>(o, p);
    release(&shared_.q_empty[queries_.slot]);
    queries_.advance();
    barrier_wait(&shared_.v_full[values_.slot], values_.phase);
    pin(o);
    wgmma_fence();
    multiply_values(o, p);
    wgmma_wait<0>();
    pin(o);
    release(&shared_.v_empty[values_.slot]);
    values_.advance();
  }

  __device__ __forceinline__ void first_tile(std::uint32_t (&p)[kSteps][4], bool masked) {
    float s[kScores];
    barrier_wait(&shared_.k_full[keys_.slot], keys_.phase);
    wgmma_fence();
    multiply_keys(s);
    wgmma_wait<0>();
    pin(s);
    release(&shared_.k_empty[keys_.slot]);
    keys_.advance();
    if (masked) {
      std::uint32_t bits[2];
      take_bits(bits);
      hide(s, bits);
    }
    float factor[2];
    raise_maximum(s, factor);
    exponentiate(s);
    round(p, s);
  }

  template <bool kMasked>
  __device__ __forceinline__ void next_tile(float (&o)[kOutputs], std::uint32_t (&p)[kSteps][4]) {
    float s[kScores];
    barrier_wait(&shared_.k_full[keys_.slot], keys_.phase);
    await_turn();
    pin(o);
    wgmma_fence();
    multiply_keys(s);
    barrier_wait(&shared_.v_full[values_.slot], values_.phase);
    wgmma_fence();
    multiply_values(o, p);
    pass_turn();
    std::uint32_t bits[2];
    if constexpr (kMasked) take_bits(bits);
    wgmma_wait<1>();
    pin(s);
    release(&shared_.k_empty[keys_.slot]);
    keys_.advance();
    if constexpr (kMasked) hide(s, bits);
    float factor[2];
    const bool raised = raise_maximum(s, factor);
    exponentiate(s);
    pin(s);
    // Has passed long ago: a branch here keeps the exponentials from sinking behind the wait for the product.
    barrier_wait(&shared_.v_full[values_.slot], values_.phase);
    wgmma_wait<0>();
    pin(o);
    release(&shared_.v_empty[values_.slot]);
    values_.advance();
    round(p, s);
    if (raised) rescale(o, factor);
  }

  /// s = q kᵀ
  __device__ __forceinline__ void multiply_keys(float (&s)[kScores]) {
    std::uint32_t q = shared_address(shared_.q[queries_.slot]) + group_ * 64 * kPanel * 2;
    const std::uint32_t k = shared_address(shared_.k[keys_.slot]);
    // With one buffer the compiler would keep a descriptor a step over the whole loop.
    if constexpr (Shape::kQueryStages == 1) asm volatile("" : "+r"(q));
#pragma unroll
    for (int step = 0; step < Shape::kHeadDim / 16; ++step) {
      const std::uint32_t inside = step % 4 * 32;
      Products<T, Shape::kColumns>::ss(s, tile_descriptor(q + step / 4 * (Shape::kRows * kPanel * 2) + inside, 16),
                                       tile_descriptor(k + step / 4 * (Shape::kColumns * kPanel * 2) + inside, 16),
                                       step > 0);
    }
    wgmma_commit();
  }

  /// o += p v
  __device__ __forceinline__ void multiply_values(float (&o)[kOutputs], const std::uint32_t (&p)[kSteps][4]) {
    const std::uint32_t v = shared_address(shared_.v[values_.slot]);
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
      Products<T, Shape::kValueDim>::rs(o, p[step],
                                        tile_descriptor(v + step * 16 * kPanel * 2, Shape::kColumns * kPanel * 2), 1);
    wgmma_commit();
  }

  /// Bits of the thread's two rows.
  __device__ __forceinline__ void take_bits(std::uint32_t (&masked)[2]) {
    barrier_wait(&shared_.bits_full[bits_.slot], bits_.phase);
    const std::uint32_t* words = shared_.bits[bits_.slot].words + lane() % 4 * TileBits<Shape::kRows>::kPitch + row_;
    masked[0] = words[0];
    masked[1] = words[8];
    release(&shared_.bits_empty[bits_.slot]);
    bits_.advance();
  }

  static __device__ __forceinline__ void hide(float (&s)[kScores], const std::uint32_t (&masked)[2]) {
    // One row after the other: the compiler then moves a word's bits into predicates all at once.
#pragma unroll
    for (int row = 0; row < 2; ++row) {
#pragma unroll
      for (int i = 0; i < kScores / 2; ++i)
        if (masked[row] & (1U << i)) s[i / 2 * 4 + row * 2 + i % 2] = -INFINITY;
    }
  }

  /// Follows the maxima of the rows once they grew by more than the threshold; `factor` is what sums so far then shrink
  /// by. A lagging maximum changes no result but for rounding, as numerator and denominator share it.
  __device__ __forceinline__ bool raise_maximum(const float (&s)[kScores], float (&factor)[2]) {
    float found[2] = {s[0], s[2]};
#pragma unroll
    for (int i = 0; i < kScores; ++i) found[i % 4 / 2] = fmaxf(found[i % 4 / 2], s[i]);
    bool grew = false;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      found[row] = fmaxf(found[row], __shfl_xor_sync(~0U, found[row], 1));
      found[row] = fmaxf(found[row], __shfl_xor_sync(~0U, found[row], 2));
      grew |= (found[row] - maximum_[row]) * arguments_.scale_log2 > kRescaleThreshold;
    }
    if (!__any_sync(~0U, grew)) return false;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const float raised = fmaxf(found[row], maximum_[row]);
      const float shift = raised == -INFINITY ? 0 : raised;
      factor[row] = exp2_approximate((maximum_[row] - shift) * arguments_.scale_log2);
      maximum_[row] = raised;
      sum_[row] *= factor[row];
    }
    return true;
  }

  __device__ __forceinline__ void exponentiate(float (&s)[kScores]) {
    float shift[2];
#pragma unroll
    for (int row = 0; row < 2; ++row)
      shift[row] = maximum_[row] == -INFINITY ? 0 : maximum_[row] * arguments_.scale_log2;
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      s[i] = exp2_approximate(fmaf(s[i], arguments_.scale_log2, -shift[i % 4 / 2]));
      sum_[i % 4 / 2] += s[i];
    }
  }

  /// Accumulators of one product are, packed, the operand of the next.
  __device__ __forceinline__ void round(std::uint32_t (&p)[kSteps][4], const float (&s)[kScores]) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
#pragma unroll
      for (int i = 0; i < 4; ++i) p[step][i] = pack<T>(s[8 * step + 2 * i], s[8 * step + 2 * i + 1]);
  }

  __device__ __forceinline__ void rescale(float (&o)[kOutputs], const float (&factor)[2]) {
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) o[i] *= factor[i % 4 / 2];
  }

  __device__ __forceinline__ void finish_rows(float (&o)[kOutputs], const RowTile& tile) {
    float inverse[2];
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      sum_[row] += __shfl_xor_sync(~0U, sum_[row], 1);
      sum_[row] += __shfl_xor_sync(~0U, sum_[row], 2);
      inverse[row] = sum_[row] > 0 ? 1 / sum_[row] : 0;
    }
    const int first = tile.row_tile * Shape::kRows + row_;
    if (lane() % 4 == 0) store_lse(tile, first);
    store_rows(o, inverse, tile, first);
  }

  __device__ __forceinline__ void store_lse(const RowTile& tile, int first) {
    float* lse = arguments_.lse + tile.batch * arguments_.lse_batch + tile.head * arguments_.lse_head;
    constexpr float kLn2 = 0.693147180559945F;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      if (first + 8 * row >= arguments_.query_length) continue;
      lse[first + 8 * row] =
          sum_[row] > 0 ? (maximum_[row] * arguments_.scale_log2 + log2f(sum_[row])) * kLn2 : -INFINITY;
    }
  }

  /// Four groups of eight columns at a time: a quad exchanges words, so that each thread stores 16 bytes of one group.
  __device__ __forceinline__ void store_rows(const float (&o)[kOutputs], const float (&inverse)[2], const RowTile& tile,
                                             int first) {
    T* out = static_cast<T*>(arguments_.o) + tile.batch * arguments_.o_batch + tile.head * arguments_.o_head;
    const int quad = lane() % 4;
#pragma unroll
    for (int group = 0; group < Shape::kValueDim / 32; ++group) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        std::uint32_t words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int at = (group * 4 + i) * 4 + row * 2;
          words[i] = pack<T>(o[at] * inverse[row], o[at + 1] * inverse[row]);
        }
        transpose_in_quad(words, quad);
        const int column = group * 32 + quad * 8;
        const int query = first + 8 * row;
        if (query < arguments_.query_length && column < arguments_.value_dim)
          *reinterpret_cast<uint4*>(out + query * arguments_.o_row + column) = {words[0], words[1], words[2], words[3]};
      }
    }
  }

  /// words[i] of thread t becomes words[t] of thread i.
  static __device__ __forceinline__ void transpose_in_quad(std::uint32_t (&words)[4], int quad) {
    exchange<1>(words[0], words[1], quad);
    exchange<1>(words[2], words[3], quad);
    exchange<2>(words[0], words[2], quad);
    exchange<2>(words[1], words[3], quad);
  }

  template <int kDistance>
  static __device__ __forceinline__ void exchange(std::uint32_t& low, std::uint32_t& high, int quad) {
    const bool upper = (quad & kDistance) != 0;
    const std::uint32_t received = __shfl_xor_sync(~0U, upper ? low : high, kDistance);
    (upper ? low : high) = received;
  }

  SharedMemory<Shape>& shared_;
  const ForwardArguments& arguments_;
  int group_;
  int row_;  // of the row tile; the thread's second row is 8 further on
  float maximum_[2], sum_[2];
  RingPosition<kWorkSlots> work_;
  RingPosition<kBitSlots> bits_;
  RingPosition<Shape::kQueryStages> queries_;
  RingPosition<Shape::kStages> keys_, values_;
};

template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks)
    forward_kernel(const __grid_constant__ CUtensorMap q, const __grid_constant__ CUtensorMap k,
                   const __grid_constant__ CUtensorMap v, const __grid_constant__ ForwardArguments arguments) {
  extern __shared__ std::uint8_t memory[];
  auto& shared = *reinterpret_cast<SharedMemory<Shape>*>(memory);
  const int warp = threadIdx.x / 32;
  if (threadIdx.x == 0) {
    prefetch_tensor_map(&q);
    prefetch_tensor_map(&k);
    prefetch_tensor_map(&v);
    init_barriers(shared);
  }
  __syncthreads();
  if (warp < 4) {
    give_registers<Shape::kProducerRegisters>();
    if (warp == 0) {
      Producer<Shape>(shared, arguments, &q, &k, &v).run();
    } else if (warp == 1) {
      Scheduler<Shape>(shared, arguments).run(arguments.batch * arguments.query_heads * arguments.map.row_tiles);
    } else {
      BitBuilder<Shape>(shared, arguments, warp - 2).run();
    }
  } else {
    take_registers<Shape::kConsumerRegisters>();
    Consumer<Shape>(shared, arguments).run();
  }
}

}  // namespace flashmask::cuda::sm90
