// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cuda/kernels_under_test.h"
#include "cuda/plan_in_memory.h"
#include "flashmask/block_map.h"
#include "flashmask/builders.h"
#include "flashmask/device_plan.h"
#include "flashmask/error.h"
#include "flashmask/reference.h"
#include "flashmask/startend_row_indices.h"
#include "kit/corpus.h"
#include "kit/device_memory.h"
#include "kit/error_bound.h"
#include "kit/host_tensor.h"
#include "kit/naive_attention.h"

namespace flashmask {
namespace {

using check::AttentionTensors;
using check::DeviceMemory;
using check::DeviceTensor;
using check::PlanInMemory;

Problem problem_for(const KernelInfo& kernel, std::int64_t rows, std::int64_t columns) {
  Problem problem;
  problem.batch = 2;
  problem.query_length = rows;
  problem.key_length = columns;
  problem.query_heads = 6;
  problem.kv_heads = 2;
  problem.head_dim = kernel.head_dim;
  problem.value_dim = kernel.value_dim;
  problem.dtype = kernel.dtype;
  problem.device = {DeviceType::cuda, 0};
  return problem;
}

/// Runs on the device; o and lse of `tensors` receive the results.
void run(const Plan& plan, AttentionTensors& tensors) {
  tensors.clear_outputs();
  const ForwardTensors host = tensors.forward();
  const DeviceTensor q(host.q), k(host.k), v(host.v), o(host.o), lse(host.lse);
  const DeviceMemory workspace(plan.workspace_bytes(Direction::forward, 1));
  forward(plan, {q.view(), k.view(), v.view(), o.view(), lse.view()},
          {.workspace = workspace.data(), .workspace_bytes = workspace.bytes()});
  check::synchronize_device();
  o.download();
  lse.download();
}

/// o and lse, element by element, as bits.
std::vector<std::byte> bits_of(const AttentionTensors& tensors) {
  std::vector<std::byte> bits;
  for (const check::HostTensor* tensor : {&tensors.o, &tensors.lse}) {
    const TensorView view = tensor->view();
    const auto* bytes = static_cast<const std::byte*>(view.data);
    bits.insert(bits.end(), bytes, bytes + static_cast<std::size_t>(tensor->size()) * size_in_bytes(view.dtype));
  }
  return bits;
}

void expect_accurate(const Mask& mask, const Problem& problem, const AttentionTensors& tensors,
                     const std::string& what) {
  const std::vector<double> q = tensors.q.values(), k = tensors.k.values(), v = tensors.v.values();
  const reference::Inputs inputs{q, k, v};
  const reference::Outputs expected = reference::forward(problem, mask, inputs);
  const std::vector<double> no_gradient(expected.o.size(), 0);
  const auto naive = check::naive::attend(problem, mask, inputs, no_gradient, {});
  check::ErrorBound bound(problem.dtype);
  bound.add(tensors.o.values(), expected.o, naive.o);
  EXPECT_LE(bound.result().ratio(), 1) << what;
  for (std::int64_t i = 0; i < tensors.lse.size(); ++i)
    ASSERT_LE(check::compare_lse(problem.dtype, tensors.lse.at(i), expected.lse[static_cast<std::size_t>(i)]).ratio(),
              1)
        << what << ", lse " << i;
}

class CudaForward : public testing::TestWithParam<KernelInfo> {
 protected:
  PlanOptions options(Visit visit = Visit::active) const {
    return {.visit = visit, .form = GetParam().predicate, .kernel = GetParam().name};
  }

