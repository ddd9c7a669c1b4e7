// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <vector>

#include "cuda/sm80/forward/wide_forward_kernel.cuh"
#include "emulator/forward_call.h"
#include "flashmask/builders.h"

/// The forward for heads of up to 512 dims, on the emulator, against the reference.
namespace flashmask::cuda::sm80 {

template <class T>
struct ForwardOf<WideForwardShape<T>> {
  using Memory = WideForwardMemory<WideForwardShape<T>>;
  static void run(const ForwardArguments& arguments) { wide_forward_kernel<WideForwardShape<T>>(arguments); }
};

template <class T>
struct ForwardOf<Maximizing<WideForwardShape<T>>> {
  using Memory = WideForwardMemory<Maximizing<WideForwardShape<T>>>;
  static void run(const ForwardArguments& arguments) {
    wide_forward_kernel<Maximizing<WideForwardShape<T>>>(arguments);
  }
};

namespace {

using Forward = WideForwardShape<__nv_bfloat16>;
using HalfForward = WideForwardShape<__half>;

TEST(EmulatedWideForward, IsRight) {
  using namespace masks;
  const Size odd{100, 203, 2, 1};
  expect_right<Forward>(full(odd.rows, odd.columns), problem_for<Forward>(odd));
  expect_right<HalfForward>(causal(150, 100), problem_for<HalfForward>({150, 100}));
  expect_right<Forward>(sliding_window(100, 203, 40), problem_for<Forward>(odd));
  expect_right<Forward>(causal_document(std::vector<std::int64_t>{70, 9, 50}, 150), problem_for<Forward>({150, 150}));
  const auto scattered = [](auto, auto, auto row, auto column) {
    return row < 70 && column * 7 % 11 < 5 && (row * column + row) % 5 < 2;
  };
  expect_right<Forward>(from_predicate({1, 1, 100, 150}, scattered), problem_for<Forward>({100, 150}));
}

TEST(EmulatedWideForward, PadsSmallerHeads) {
  expect_right<Forward>(masks::causal(70, 90), problem_for<Forward>({70, 90}, 264, 392));
  expect_right<HalfForward>(masks::causal(70, 150), problem_for<HalfForward>({70, 150}, 512, 8));
}

/// Of heads and of rows. The last rows see nothing.
TEST(EmulatedWideForward, GivesSinksTheirShare) {
  const Mask mask = masks::causal_document(std::vector<std::int64_t>{50, 30}, 90);
  for (const check::Sinks sinks : {check::Sinks::narrow_of_heads, check::Sinks::of_rows})
    expect_right<Forward>(mask, problem_for<Forward>({90, 90, 2, 1}, 264, 264), sinks);
}

/// With sinks, rows that see nothing, a cap, a bias and dropout.
TEST(EmulatedWideForward, KeepsTheLargestScores) {
  Problem problem = problem_for<Forward>({150, 100, 4, 2, 2}, 264, 264);
  expect_right<Maximizing<Forward>>(masks::causal(150, 100), problem, check::Sinks::of_heads);
  problem.change = scores::softcap(2) | scores::bias();
  problem.dropout = 0.3;
  expect_right<Maximizing<Forward>>(masks::causal(150, 100), problem);
}

TEST(EmulatedWideForward, DropsWhatTheReferenceDrops) {
  Problem problem = problem_for<Forward>({100, 203, 4, 2, 2}, 264, 264);
  problem.dropout = 0.3;
  expect_right<Forward>(masks::sliding_window(100, 203, 90), problem);
}

TEST(EmulatedWideForward, CapsScoresAsTheReferenceDoes) {
  Problem problem = problem_for<Forward>({100, 203, 4, 2, 2}, 264, 264);
  for (const double softcap : {1.0, 50.0}) {
    problem.change = scores::softcap(softcap);
    expect_right<Forward>(masks::sliding_window(100, 203, 90), problem);
  }
}

TEST(EmulatedWideForward, BiasesScoresByDistance) {
  for (const int batch : {1, 2}) {  // without positions, and with some
    Problem problem = problem_for<Forward>({100, 203, 4, 2, batch}, 264, 264);
    problem.change = scores::alibi();
    expect_right<Forward>(masks::sliding_window(100, 203, 90), problem);
  }
}

TEST(EmulatedWideForward, VisitingEveryTileGivesTheSameBits) {
  const Problem problem = problem_for<Forward>({100, 330});
  const Mask mask = masks::sliding_window(100, 330, 60);
  AttentionTensors tensors(problem, 3);
  for (const MaskForm form : {MaskForm::intervals, MaskForm::bits}) {
    attend<Forward>(mask, problem, tensors, {.form = form});
    const std::vector<double> skipping = results(tensors);
    attend<Forward>(mask, problem, tensors, {.form = form, .visit = Visit::all});
    EXPECT_EQ(results(tensors), skipping);
  }
}

}  // namespace
}  // namespace flashmask::cuda::sm80
