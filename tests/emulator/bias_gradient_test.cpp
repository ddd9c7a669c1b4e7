// SPDX-License-Identifier: Apache-2.0
#include "cuda/common/bias_gradient.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "cuda/common/bias_gradient_kernel.cuh"
#include "cuda/compile/change_text.h"
#include "emulator/backward_call.h"
#include "emulator/changes/emulated_changes.h"
#include "flashmask/builders.h"

/// The gradient of a bias by mma.sync's kernel, on the emulator, against the reference.
namespace flashmask::cuda::sm80 {
namespace {

template <class Shape>
void run(Call<typename Shape::Element, 64>& call, const Case& with, TileShape map_tile) {
  const Problem& problem = call.problem;
  BackwardTensors tensors = call.tensors.backward();
  call.tensors.grad_bias->fill_nan();
  const HostMap map(with.mask, map_tile, MapSide::columns, with.visit, static_cast<int>(problem.query_heads));
  const auto lists = static_cast<int>(tensors.grad_bias.shape[0] * tensors.grad_bias.shape[1]);
  std::vector<float> partial(
      static_cast<std::size_t>(bias_parts(problem) * problem.query_heads) * 9 * kBiasTile * kBiasTile, NAN);
  BiasGradientArguments arguments = bias_gradient_arguments(problem, tensors, call.statistics(), partial.data(),
                                                            map.view(), map_tile, call.mask.view(), call.score());
  if constexpr (Changes<Shape>) arguments.change = compile::change_operands(problem, compile::change_tensors(tensors));
  if (arguments.sums == BiasSums::tiles && problem.change.bias() == ScoreBias::distances)
    for (std::int64_t i = 0; i < call.tensors.grad_bias->size(); ++i) call.tensors.grad_bias->set(i, 0);
  const auto run_blocks = [&](int blocks, const auto& kernel) {
    if (blocks == 0) return;
    emulator::run({.blocks = static_cast<unsigned>(blocks),
                   .threads = Shape::kThreads,
                   .shared_bytes = sizeof(BiasKeepingMemory<Shape>),
                   .copies = with.copies,
                   .readable = call.readable()},
                  [&] { kernel(arguments); });
  };
  run_blocks(lists * arguments.places() * arguments.parts, bias_gradient_kernel<Shape>);
  if (arguments.parts > 1) run_blocks(lists * arguments.places(), join_parts_kernel<Shape>);
  if (arguments.sums != BiasSums::diagonals) return;
  for (int list = 0; list < lists; ++list)
    for (int entry = 0; entry < arguments.gradient.entries; ++entry) join_diagonals(arguments, list, entry);
}

template <class T, class Shape = BiasGradientShape<T>>
void expect_right(const Case& with, TileShape map_tile = {64, 128}) {
  Call<T, 64> call(with, 6);
  run<Shape>(call, with, map_tile);
  call.expect_accurate(with.name, *call.tensors.grad_bias, call.expected.bias, call.naive.grad_bias);
}

TEST(EmulatedBiasGradient, IsThatOfTheReferenceForEachScore) {
  const auto kTensor = scores::bias();
  expect_right<__nv_bfloat16>({.name = "not shared",
                               .mask = masks::sliding_window(150, 200, 70),
                               .copies = Copies::late,
                               .change = kTensor,
                               .bias_shape = {2, 2, 150, 200}});
  expect_right<__half>({.name = "shared by the batch, an odd number of keys, as bits",
                        .mask = masks::causal(300, 331),
                        .form = MaskForm::bits,
                        .copies = Copies::early,
                        .change = scores::softcap(2) | kTensor,
                        .bias_shape = {1, 2, 300, 331}},
                       {64, 64});
  expect_right<__nv_bfloat16>({.name = "shared by heads, every tile, with dropout",
                               .mask = masks::sliding_window(200, 150, 70),
                               .visit = Visit::all,
                               .head_dim = 104,
                               .value_dim = 40,
                               .dropout = 0.3,
                               .change = kTensor,
                               .bias_shape = {2, 1, 200, 150}},
                              {128, 64});
}

TEST(EmulatedBiasGradient, IsThatOfTheReferenceForNarrowHeads) {
  expect_right<__half>({.name = "shared by the batch",
                        .mask = masks::full(150, 200),
                        .copies = Copies::late,
                        .head_dim = 32,
                        .value_dim = 16,
                        .change = scores::bias(),
                        .bias_shape = {1, 2, 150, 200}});
}

/// Tiles behind a block's first one find their values in shared memory, full ones and those with a mask.
TEST(EmulatedBiasGradient, IsThatOfTheReferenceForNarrowHeadsThatShareATile) {
  const Case shared{.name = "shared by all heads, full tiles and masked ones",
                    .mask = masks::sliding_window(256, 290, 120),
                    .copies = Copies::late,
                    .query_heads = 4,
                    .head_dim = 32,
                    .value_dim = 24,
                    .change = scores::bias(),
                    .bias_shape = {1, 1, 256, 290}};
  expect_right<__nv_bfloat16>(shared);
  Case every = shared;
  every.name = "the same as bits";
  every.form = MaskForm::bits;
  every.mask = masks::full(256, 290);
  expect_right<__half>(every);
}

/// More than a block looks at in one go.
TEST(EmulatedBiasGradient, AddsUpManyHeads) {
  expect_right<__nv_bfloat16>({.name = "72 heads of two batch entries",
                               .mask = masks::causal(100, 120),
                               .query_heads = 72,
                               .head_dim = 16,
                               .value_dim = 8,
                               .change = scores::bias(),
                               .bias_shape = {1, 1, 100, 120}});
}

TEST(EmulatedBiasGradient, AddsUpRowsThatShareValues) {
  expect_right<__nv_bfloat16>({.name = "a value for each key",
                               .mask = masks::causal(300, 290),
                               .change = scores::bias(),
                               .bias_shape = {2, 1, 1, 290}});
}

TEST(EmulatedBiasGradient, AddsUpDistances) {
  const auto kDistances = scores::distance();
  expect_right<__nv_bfloat16>({.name = "one table, some distances without an entry",
                               .mask = masks::sliding_window(300, 200, 130),
                               .change = kDistances,
                               .bias_shape = {1, 2, 1, 321}});
  expect_right<__half>({.name = "more entries than distances, as bits",
                        .mask = masks::causal(140, 290),
                        .form = MaskForm::bits,
                        .change = kDistances,
                        .bias_shape = {2, 1, 1, 900}});
  expect_right<__nv_bfloat16>({.name = "a table for each row",
                               .mask = masks::causal(200, 200),
                               .change = kDistances,
                               .bias_shape = {1, 2, 200, 40}});
}

TEST(EmulatedBiasGradient, IsZeroWithoutKeys) {
  expect_right<__nv_bfloat16>({.name = "a table of distances",
                               .mask = masks::full(200, 0),
                               .change = scores::distance(),
                               .bias_shape = {1, 2, 1, 321}});
}

/// Under a change of kEmulatedChanges, with a batch of two.
template <int kNumber, class T>
void expect_right_under_change(Case with, TileShape map_tile) {
  using Of = ChangeOf<kNumber, T, true>;
  with.change = ScoreChange::parse(test::kEmulatedChanges[kNumber]);
  const Call<T, 64> call(with, 6);
  const BackwardTensors tensors = call.tensors.backward();
  const std::string text =
      compile::change_text(with.change, compile::forms_of(with.change, compile::change_tensors(tensors)));
  EXPECT_EQ(text, Of::kText) << "what NVRTC compiles";
  expect_right<T, Changed<BiasGradientShape<T>, typename Of::Change>>(with, map_tile);
}

/// "bias | softcap(2)", and a product with the square of the score, which is then the derivative.
template <int kNumber>
void expect_right_for_each_score() {
  expect_right_under_change<kNumber, __nv_bfloat16>({.name = "not shared, groups of heads",
                                                     .mask = masks::sliding_window(150, 208, 70),
                                                     .copies = Copies::late,
                                                     .bias_shape = {2, 2, 150, 208}},
                                                    {64, 128});
  const std::vector<std::int64_t> documents = {70, 90, 40};
  expect_right_under_change<kNumber, __half>({.name = "shared by the batch, as bits, with dropout",
                                              .mask = masks::causal_document(documents, 208),
                                              .form = MaskForm::bits,
                                              .copies = Copies::early,
                                              .head_dim = 104,
                                              .value_dim = 40,
                                              .dropout = 0.3,
                                              .bias_shape = {1, 2, 208, 208}},
                                             {64, 64});
  expect_right_under_change<kNumber, __nv_bfloat16>({.name = "shared by heads of 32 dims, every tile",
                                                     .mask = masks::full(150, 208),
                                                     .visit = Visit::all,
                                                     .head_dim = 32,
                                                     .value_dim = 24,
                                                     .bias_shape = {2, 1, 150, 208}},
                                                    {128, 64});
}

TEST(EmulatedBiasGradient, IsThatOfTheReferenceUnderCompiledChanges) {
  expect_right_for_each_score<2>();
  expect_right_for_each_score<6>();
}

/// "distance | multiply(0.5)", and a quotient that makes NaN of padding, whose scores are 0.
template <int kNumber>
void expect_right_for_distances() {
  expect_right_under_change<kNumber, __nv_bfloat16>({.name = "one table, some distances without an entry",
                                                     .mask = masks::sliding_window(300, 200, 130),
                                                     .bias_shape = {1, 2, 1, 321}},
                                                    {64, 128});
  expect_right_under_change<kNumber, __half>({.name = "more entries than distances, as bits",
                                              .mask = masks::causal(140, 290),
                                              .form = MaskForm::bits,
                                              .bias_shape = {2, 1, 1, 900}},
                                             {64, 128});
}

TEST(EmulatedBiasGradient, AddsUpDistancesUnderCompiledChanges) {
  expect_right_for_distances<3>();
  expect_right_for_distances<7>();
}

}  // namespace
}  // namespace flashmask::cuda::sm80