  /// Whether the kernel reads a mask of the form that it has, or bits, which any mask becomes.
  bool reads(const Mask& mask) const {
    if (GetParam().predicate == MaskForm::bits) return true;
    const BlockMap* blocks = mask.lowered().blocks();
    const TileShape tile = GetParam().tile;
    return mask.lowered().form() == MaskForm::intervals &&
           (blocks == nullptr || (blocks->block() % tile.rows == 0 && blocks->block() % tile.columns == 0));
  }
};

TEST_P(CudaForward, HoldsTheBoundOverTheCorpus) {
  std::size_t turn = 0;
  for (const corpus::Entry& entry : corpus::entries()) {
    for (const corpus::Size& size : corpus::awkward_sizes()) {
      const std::int64_t heads = std::vector<std::int64_t>{1, 2, 6}[turn++ % 3];
      if (!entry.accepts(size)) continue;
      const Mask mask = entry.build({size.rows, size.columns, heads});
      if (!reads(mask)) continue;
      const Problem problem = problem_for(GetParam(), size.rows, size.columns);
      AttentionTensors tensors(problem, turn);
      const PlanInMemory placed(mask, problem, options());
      run(placed.plan, tensors);
      expect_accurate(mask, problem, tensors, entry.name + " " + std::to_string(size.rows));
    }
  }
}

TEST_P(CudaForward, VisitingEveryTileGivesTheSameBits) {
  const Problem problem = problem_for(GetParam(), 700, 900);
  const Mask mask = masks::sliding_window(700, 900, 230);
  AttentionTensors tensors(problem, 3);
  run(PlanInMemory(mask, problem, options()).plan, tensors);
  const auto skipping = bits_of(tensors);
  run(PlanInMemory(mask, problem, options(Visit::all)).plan, tensors);
  EXPECT_EQ(bits_of(tensors), skipping);
}

TEST_P(CudaForward, ReadsMapsInSquares) {
  if (GetParam().predicate == MaskForm::bits) GTEST_SKIP() << "maps of bits are flat";
  for (const corpus::Size& size : {corpus::Size{9000, 13000}, {200, 150000}}) {
    Problem problem = problem_for(GetParam(), size.rows, size.columns);
    problem.batch = problem.query_heads = problem.kv_heads = 1;
    const Mask mask = masks::sliding_window(size.rows, size.columns, 6000);
    AttentionTensors tensors(problem, 5);
    run(PlanInMemory(mask, problem, options()).plan, tensors);
    const auto flat = bits_of(tensors);
    run(PlanInMemory(mask, problem, options(), check::kSquares).plan, tensors);
    EXPECT_EQ(bits_of(tensors), flat) << size.columns << " columns";
    run(PlanInMemory(mask, problem, options(Visit::all), check::kSquares).plan, tensors);
    EXPECT_EQ(bits_of(tensors), flat) << size.columns << " columns";
  }
}

TEST_P(CudaForward, HoldsTheBoundWithoutRoomForSquares) {
  if (GetParam().predicate == MaskForm::bits) GTEST_SKIP() << "maps of bits are flat";
  const Problem problem = problem_for(GetParam(), 700, 900);
  const Mask mask = masks::sliding_window(700, 900, 230);
  AttentionTensors tensors(problem, 6);
  run(PlanInMemory(mask, problem, options(), check::kNoRoom).plan, tensors);
  expect_accurate(mask, problem, tensors, "partial throughout");
  const auto partial = bits_of(tensors);
  run(PlanInMemory(mask, problem, options(Visit::all), check::kNoRoom).plan, tensors);
  EXPECT_EQ(bits_of(tensors), partial);
}

TEST_P(CudaForward, RepeatsToTheBit) {
  const Problem problem = problem_for(GetParam(), 1500, 1500);
  const Mask mask = masks::causal_document(std::vector<std::int64_t>{100, 700, 37, 500}, 1500);
  AttentionTensors tensors(problem, 4);
  const PlanInMemory placed(mask, problem, options());
  run(placed.plan, tensors);
  const auto first = bits_of(tensors);
  for (int repeat = 0; repeat < 1000; ++repeat) {
    run(placed.plan, tensors);
    ASSERT_EQ(bits_of(tensors), first) << repeat;
  }
}

TEST_P(CudaForward, KeysInSkippedTilesMayHoldAnything) {
  const Problem problem = problem_for(GetParam(), 512, 1024);
  const Mask mask = masks::sliding_window(512, 1024, 100);  // nobody sees the first 413 columns
  AttentionTensors tensors(problem, 5);
  const PlanInMemory placed(mask, problem, options());
  run(placed.plan, tensors);
  const auto clean = bits_of(tensors);
  const std::int64_t poisoned = 384 * problem.kv_heads;
  for (std::int64_t i = 0; i < poisoned * problem.head_dim; ++i) tensors.k.set(i, NAN);
  for (std::int64_t i = 0; i < poisoned * problem.value_dim; ++i) tensors.v.set(i, INFINITY);
  run(placed.plan, tensors);
  EXPECT_EQ(bits_of(tensors), clean);
}

TEST_P(CudaForward, HoldsTheBoundOverRaggedSizes) {
  for (const corpus::Size& size : {corpus::Size{129, 257}, {1000, 63}, {65, 1000}, {450, 1400}}) {
    const Problem problem = problem_for(GetParam(), size.rows, size.columns);
    const Mask mask = masks::sliding_window(size.rows, size.columns, 91);
    AttentionTensors tensors(problem, 8);
    run(PlanInMemory(mask, problem, options()).plan, tensors);
    expect_accurate(mask, problem, tensors, std::to_string(size.rows) + " x " + std::to_string(size.columns));
  }
}

/// Long after the maxima of the rows have settled: to powers of two that fit a float, and to some that do not.
TEST_P(CudaForward, HoldsTheBoundWhereScoresGrowSuddenly) {
  constexpr std::int64_t kRows = 70, kColumns = 1200, kGrown = 700;
  const Problem problem = problem_for(GetParam(), kRows, kColumns);
  const Mask mask = masks::full(kRows, kColumns);
  for (const float growth : {6.0F, 60.0F}) {
    AttentionTensors tensors(problem, 10);
    for (std::int64_t i = 0; i < tensors.k.size(); ++i)
      if (i / (problem.kv_heads * problem.head_dim) % kColumns >= kGrown) tensors.k.set(i, growth * tensors.k.at(i));
    run(PlanInMemory(mask, problem, options()).plan, tensors);
    expect_accurate(mask, problem, tensors, "keys grown " + std::to_string(growth) + " times");
    const auto skipping = bits_of(tensors);
    run(PlanInMemory(mask, problem, options(Visit::all)).plan, tensors);
    EXPECT_EQ(bits_of(tensors), skipping) << growth;
  }
}

TEST_P(CudaForward, VisitingEveryTileUnderABlockMapGivesTheSameBits) {
  const Problem problem = problem_for(GetParam(), 700, 900);
  std::vector<std::uint8_t> keep(6 * 8);
  for (std::size_t i = 0; i < keep.size(); ++i) keep[i] = i * i % 7 < 4 ? 1 : 0;
  const Mask mask = masks::causal(700, 900) & BlockMap({1, 1, 700, 900}, 128, keep);
  if (!reads(mask)) GTEST_SKIP() << "the kernel's tiles do not divide blocks";
  AttentionTensors tensors(problem, 9);
  run(PlanInMemory(mask, problem, options()).plan, tensors);
  expect_accurate(mask, problem, tensors, "block map");
  const auto skipping = bits_of(tensors);
  const std::string own = GetParam().name, bits = own.substr(0, own.rfind('.')) + ".bits";
  run(PlanInMemory(mask, problem, {.visit = Visit::all, .kernel = bits}).plan, tensors);
  EXPECT_EQ(bits_of(tensors), skipping);
}

TEST_P(CudaForward, ReadsRowIndicesThatLieOnTheDevice) {
  if (GetParam().predicate == MaskForm::bits) GTEST_SKIP() << "row indices are intervals";
  const Problem problem = problem_for(GetParam(), 640, 640);
  const Mask mask =
      masks::prefix_lm_document(std::vector<std::int64_t>{300, 200, 140}, std::vector<std::int64_t>{64, 0, 140}, 640);
  const StartEndRowIndices rows = to_startend_row_indices(mask.lowered().intervals());
  DeviceMemory values(rows.values.size() * sizeof(std::int32_t));
  values.upload(rows.values.data());
  const DeviceRowIndices on_device{static_cast<const std::int32_t*>(values.data()), rows.shape, rows.vectors,
                                   rows.causal};
  AttentionTensors tensors(problem, 6);
  run(PlanInMemory(mask, problem, options()).plan, tensors);
  const auto from_host = bits_of(tensors);
  run(PlanInMemory(on_device, problem, options()).plan, tensors);
  EXPECT_EQ(bits_of(tensors), from_host);
}

TEST_P(CudaForward, PadsSmallerHeads) {
  for (const std::int64_t head_dim : {8L, 40L, GetParam().head_dim - 8}) {
    if (head_dim > GetParam().head_dim) continue;
    Problem problem = problem_for(GetParam(), 200, 333);
    problem.head_dim = head_dim;
    problem.value_dim = GetParam().value_dim - 24;
    const Mask mask = masks::causal(200, 333);
    AttentionTensors tensors(problem, 7);
    run(PlanInMemory(mask, problem, options()).plan, tensors);
    expect_accurate(mask, problem, tensors, "head dim " + std::to_string(head_dim));
  }
}

TEST_P(CudaForward, AsksForAPlace) {
  const Problem problem = problem_for(GetParam(), 64, 64);
  try {
    plan(masks::causal(64, 64), problem, options());
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::invalid_argument);
    EXPECT_NE(std::string(error.what()).find("PlanPlace"), std::string::npos) << error.what();
  }
}

/// What a kernel of this name gives.
std::vector<std::byte> bits_from(const std::string& kernel, const Mask& mask, const Problem& problem) {
  AttentionTensors tensors(problem, 8);
  const MaskForm form = kernel.ends_with("bits") ? MaskForm::bits : MaskForm::intervals;
  run(PlanInMemory(mask, problem, {.form = form, .kernel = kernel}).plan, tensors);
  return bits_of(tensors);
}

TEST(CudaTileChoice, TakesSmallTilesForShortDocumentsOnly) {
  for (const KernelInfo& kernel : check::cuda_kernels(Direction::forward)) {
    const std::size_t plus = kernel.name.find('+');
    if (plus == std::string::npos) continue;
    const std::size_t tiles = kernel.name.find(".m"), end = kernel.name.find('.', plus);
    const std::string coarse = kernel.name.substr(0, plus) + kernel.name.substr(end);
    const std::string small = kernel.name.substr(0, tiles + 1) + kernel.name.substr(plus + 1);
    const Problem problem = problem_for(kernel, 2600, 2600);
    const Mask shorts = masks::causal_document(std::vector<std::int64_t>(40, 65), 2600),
               one = masks::causal(2600, 2600);
    EXPECT_EQ(bits_from(kernel.name, shorts, problem), bits_from(small, shorts, problem)) << kernel.name;
    EXPECT_EQ(bits_from(kernel.name, one, problem), bits_from(coarse, one, problem)) << kernel.name;
    EXPECT_NE(bits_from(small, one, problem), bits_from(coarse, one, problem)) << "nothing to tell them by";
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, CudaForward, testing::ValuesIn(check::cuda_kernels(Direction::forward)),
                         check::test_name);

}  // namespace
}  // namespace flashmask
