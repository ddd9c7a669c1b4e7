// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "cuda/common/bias_gradient.h"
#include "emulator/backward_call.h"
#include "flashmask/builders.h"

#pragma GCC diagnostic ignored "-Wpedantic"
#include "cuda/sm90/bias_gradient/bias_gradient_kernel.cuh"
#include "cuda/sm90/instructions/tensor_map.h"
#include "cuda/sm90/masks/make_bias_map.h"

/// Hopper's gradient of a bias on the emulator, against the reference.
namespace flashmask::cuda::sm90 {
namespace {

using emulator::Copies;
using emulator::HostMap;
using sm80::Call;
using sm80::Case;

template <class T>
void run(Call<T, 128>& call, const Case& with, TileShape map_tile) {
  const Problem& problem = call.problem;
  const BackwardTensors tensors = call.tensors.backward();
  call.tensors.grad_bias->fill_nan();
  const HostMap map(with.mask, map_tile, MapSide::columns, with.visit, static_cast<int>(problem.query_heads));
  const auto lists = static_cast<std::size_t>(tensors.grad_bias.shape[0] * tensors.grad_bias.shape[1]);
  std::vector<float> partial(lists * static_cast<std::size_t>(bias_parts(problem)) * 9 * kBiasTile * kBiasTile, NAN);
  const BiasGradientArguments arguments = bias_gradient_arguments(problem, tensors, call.statistics(), partial.data(),
                                                                  map.view(), map_tile, call.mask.view(), call.score());
  constexpr int kTile = BiasGradientMemory::kTile;
  const BiasGradientMaps maps{make_tensor_map("q", tensors.q, kTile),
                              make_tensor_map("k", tensors.k, kTile),
                              make_tensor_map("v", tensors.v, kTile),
                              make_tensor_map("grad_o", tensors.grad_o, kTile),
                              make_bias_map("bias", problem, tensors.bias),
                              make_bias_map("grad_bias", problem, {tensors.grad_bias, 0}, kWarpRows)};
  ASSERT_TRUE(maps.bias.exists && maps.gradient.exists) << with.name;
  const int tiles = static_cast<int>(lists) * arguments.places(), items = tiles * arguments.parts;
  emulator::run({.blocks = 3,
                 .threads = BiasGradientMemory::kThreads,
                 .shared_bytes = sizeof(BiasGradientMemory),
                 .copies = with.copies},
                [&] { sum_bias_gradient_kernel<T>(maps, arguments, items); });
  if (arguments.parts > 1)
    emulator::run({.blocks = static_cast<unsigned>(tiles),
                   .threads = BiasGradientMemory::kConsumers,
                   .shared_bytes = sizeof(JoiningMemory),
                   .copies = with.copies},
                  [&] { join_bias_gradient_kernel<T>(maps.gradient, arguments); });
}

template <class T>
void expect_right(Case with, const std::vector<std::int64_t>& bias_shape, TileShape map_tile = {64, 128}) {
  if (with.change == ScoreChange()) with.change = scores::bias();
  with.bias_shape = bias_shape;
  Call<T, 128> call(with, 6);
  run(call, with, map_tile);
  call.expect_accurate(with.name, *call.tensors.grad_bias, call.expected.bias, call.naive.grad_bias);
}

using A = __nv_bfloat16;
using B = __half;
using enum MaskForm;

/// Rows and keys that are no multiple of a tile, so that the last tiles have rows of padding.
TEST(EmulatedHopperBiasGradient, IsThatOfTheReferenceHoweverItIsShared) {
  const Case window{"a window that some rows see nothing of", masks::sliding_window(300, 200, 70), intervals,
                    Copies::late};
  for (const std::int64_t batch : {1, 2})
    for (const std::int64_t heads : {1, 2}) expect_right<A>(window, {batch, heads, 300, 200});
  expect_right<A>({"full", masks::full(150, 328), intervals, Copies::early}, {1, 2, 150, 328}, {128, 128});
  expect_right<B>({.name = "causal, by bits, two query heads for each key head",
                   .mask = masks::causal(200, 264),
                   .form = bits,
                   .copies = Copies::either,
                   .query_heads = 4,
                   .kv_heads = 2},
                  {1, 4, 200, 264}, {64, 64});
  expect_right<A>({.name = "keys a head", .mask = sm80::set_a_head(136), .kv_heads = 2}, {2, 2, 136, 136});
}

TEST(EmulatedHopperBiasGradient, IsThatOfTheReferenceForHeadsOfAnyWidth) {
  for (const std::int64_t dim : {16, 64, 72, 200})
    expect_right<A>({.name = "heads of " + std::to_string(dim),
                     .mask = masks::sliding_window(150, 200, 70),
                     .copies = Copies::late,
                     .head_dim = dim,
                     .value_dim = 40},
                    {1, 2, 150, 200});
}

TEST(EmulatedHopperBiasGradient, VisitsEveryTileWhereAPlanDoes) {
  expect_right<A>({"every tile", masks::causal(140, 200), intervals, Copies::either, Visit::all}, {1, 2, 140, 200});
}

TEST(EmulatedHopperBiasGradient, CapsScoresAheadOfABias) {
  expect_right<A>({.name = "capped", .mask = masks::causal(200, 200), .change = scores::softcap(2) | scores::bias()},
                  {1, 2, 200, 200});
}

/// More than the producer looks at in one go, in one part.
TEST(EmulatedHopperBiasGradient, AddsUpManyHeads) {
  expect_right<A>({.name = "36 heads of two batch entries",
                   .mask = masks::causal(100, 120),
                   .query_heads = 36,
                   .head_dim = 16,
                   .value_dim = 8},
                  {2, 1, 100, 120});
}

}  // namespace
}  // namespace flashmask::cuda::sm90
