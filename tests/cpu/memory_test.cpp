// SPDX-License-Identifier: Apache-2.0
#include <sys/mman.h>

#include <limits>

#include "flashmask/builders.h"
#include "gappy_tensor.h"
#include "kernels.h"
#include "kit/rounding.h"

/// What a kernel may read and what it must write.
namespace flashmask {
namespace {

class Memory : public test::EveryLevel {};

INSTANTIATE_TEST_SUITE_P(Cpu, Memory, testing::ValuesIn(test::levels()), test::level_name);

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

void poison_rows(check::HostTensor& tensor, std::int64_t begin, std::int64_t end, std::int64_t width) {
  for (std::int64_t i = begin * width; i < end * width; ++i) tensor.set(i, kNan);
}

TEST_P(Memory, KeysOfSkippedTilesMayHoldNan) {
  const Problem p = problem(512, 512);
  // The second half belongs to a document that no row of the first half sees, and its own rows are padding.
  const Mask mask = masks::causal_document(std::vector<std::int64_t>{256}, 512);
  check::AttentionTensors clean(p, 1), poisoned(p, 1);
  poison_rows(poisoned.k, 256, 512, p.head_dim);
  poison_rows(poisoned.v, 256, 512, p.value_dim);
  const Plan planned = plan(mask, p, test::forced(GetParam()));
  test::attend(planned, clean);
  test::attend(planned, poisoned);
  test::expect_same_results(clean, poisoned);
  EXPECT_TRUE(test::all_finite(poisoned.grad_k));
}

/// Forward and backward on one thread, in memory of which every byte is `fill`.
void attend_in_memory_of(std::uint8_t fill, const Plan& planned, const check::AttentionTensors& tensors) {
  for (const Direction direction : {Direction::forward, Direction::backward}) {
    std::vector<std::byte> memory(planned.workspace_bytes(direction, 1), static_cast<std::byte>(fill));
    const Execution execution{&serial_executor(), memory.data(), memory.size()};
    if (direction == Direction::forward) {
      forward(planned, tensors.forward(), execution);
    } else {
      backward(planned, tensors.backward(), execution);
    }
  }
}

TEST_P(Memory, WhatAWorkspaceHoldsChangesNoBit) {
  // Tiles of short documents are left out in part; what the scratch holds there is not to be summed.
  const Mask documents = masks::causal_document(std::vector<std::int64_t>{20, 45, 130, 1, 60, 90, 40}, 400);
  const Mask rows_that_see_nothing = from_predicate({1, 1, 400, 400}, [](auto, auto, std::int64_t row, auto column) {
    return column <= row && (row < 70 || row >= 100);
  });
  const Problem p = problem(400, 400);
  for (const Mask& mask : {documents, documents | masks::dilated_window(400, 400, 120, 0, 40), rows_that_see_nothing}) {
    if (!test::serves(GetParam(), mask)) continue;
    const Plan planned = plan(mask, p, test::forced(GetParam()));
    const check::AttentionTensors zeros(p, 1), nans(p, 1);
    attend_in_memory_of(0x00, planned, zeros);
    attend_in_memory_of(0xFF, planned, nans);
    test::expect_same_results(zeros, nans);
    EXPECT_TRUE(test::all_finite(nans.grad_q));
  }
}

TEST_P(Memory, WritesEveryElementAlsoWhereNothingIsVisible) {
  Problem p = problem(150, 170);
  p.query_heads = p.kv_heads = 2;
  const Mask hidden = from_predicate({1, 1, 150, 170}, [](auto, auto, auto, auto) { return false; });
  const check::AttentionTensors tensors(p, 1);
  test::attend(plan(hidden, p, test::forced(GetParam())), tensors);
  EXPECT_TRUE(test::all_equal(tensors.o, 0.0f));
  EXPECT_TRUE(test::all_equal(tensors.lse, -std::numeric_limits<float>::infinity()));
  EXPECT_TRUE(test::all_equal(tensors.grad_q, 0.0f));
  EXPECT_TRUE(test::all_equal(tensors.grad_k, 0.0f));
  EXPECT_TRUE(test::all_equal(tensors.grad_v, 0.0f));
}

TEST_P(Memory, WithoutKeysTheOutputIsThatOfEmptyRows) {
  const Problem p = problem(70, 0);
  const check::AttentionTensors tensors(p, 1);
  test::attend(plan(masks::full(70, 0), p, test::forced(GetParam())), tensors);
  EXPECT_TRUE(test::all_equal(tensors.o, 0.0f));
  EXPECT_TRUE(test::all_equal(tensors.lse, -std::numeric_limits<float>::infinity()));
  EXPECT_TRUE(test::all_equal(tensors.grad_q, 0.0f));
}

TEST_P(Memory, WithoutQueriesTheKeysHaveZeroGradients) {
  const Problem p = problem(0, 70);
  const check::AttentionTensors tensors(p, 1);
  test::attend(plan(masks::full(0, 70), p, test::forced(GetParam())), tensors);
  EXPECT_TRUE(test::all_equal(tensors.grad_k, 0.0f));
  EXPECT_TRUE(test::all_equal(tensors.grad_v, 0.0f));
}

TEST_P(Memory, WithoutKeysOrQueriesTheGradientOfABiasIsZero) {
  for (const auto& [rows, columns] : {std::pair<std::int64_t, std::int64_t>{70, 0}, {0, 70}, {0, 0}})
    for (const ScoreChange& bias : {scores::bias(), scores::distance()})
      for (const std::int64_t batch : {1, 2}) {  // rows share a table of distances where there are two
        Problem p = problem(rows, columns);
        p.batch = batch;
        p.change = bias;
        const check::AttentionTensors tensors(p, 1);
        test::attend(plan(masks::full(rows, columns), p, test::forced(GetParam())), tensors);
        EXPECT_TRUE(test::all_equal(*tensors.grad_bias, 0.0f)) << rows << " x " << columns << ", batch " << batch;
      }
}

TEST_P(Memory, AnEmptyBatchReturnsAtOnce) {
  Problem p = problem(10, 10);
  p.batch = 0;
  const check::AttentionTensors tensors(p, 1);
  EXPECT_NO_THROW(test::attend(plan(masks::full(10, 10), p, test::forced(GetParam())), tensors));
}

TEST_P(Memory, StridesChangeNoBitAndNothingIsWrittenBetweenThem) {
  for (const std::int64_t dim : {33, 64}) {
    Problem p = problem(130, 190);
    p.batch = 2;
    p.query_heads = 4;
    p.kv_heads = 2;
    p.head_dim = p.value_dim = dim;
    const Plan planned = plan(masks::causal(130, 190), p, test::forced(GetParam()));
    const check::AttentionTensors dense(p, 6);
    test::attend(planned, dense);
    test::expect_same_in_gappy_memory(planned, dense);
  }
}

TEST_P(Memory, LargeTensorsAreWrittenPastTheCachesWithTheSameBits) {
  if (GetParam().form != MaskForm::intervals) return;  // what is written does not depend on it
  // The backward's tensors are larger than 32 MiB. Rows with gaps begin within a line, so most go the other way.
  Problem p = problem(520, 520);
  p.query_heads = GetParam().dtype == DType::f32 ? 66 : 132;
  p.head_dim = p.value_dim = 64;
  const Plan planned = plan(masks::sliding_window(520, 520, 30), p, test::forced(GetParam()));
  const check::AttentionTensors dense(p, 6);
  test::attend(planned, dense);
  test::expect_same_in_gappy_memory(planned, dense);
}

TEST_P(Memory, OffsetsPast31BitsReachTheRightMemory) {
  // Two batch entries 2^31 + 64 elements apart, in memory that is reserved but hardly touched.
  Problem p = problem(65, 65);
  p.batch = 2;
  const check::AttentionTensors dense(p, 8);
  const Plan planned = plan(masks::causal(65, 65), p, test::forced(GetParam()));
  forward(planned, dense.forward());

  const std::int64_t far = (std::int64_t{1} << 31) + 64;
  const std::size_t element = size_in_bytes(p.dtype);
  const std::size_t bytes = static_cast<std::size_t>(far + dense.k.stride(0)) * element;
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) GTEST_SKIP() << "cannot reserve " << bytes << " bytes of address space";
  TensorView k = dense.k.view();
  const auto* source = static_cast<const std::byte*>(dense.k.view().data);
  const std::size_t entry = static_cast<std::size_t>(dense.k.stride(0)) * element;
  std::memcpy(memory, source, entry);
  std::memcpy(static_cast<std::byte*>(memory) + static_cast<std::size_t>(far) * element, source + entry, entry);
  k.data = memory;
  k.strides[0] = far;
  const check::AttentionTensors spread(p, 8);
  ForwardTensors tensors = spread.forward();
  tensors.k = k;
  forward(planned, tensors);
  EXPECT_TRUE(test::same_bits(dense.o, spread.o));
  munmap(memory, bytes);
}

std::vector<test::Level> half_levels() {
  std::vector<test::Level> halves;
  for (const test::Level& level : test::levels())
    if (level.dtype != DType::f32) halves.push_back(level);
  return halves;
}

class Conversion : public test::EveryLevel {};

INSTANTIATE_TEST_SUITE_P(Cpu, Conversion, testing::ValuesIn(half_levels()), test::level_name);

TEST_P(Conversion, AttentionToOneKeyReturnsItsValueToTheBit) {
  // Softmax over one key is 1: every finite number of the dtype must come through widening and rounding unchanged.
  Problem p = problem(1, 1);
  p.batch = 256;
  p.head_dim = 1;
  p.value_dim = 256;
  check::AttentionTensors tensors(p, 1);
  auto* words = static_cast<std::uint16_t*>(tensors.v.view().data);
  for (int i = 0; i < 65536; ++i) words[i] = static_cast<std::uint16_t>(i);
  forward(plan(masks::full(1, 1), p, test::forced(GetParam())), tensors.forward());
  const auto* outputs = static_cast<const std::uint16_t*>(tensors.o.view().data);
  for (std::int64_t i = 0; i < 65536; ++i) {
    const float value = tensors.v.at(i);
    // bfloat16 subnormals are flushed, which no sum of attention outputs can notice.
    const bool subnormal = std::abs(value) < std::numeric_limits<float>::min();
    if (!std::isfinite(value) || subnormal) continue;
    ASSERT_EQ(outputs[i], words[i]) << value;
  }
}

TEST_P(Conversion, RoundsToTheNearestEvenValue) {
  // The mean of two neighbouring values is half way between them.
  Problem p = problem(1, 2);
  p.head_dim = 1;
  p.value_dim = 200;
  check::AttentionTensors tensors(p, 1);
  tensors.q.set(0, 0.0f);
  auto* words = static_cast<std::uint16_t*>(tensors.v.view().data);
  for (int i = 0; i < 200; ++i) {
    words[i] = static_cast<std::uint16_t>(0x3e00 + 3 * i);
    words[200 + i] = static_cast<std::uint16_t>(0x3e00 + 3 * i + 1);
  }
  forward(plan(masks::full(1, 2), p, test::forced(GetParam())), tensors.forward());
  for (std::int64_t i = 0; i < 200; ++i) {
    const float mean = (tensors.v.at(i) + tensors.v.at(200 + i)) / 2;
    ASSERT_EQ(tensors.o.at(i), check::round_to(p.dtype, mean)) << mean;
  }
}

}  // namespace
}  // namespace flashmask
