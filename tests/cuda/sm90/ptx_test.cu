// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <vector>

#include "cuda/device_array.cuh"
#include "cuda/instructions/arithmetic.cuh"
#include "cuda/sm90/instructions/ptx.h"
#include "cuda/sm90/instructions/tensor_map.h"
#include "flashmask/tensor.h"

/// Each instruction by itself, on one tile, against arithmetic on the host.
namespace flashmask::cuda::sm90 {
namespace {

using check::DeviceArray;

constexpr int kPhases = 5;

/// Three warps arrive, a fourth waits: what it then adds up, they wrote before, and do not write again until it has.
__global__ void count_arrivals(int* sums) {
  __shared__ alignas(8) std::uint64_t full, empty;
  __shared__ int values[96];
  if (threadIdx.x == 0) {
    barrier_init(&full, 96);
    barrier_init(&empty, 1);
    barrier_init_fence();
  }
  __syncthreads();
  const int thread = static_cast<int>(threadIdx.x);
  for (int phase = 0; phase < kPhases; ++phase) {
    if (thread < 96) {
      if (phase > 0) barrier_wait(&empty, (phase - 1) & 1);
      values[thread] = thread * (phase + 1);
      barrier_arrive(&full);
    } else if (thread == 96) {
      barrier_wait(&full, phase & 1);
      int sum = 0;
      for (const int value : values) sum += value;
      sums[phase] = sum;
      barrier_arrive_behind(&empty, static_cast<std::uint32_t>(sum));
    }
  }
}

TEST(Barrier, LetsWaitersSeeWhatWasWrittenBeforeArrivals) {
  const DeviceArray<int> sums(kPhases);
  count_arrivals<<<1, 128>>>(sums.data());
  for (int phase = 0; phase < kPhases; ++phase) EXPECT_EQ(sums.values()[phase], 96 * 95 / 2 * (phase + 1)) << phase;
}

/// Warps 0 and 1 write and go on; warps 2 and 3 wait for them and read.
__global__ void meet(int* read) {
  __shared__ int values[64];
  const int thread = static_cast<int>(threadIdx.x);
  for (int turn = 0; turn < kPhases; ++turn) {
    if (thread < 64) {
      if (turn > 0) named_barrier(2, 128);
      values[thread] = 100 * turn + thread;
      named_barrier_arrive(1, 128);
    } else {
      named_barrier(1, 128);
      read[turn * 64 + thread - 64] = values[127 - thread];
      if (turn + 1 < kPhases) named_barrier_arrive(2, 128);
    }
  }
}

TEST(NamedBarrier, HoldsBackThoseWhoWaitUntilAllHaveArrived) {
  const DeviceArray<int> read(kPhases * 64);
  meet<<<1, 128>>>(read.data());
  const std::vector<int> values = read.values();
  for (int turn = 0; turn < kPhases; ++turn)
    for (int i = 0; i < 64; ++i) ASSERT_EQ(values[turn * 64 + i], 100 * turn + 63 - i);
}

/// Of two groups of two warps, each with a barrier of its own, one thread says true in some turns.
__global__ void ask_around(int* answers) {
  const int thread = static_cast<int>(threadIdx.x), group = thread / 64;
  for (int turn = 0; turn < kPhases; ++turn)
    answers[turn * 128 + thread] = named_barrier_any(1 + group, 64, turn % 2 == group && thread % 64 == 37) ? 1 : 0;
}

TEST(NamedBarrier, TellsAllOfItsThreadsWhetherOneSaidTrue) {
  const DeviceArray<int> answers(kPhases * 128);
  ask_around<<<1, 128>>>(answers.data());
  const std::vector<int> values = answers.values();
  for (int turn = 0; turn < kPhases; ++turn)
    for (int i = 0; i < 128; ++i) ASSERT_EQ(values[turn * 128 + i], turn % 2 == i / 64 ? 1 : 0) << turn << ' ' << i;
}

constexpr int kBoxRows = 16, kBoxBytes = kBoxRows * 128;

__global__ void copy_one_box(const __grid_constant__ CUtensorMap map, int column, int head, int row, int batch,
                             std::uint16_t* out) {
  __shared__ alignas(1024) std::uint16_t box[kBoxBytes / 2];
  __shared__ alignas(8) std::uint64_t full;
  if (threadIdx.x == 0) {
    barrier_init(&full, 1);
    barrier_init_fence();
    prefetch_tensor_map(&map);
    barrier_arrive_expecting(&full, kBoxBytes);
    copy_box(box, &map, &full, column, head, row, batch);
  }
  __syncthreads();
  barrier_wait(&full, 0);
  for (int i = static_cast<int>(threadIdx.x); i < kBoxBytes / 2; i += 32) out[i] = box[i];
}

/// Where element (row, column) of a panel of 64 columns lies under the 128-byte swizzle.
int swizzled(int row, int column) { return row * 64 + ((column / 8) ^ (row % 8)) * 8 + column % 8; }

/// Two sequences of 21 rows, 3 heads of 72 numbers.
struct Box {
  int column, head, row, batch;
};

class CopyBox : public testing::TestWithParam<Box> {
 protected:
  static constexpr int kBatch = 2, kRows = 21, kHeads = 3, kDim = 72;

