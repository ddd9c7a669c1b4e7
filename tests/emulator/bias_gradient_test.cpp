// SPDX-License-Identifier: Apache-2.0
#include "cuda/common/bias_gradient.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "cuda/common/bias_gradient_kernel.cuh"
#include "cuda/compile/change_text.h"
#include "emulator/backward_call.h"
#include "flashmask/builders.h"
#include "source_folder.h"

/// The gradient of a bias by mma.sync's kernel, on the emulator, against the reference.
namespace flashmask::cuda {
namespace capped_bias {
#include "emulator/changes/capped_bias.inc"
}
namespace gated {
#include "emulator/changes/gated.inc"
}
namespace signed_distance {
#include "emulator/changes/signed_distance.inc"
}
}  // namespace flashmask::cuda

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
  if constexpr (Changes<Shape>) arguments.change = compile::change_operands(problem, {}, tensors.bias);
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

/// Changes that kernels are compiled with, and the files of their texts.
struct CappedBias {
  using Change = capped_bias::Change;
  static constexpr const char* kChange = "bias | softcap(2)";
  static constexpr const char* kFile = "capped_bias.inc";
  static constexpr std::int64_t kEntries = 203;
};
/// The derivative by the bias is the square of a score, of padding too.
struct Gated {
  using Change = gated::Change;
  static constexpr const char* kChange = "function(mul(mul(score, score), bias))";
  static constexpr const char* kFile = "gated.inc";
  static constexpr std::int64_t kEntries = 203;
};
/// NaN in padding, whose scores are 0.
struct SignedDistance {
  using Change = signed_distance::Change;
  static constexpr const char* kChange = "function(add(add(score, distance), div(score, abs(score))))";
  static constexpr const char* kFile = "signed_distance.inc";
  static constexpr std::int64_t kEntries = 321;
};

template <class Of>
class EmulatedBiasGradientOfAChange : public testing::Test {};
using All = testing::Types<CappedBias, Gated, SignedDistance>;
TYPED_TEST_SUITE(EmulatedBiasGradientOfAChange, All);

/// The emulator compiles what NVRTC compiles.
TYPED_TEST(EmulatedBiasGradientOfAChange, HasTheTextOfItsFile) {
  std::ifstream file(test::source_folder() + "/tests/emulator/changes/" + TypeParam::kFile);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  EXPECT_EQ(compile::change_text(ScoreChange::parse(TypeParam::kChange)), text);
}

TYPED_TEST(EmulatedBiasGradientOfAChange, IsThatOfTheReference) {
  const auto right = [&]<class T>(T, Case with, TileShape map_tile) {
    with.change = ScoreChange::parse(TypeParam::kChange);
    with.bias_shape.push_back(TypeParam::kEntries);
    expect_right<T, Changed<BiasGradientShape<T>, typename TypeParam::Change>>(with, map_tile);
  };
  right(__nv_bfloat16(),
        {.name = "not shared, groups of heads",
         .mask = masks::sliding_window(150, 203, 70),
         .copies = Copies::late,
         .bias_shape = {2, 2, 150}},
        {64, 128});
  right(__half(),
        {.name = "shared by the batch, as bits, with dropout",
         .mask = masks::causal_document({70, 90, 40}, 203),
         .form = MaskForm::bits,
         .copies = Copies::early,
         .head_dim = 104,
         .value_dim = 40,
         .dropout = 0.3,
         .bias_shape = {1, 2, 203}},
        {64, 64});
  right(__nv_bfloat16(),
        {.name = "shared by rows, heads of 32 dims, every tile",
         .mask = masks::full(150, 203),
         .visit = Visit::all,
         .head_dim = 32,
         .value_dim = 24,
         .bias_shape = {2, 2, 1}},
        {128, 64});
  right(__half(),
        {.name = "shared by all heads and rows, queries behind their keys",
         .mask = masks::causal(300, 203),
         .bias_shape = {1, 1, 1}},
        {64, 128});
}

}  // namespace
}  // namespace flashmask::cuda::sm80
