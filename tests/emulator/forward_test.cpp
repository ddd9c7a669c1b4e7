// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "emulator/forward_call.h"
#include "flashmask/builders.h"

/// The forward of mma.sync on the emulator, against the reference.
namespace flashmask::cuda::sm80 {
namespace {

template <class Shape>
void expect_right_over_masks() {
  using namespace masks;
  const Size odd{150, 203, 2, 1}, square{200, 200};
  const auto run = [](const char* what, const Mask& mask, const Size& size) {
    SCOPED_TRACE(what);
    expect_right<Shape>(mask, problem_for<Shape>(size));
  };
  run("full", full(odd.rows, odd.columns), odd);
  run("causal", causal(odd.columns, odd.rows), {odd.columns, odd.rows});
  run("window", sliding_window(odd.rows, odd.columns, 40), odd);
  run("documents", causal_document(std::vector<std::int64_t>{70, 9, 80}, 200), square);
  run("scattered",
      from_predicate({1, 1, 150, 203},
                     [](auto, auto, auto row, auto column) {
                       return row < 100 && column * 7 % 11 < 5 && (row * column + row) % 5 < 2;
                     }),
      {150, 203});
}

using Large128 = ForwardShape<__nv_bfloat16, 128, 128, 2, Queries::shared, 2>;
using Roomy128 = ForwardShape<__nv_bfloat16, 128, 128, 2, Queries::shared, 3>;
using Small128 = ForwardShape<__half, 128, 128, 1, Queries::registers, 3>;
using Short128 = ForwardShape<__nv_bfloat16, 128, 128, 1, Queries::shared, 2, 64>;
using Of32 = ForwardShape<__nv_bfloat16, 32, 32, 2, Queries::shared, 3>;
using Of64 = ForwardShape<__half, 64, 64, 2, Queries::registers, 3>;
using Short64 = ForwardShape<__half, 64, 64, 1, Queries::registers, 3, 64>;
using Of192 = ForwardShape<__half, 192, 192, 1, Queries::staged, 3>;
using Large256 = ForwardShape<__nv_bfloat16, 256, 256, 1, Queries::staged, 3, 128, 10>;
using Small256 = ForwardShape<__half, 256, 256, 1, Queries::staged, 2, 128, 10>;

TEST(EmulatedForward, IsRightAt32) { expect_right_over_masks<Changing<Of32>>(); }

TEST(EmulatedForward, IsRightAt64) {
  expect_right_over_masks<Of64>();
  expect_right_over_masks<Short64>();
}

TEST(EmulatedForward, IsRightAt96) {
  expect_right_over_masks<ForwardShape<__nv_bfloat16, 96, 96, 2, Queries::shared, 3>>();
  expect_right_over_masks<ForwardShape<__half, 96, 96, 1, Queries::registers, 3>>();
}

TEST(EmulatedForward, IsRightAt128) {
  expect_right_over_masks<Large128>();
  expect_right_over_masks<Roomy128>();
  expect_right_over_masks<Small128>();
  expect_right_over_masks<Short128>();
}

/// No row tile twice, and none left out. Two of five visit nothing, the others more than a block finds at first.
template <class Shape>
void expect_the_same_of_blocks_that_take_several() {
  const Problem problem = problem_for<Shape>({300, 5000, 2, 2});
  const Mask mask =
      from_predicate({1, 1, 300, 5000}, [](auto, auto, auto row, auto) { return row < 64 || row >= 192; });
  AttentionTensors tensors(problem, 3);
  attend<Shape>(mask, problem, tensors, {});
  const std::vector<double> expected = results(tensors);
  attend<Shape>(mask, problem, tensors, {.blocks = 3});
  EXPECT_EQ(results(tensors), expected);
}

TEST(EmulatedForward, BlocksOfShortRowsTakeSeveral) {
  expect_the_same_of_blocks_that_take_several<Short64>();
  expect_the_same_of_blocks_that_take_several<Short128>();
}

TEST(EmulatedForward, IsRightAt192) {
  expect_right_over_masks<ForwardShape<__nv_bfloat16, 192, 128, 1, Queries::staged, 3>>();
  expect_right_over_masks<Of192>();
}

TEST(EmulatedForward, IsRightAt256) {
  expect_right_over_masks<Large256>();
  expect_right_over_masks<Small256>();
}

/// Scores of tile after tile of keys, which the running maxima follow in steps of more than 8 / log2(e) = 5.5 only.
template <class Shape>
void expect_exact_maxima() {
  constexpr float kScoresOfTiles[] = {0, 5, 9, -300, 1000};
  constexpr std::int64_t kTokens = 5 * 64;
  Problem problem = problem_for<Shape>({kTokens, kTokens});
  problem.scale = 1;
  AttentionTensors tensors(problem, 3);
  for (std::int64_t i = 0; i < tensors.q.size(); ++i) {
    const bool first = i % Shape::kHeadDim == 0;
    tensors.q.set(i, first ? 1 : 0);
    tensors.k.set(i, first ? kScoresOfTiles[i / Shape::kHeadDim / 64] : 0);
  }
  attend<Maximizing<Shape>>(masks::causal(kTokens, kTokens), problem, tensors, {});
  float largest = -INFINITY;
  for (std::int64_t i = 0; i < kTokens; ++i) {
    largest = std::max(largest, kScoresOfTiles[i / 64]);
    ASSERT_NEAR(tensors.max_scores.at(i), largest, 2e-7F * largest) << "row " << i;
  }
}

/// With sinks, and rows that see nothing; then with all that one kernel does to scores where a call asks for it.
template <class Shape>
void expect_largest_scores() {
  const Mask mask = masks::causal(150, 100);
  Problem problem = problem_for<Shape>({150, 100, 2, 1});
  expect_right<Maximizing<Shape>>(mask, problem, check::Sinks::of_heads);
  if constexpr (Shape::kShort) return;
  using Changed = Maximizing<Changing<Dropping<Shape>>>;
  problem.change = scores::softcap(2) | scores::alibi();
  expect_right<Changed>(mask, problem);
  problem.dropout = 0.3;
  problem.change = scores::bias();
  if (Shape::kTakesBias) expect_right<Changed>(mask, problem);
}

TEST(EmulatedForward, KeepsLargestScoresThatItsMaximaLagBehind) {
  expect_exact_maxima<Of64>();
  expect_exact_maxima<Large128>();
}

TEST(EmulatedForward, KeepsTheLargestScores) {
  expect_largest_scores<Of64>();
  expect_largest_scores<Short64>();
  expect_largest_scores<Large128>();
  expect_largest_scores<Roomy128>();
  expect_largest_scores<Short128>();
  expect_largest_scores<Small128>();
  expect_largest_scores<Of192>();
  expect_largest_scores<Large256>();
  expect_largest_scores<Small256>();
}

TEST(EmulatedForward, VisitingEveryTileGivesTheSameBits) {
  const Problem problem = problem_for<Large128>({150, 330, 2, 2});
  const Mask mask = masks::sliding_window(150, 330, 60);
  AttentionTensors tensors(problem, 3);
  for (const MaskForm form : {MaskForm::intervals, MaskForm::bits}) {
    attend<Large128>(mask, problem, tensors, {.form = form});
    const std::vector<double> skipping = results(tensors);
    attend<Large128>(mask, problem, tensors, {.form = form, .visit = Visit::all});
    EXPECT_EQ(results(tensors), skipping);
  }
}

TEST(EmulatedForward, FindsMasksOfHeadsAndBatchEntries) {
  const std::vector<Mask> heads = {masks::causal(90, 90), masks::sliding_window(90, 90, 5), masks::full(90, 90),
                                   masks::causal_document(std::vector<std::int64_t>{50, 40}, 90)};
  const Mask two[2] = {stack_heads(std::vector<Mask>{heads[0], heads[1]}),
                       stack_heads(std::vector<Mask>{heads[2], heads[3]})};
  expect_right<Of64>(stack_batch(two), problem_for<Of64>({90, 90, 4, 2, 2}));
}

/// Of heads and of rows, in float32 and in the dtype of the heads. The last rows see nothing.
TEST(EmulatedForward, GivesSinksTheirShare) {
  const Mask mask = masks::causal_document(std::vector<std::int64_t>{50, 30}, 90);
  for (const check::Sinks sinks : {check::Sinks::of_heads, check::Sinks::narrow_of_heads, check::Sinks::of_rows}) {
    expect_right<Of64>(mask, problem_for<Of64>({90, 90, 4, 2, 2}), sinks);
    expect_right<Large128>(mask, problem_for<Large128>({90, 90, 2, 1}), sinks);
    expect_right<Small128>(mask, problem_for<Small128>({90, 90, 2, 1}), sinks);
  }
}

TEST(EmulatedForward, PadsSmallerHeads) {
  for (const int head_dim : {8, 40}) {
    expect_right<Of64>(masks::causal(70, 90), problem_for<Of64>({70, 90}, head_dim, 56));
    expect_right<Small128>(masks::causal(70, 90), problem_for<Small128>({70, 90}, 64 + head_dim, 104));
    expect_right<Of192>(masks::causal(70, 90), problem_for<Of192>({70, 90}, 128 + head_dim, 72));
    expect_right<Large256>(masks::causal(70, 90), problem_for<Large256>({70, 90}, 192 + head_dim, 136));
  }
}

/// Tiles begin at other rows and columns of the sequence, in other heads.
template <class Shape>
void expect_right_with_dropout() {
  using Kernel = Dropping<Shape>;
  for (const double dropout : {0.1, 0.5}) {
    SCOPED_TRACE(dropout);
    Problem problem = problem_for<Kernel>({150, 203, 4, 2, 2});
    problem.dropout = dropout;
    expect_right<Kernel>(masks::sliding_window(150, 203, 90), problem);
  }
}

TEST(EmulatedForward, DropsWhatTheReferenceDrops) {
  expect_right_with_dropout<Of64>();
  expect_right_with_dropout<ForwardShape<__nv_bfloat16, 96, 96, 2, Queries::shared, 3>>();
  expect_right_with_dropout<Large128>();
  expect_right_with_dropout<Small128>();
  expect_right_with_dropout<Of192>();
  expect_right_with_dropout<Large256>();
  expect_right_with_dropout<Small256>();
}

template <class Shape>
void expect_right_with_softcap() {
  for (const double softcap : {1.0, 50.0}) {
    SCOPED_TRACE(softcap);
    Problem problem = problem_for<Shape>({150, 203, 4, 2, 2});
    problem.change = scores::softcap(softcap);
    expect_right<Changing<Shape>>(masks::sliding_window(150, 203, 90), problem, check::Sinks::of_heads);
    problem.dropout = 0.1;
    expect_right<Changing<Dropping<Shape>>>(masks::sliding_window(150, 203, 90), problem);
  }
}

TEST(EmulatedForward, CapsScoresAsTheReferenceDoes) {
  expect_right_with_softcap<Of64>();
  expect_right_with_softcap<Large128>();
  expect_right_with_softcap<Small128>();
  expect_right_with_softcap<Of192>();
  expect_right_with_softcap<Large256>();
}

/// A batch of one has no positions; one of two has some that are not in order.
template <class Shape>
void expect_right_with_alibi() {
  for (const int batch : {1, 2}) {
    Problem problem = problem_for<Shape>({150, 203, 4, 2, batch});
    problem.change = scores::alibi();
    expect_right<Changing<Shape>>(masks::sliding_window(150, 203, 90), problem);
    problem.change = scores::softcap(2) | scores::alibi();
    problem.dropout = 0.1;
    expect_right<Changing<Dropping<Shape>>>(masks::causal(150, 203), problem);
  }
}

TEST(EmulatedForward, BiasesScoresByDistance) {
  expect_right_with_alibi<Of64>();
  expect_right_with_alibi<Large128>();
  expect_right_with_alibi<Small128>();
  expect_right_with_alibi<Of192>();
  expect_right_with_alibi<Large256>();
}

/// A batch of one has float32 values, one of two 16-bit ones: in pairs where the keys are even in number, in eights
/// where they are a multiple of 8.
template <class Shape>
void expect_right_with_bias(const ScoreChange& bias) {
  for (const int batch : {1, 2}) {
    Problem problem = problem_for<Shape>({150, 203, 4, 2, batch});
    problem.change = bias;
    expect_right<Changing<Shape>>(masks::sliding_window(150, 203, 90), problem);
    problem.key_length = 208;
    expect_right<Changing<Shape>>(masks::causal(150, 208), problem);
    problem.key_length = 204;
    problem.change = scores::softcap(2) | bias;
    problem.dropout = 0.1;
    expect_right<Changing<Dropping<Shape>>>(masks::full(150, 204), problem);
  }
}

TEST(EmulatedForward, BiasesScoresByTensors) {
  expect_right_with_bias<Of32>(scores::bias());
  expect_right_with_bias<Of64>(scores::bias());
  expect_right_with_bias<Large128>(scores::bias());
  expect_right_with_bias<Of192>(scores::bias());
  expect_right_with_bias<Of64>(scores::distance());
  expect_right_with_bias<Small256>(scores::distance());
}

/// Rows that a bias hides throughout see nothing, also where the mask shows them all.
TEST(EmulatedForward, HidesRowsWhoseBiasIsMinusInfinity) {
  Problem problem = problem_for<Of64>({128, 192, 2, 1, 2});
  problem.change = scores::bias();
  AttentionTensors tensors(problem, 7);
  for (std::int64_t head = 0; head < 2; ++head)
    for (std::int64_t column = 0; column < 192; ++column)
      for (const std::int64_t row : {3, 70}) tensors.bias->set((head * 128 + row) * 192 + column, -INFINITY);
  const Mask mask = masks::full(128, 192);
  attend<Changing<Of64>>(mask, problem, tensors, {});
  expect_accurate(mask, problem, tensors);
  for (std::int64_t list = 0; list < 4; ++list) EXPECT_EQ(tensors.lse.at(list * 128 + 70), -INFINITY);
}

/// Values under tiles that the mask hides may be anything.
TEST(EmulatedForward, UsesNoBiasOfMaskedScores) {
  Problem problem = problem_for<Of64>({150, 203, 2, 1, 2});
  problem.change = scores::bias();
  const Mask mask = masks::causal(150, 203);
  AttentionTensors tensors(problem, 7), poisoned(problem, 7);
  for (std::int64_t head = 0; head < 2; ++head)
    for (std::int64_t row = 0; row < 150; ++row)
      for (std::int64_t column = row + 54; column < 203; ++column)
        poisoned.bias->set((head * 150 + row) * 203 + column, NAN);
  attend<Changing<Of64>>(mask, problem, tensors, {});
  attend<Changing<Of64>>(mask, problem, poisoned, {});
  EXPECT_EQ(results(tensors), results(poisoned));
}

template <class Shape>
void expect_right_as_a_part() {
  Problem problem = problem_for<Shape>({150, 203, 4, 2, 2});
  problem.dropout = 0.5;
  const std::vector<std::int32_t> place = emulator::some_dropout_place(problem, 128);
  const Mask mask = masks::sliding_window(150, 203, 90);
  AttentionTensors tensors(problem, 7);
  attend<Dropping<Shape>>(mask, problem, tensors, {.place = place});
  expect_accurate(mask, problem, tensors, place);
}

TEST(EmulatedForward, DropsOfAPartWhatTheReferenceDropsOfTheWhole) {
  expect_right_as_a_part<Large128>();
  expect_right_as_a_part<Large256>();  // stores its seed
}

}  // namespace
}  // namespace flashmask::cuda::sm80