  static std::uint16_t number(int batch, int row, int head, int column) {
    return static_cast<std::uint16_t>(1 + ((batch * kRows + row) * kHeads + head) * kDim + column);
  }
};

TEST_P(CopyBox, BringsSwizzledRowsAndZerosFromOutside) {
  std::vector<std::uint16_t> numbers;
  for (int batch = 0; batch < kBatch; ++batch)
    for (int row = 0; row < kRows; ++row)
      for (int head = 0; head < kHeads; ++head)
        for (int column = 0; column < kDim; ++column) numbers.push_back(number(batch, row, head, column));
  const DeviceArray<std::uint16_t> tensor(numbers), out(kBoxBytes / 2);
  const CUtensorMap map =
      make_tensor_map("test", contiguous(tensor.data(), DType::bf16, {kBatch, kRows, kHeads, kDim}), kBoxRows);
  const Box at = GetParam();
  copy_one_box<<<1, 32>>>(map, at.column, at.head, at.row, at.batch, out.data());
  const std::vector<std::uint16_t> box = out.values();
  for (int row = 0; row < kBoxRows; ++row)
    for (int column = 0; column < 64; ++column) {
      const bool inside = at.row + row < kRows && at.column + column < kDim;
      const int expected = inside ? number(at.batch, at.row + row, at.head, at.column + column) : 0;
      ASSERT_EQ(box[swizzled(row, column)], expected) << row << ", " << column;
    }
}

INSTANTIATE_TEST_SUITE_P(Places, CopyBox,
                         testing::Values(Box{0, 0, 0, 0}, Box{0, 2, 3, 1}, Box{64, 1, 0, 0}, Box{0, 1, 16, 1},
                                         Box{64, 2, 20, 0}));

__global__ void copy_line(const int* from, int* to) {
  __shared__ alignas(16) int line[128];
  __shared__ alignas(8) std::uint64_t full;
  line[threadIdx.x] = -7;
  if (threadIdx.x == 0) {
    barrier_init(&full, 1);
    barrier_init_fence();
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    barrier_arrive_expecting(&full, 400);
    copy_bytes(line, from + 4, 400, &full);
  }
  barrier_wait(&full, 0);
  to[threadIdx.x] = line[threadIdx.x];
}

TEST(CopyBytes, BringsAsManyAsAskedFor) {
  std::vector<int> numbers(128);
  for (int i = 0; i < 128; ++i) numbers[i] = 1000 + i;
  const DeviceArray<int> from(numbers), to(128);
  copy_line<<<1, 128>>>(from.data(), to.data());
  const std::vector<int> line = to.values();
  for (int i = 0; i < 128; ++i) ASSERT_EQ(line[i], i < 100 ? 1004 + i : -7) << i;
}

/// Matrix m holds 64 m + 8 row + column.
__global__ void store_matrices(std::uint16_t* out) {
  __shared__ alignas(16) std::uint16_t stored[4 * 64];
  const int lane = lane_index();
  std::uint32_t words[4];
  for (int m = 0; m < 4; ++m) {
    const std::uint32_t low = 64 * m + 8 * (lane / 4) + 2 * (lane % 4);
    words[m] = (low + 1) << 16 | low;
  }
  store_matrices_transposed(shared_address(stored + lane * 8), words);
  __syncwarp();
  for (int i = 0; i < 8; ++i) out[lane * 8 + i] = stored[lane * 8 + i];
}

TEST(StoreMatrices, TransposesEachOfFour) {
  const DeviceArray<std::uint16_t> out(256);
  store_matrices<<<1, 32>>>(out.data());
  const std::vector<std::uint16_t> stored = out.values();
  for (int m = 0; m < 4; ++m)
    for (int row = 0; row < 8; ++row)
      for (int column = 0; column < 8; ++column)
        ASSERT_EQ(stored[64 * m + 8 * row + column], 64 * m + 8 * column + row);
}

__global__ void transpose_one(std::uint32_t* words) {
  const int lane = lane_index();
  const std::uint32_t low = 8 * (lane / 4) + 2 * (lane % 4);
  words[lane] = transpose_matrix((low + 1) << 16 | low);
}

TEST(TransposeMatrix, GivesEachThreadAColumn) {
  const DeviceArray<std::uint32_t> out(32);
  transpose_one<<<1, 32>>>(out.data());
  const std::vector<std::uint32_t> words = out.values();
  for (std::uint32_t lane = 0; lane < 32; ++lane) {
    const std::uint32_t low = 16 * (lane % 4) + lane / 4;
    ASSERT_EQ(words[lane], (low + 8) << 16 | low) << lane;
  }
}

__global__ void add_many(float* sums) {
  const auto thread = static_cast<float>(threadIdx.x);
  add_to_global(sums + 4 * (threadIdx.x % 2), thread, 1, -thread, 0.5F);
}

TEST(AddToGlobal, LosesNoAddition) {
  const DeviceArray<float> sums(std::vector<float>(8, 100));
  add_many<<<3, 256>>>(sums.data());
  const float even = 3 * 2.0F * 127 * 128 / 2, odd = even + 3 * 128;
  const std::vector<float> expected = {100 + even, 100 + 3 * 128, 100 - even, 100 + 3 * 64,
                                       100 + odd,  100 + 3 * 128, 100 - odd,  100 + 3 * 64};
  EXPECT_EQ(sums.values(), expected);
}

}  // namespace
}  // namespace flashmask::cuda::sm90
