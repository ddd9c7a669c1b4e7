// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <vector>

#include "cuda/common/store_rows.cuh"
#include "cuda/device_array.cuh"
#include "cuda/sm90/instructions/store_rows_staged.cuh"
#include "cuda/sm90/instructions/tensor_map.h"
#include "flashmask/tensor.h"

/// A warpgroup's accumulators on their way to a tensor, against where each number has to arrive.
namespace flashmask::cuda::sm90 {
namespace {

using check::DeviceArray;

constexpr int kBatch = 2, kRows = 150, kHeads = 3, kDim = 72;  // of the tensor
constexpr int kPanels = 2, kCount = kPanels * 32, kPanelBytes = 128 * kPanel * 2;

/// Few enough that bfloat16 holds them.
__host__ __device__ int number(int row, int column) { return (row * 7 + column * 3) % 61; }

enum class Way { straight, staged };

/// Thread t of a warpgroup holds, of rows t / 32 · 16 + t % 32 / 4 and 8 further on, columns 8 i + 2 (t % 4) and + 1.
__global__ void store(const __grid_constant__ CUtensorMap map, const __grid_constant__ CUtensorMap row_map, Way way,
                      int first, int end, int head, int batch, __nv_bfloat16* out) {
  __shared__ alignas(1024) std::uint8_t panels[kPanels * kPanelBytes];
  const int thread = static_cast<int>(threadIdx.x), row = thread / 32 * 16 + thread % 32 / 4;
  float d[kCount];
  for (int i = 0; i < kCount; ++i)
    d[i] = static_cast<float>(number(row + i % 4 / 2 * 8, i / 4 * 8 + 2 * (thread % 4) + i % 2));
  const float factor[2] = {1, 2};
  if (way == Way::staged) {
    store_rows_staged<__nv_bfloat16>(d, factor, panels + 64 * kPanel * 2, kPanelBytes, {&map, &row_map}, first, end,
                                     head, batch);
    await_stores_read();
  } else {
    store_rows(d, factor, out + ((batch * kRows) * kHeads + head) * kDim, kHeads * kDim, first + row, end, kDim);
  }
}

struct Place {
  Way way;
  int first, end, head, batch;
};

class StoreRows : public testing::TestWithParam<Place> {};

TEST_P(StoreRows, ArriveScaledAndNothingElseIsTouched) {
  const Place to = GetParam();
  constexpr std::uint16_t kUntouched = 0x7FC1;
  const DeviceArray<std::uint16_t> out(std::vector<std::uint16_t>(kBatch * kRows * kHeads * kDim, kUntouched));
  const TensorView view = contiguous(out.data(), DType::bf16, {kBatch, kRows, kHeads, kDim});
  const CUtensorMap map = make_tensor_map("test", view, kWarpRows), row_map = make_tensor_map("test", view, 1);
  store<<<1, 128>>>(map, row_map, to.way, to.first, to.end, to.head, to.batch,
                    reinterpret_cast<__nv_bfloat16*>(out.data()));
  const std::vector<std::uint16_t> stored = out.values();
  for (int batch = 0; batch < kBatch; ++batch)
    for (int row = 0; row < kRows; ++row)
      for (int head = 0; head < kHeads; ++head)
        for (int column = 0; column < kDim; ++column) {
          const int own = row - to.first;
          const bool inside = batch == to.batch && head == to.head && own >= 0 && own < 64 && row < to.end;
          const auto value = static_cast<float>(number(own, column) * (own % 16 < 8 ? 1 : 2));
          const std::uint16_t expected = inside ? __bfloat16_as_ushort(__float2bfloat16_rn(value)) : kUntouched;
          ASSERT_EQ(stored[((batch * kRows + row) * kHeads + head) * kDim + column], expected)
              << batch << ", " << row << ", " << head << ", " << column;
        }
}

INSTANTIATE_TEST_SUITE_P(Places, StoreRows,
                         testing::Values(Place{Way::staged, 0, kRows, 0, 0}, Place{Way::staged, 64, kRows, 2, 1},
                                         Place{Way::staged, 128, kRows, 1, 0}, Place{Way::staged, 3, 40, 1, 0},
                                         Place{Way::staged, 64, 64, 0, 0}, Place{Way::straight, 64, kRows, 2, 0},
                                         Place{Way::straight, 3, 40, 1, 1}));

}  // namespace
}  // namespace flashmask::cuda::sm90
