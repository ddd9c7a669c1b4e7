// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "emulator/backward_kernels.h"
#include "flashmask/builders.h"

/// The backward's kernels of mma.sync, on the emulator, against the reference.
namespace flashmask::cuda::sm80 {
namespace {

std::vector<Case> cases(int head_dim) {
  using enum MaskForm;
  const std::vector<std::int64_t> documents = {70, 90, 40};
  return {{"full, padded dims", masks::full(150, 200), intervals, Copies::late, Visit::active, 2, 1, head_dim - 8,
           head_dim - 24},
          {"causal", masks::causal(200, 200), intervals, Copies::late},
          {"causal, as bits", masks::causal(130, 260), bits, Copies::early},
          {"a window that some rows see nothing of", masks::sliding_window(200, 150, 70), intervals, Copies::early},
          {"documents as bits, every tile", masks::causal_document(documents, 230), bits, Copies::late, Visit::all},
          {"keys a head", set_a_head(140), intervals, Copies::either, Visit::active, 2, 2}};
}

template <class Way>
class EmulatedBackward : public testing::Test {};

using A = __nv_bfloat16;
using B = __half;
using Ways = testing::Types<
    BySums<LargeColumns<A, 32>>, InTwoPasses<LargeColumns<B, 32>, LargeRows<B, 32>>, BySums<LargeColumns<A, 64>>,
    BySums<LargeColumns<B, 96>>, BySums<LargeColumns<A, 128>>, BySums<RoomyColumns<B, 128>>,
    BySums<ShortColumns<A, 128>>, BySums<LargeColumns<A, 192>>, BySums<RoomyColumns<A, 192>>,
    BySums<LargeColumns<B, 256>>, BySums<CompactColumns<A, 96>>, BySums<CompactColumns<B, 128>>,
    InTwoPasses<LargeColumns<B, 64>, LargeRows<B, 64>>, InTwoPasses<RoomyColumns<A, 128>, LargeRows<A, 128>>,
    InTwoPasses<CompactColumns<B, 128>, CompactRows<B, 128>>, InTwoPasses<RoomyColumns<A, 256>, LargeRows<A, 256>>>;
TYPED_TEST_SUITE(EmulatedBackward, Ways);

TYPED_TEST(EmulatedBackward, HoldsTheBound) {
  unsigned seed = 1;
  for (const Case& with : cases(TypeParam::kHeadDim)) {
    Call<typename TypeParam::Element, TypeParam::kHeadDim> call(with, ++seed);
    TypeParam::run(call, with);
    call.expect_accurate(with.name);
  }
}

TYPED_TEST(EmulatedBackward, GivesGradientsOfKeysInFloat32) {
  const Case with = cases(TypeParam::kHeadDim)[0];
  Call<typename TypeParam::Element, TypeParam::kHeadDim> wide(with, 4), narrow(with, 4);
  wide.tensors.grad_k = like(wide.tensors.grad_k, DType::f32);
  wide.tensors.grad_v = like(wide.tensors.grad_v, DType::f32);
  TypeParam::run(wide, with);
  TypeParam::run(narrow, with);
  expect_that_it_rounds_to(wide.tensors.grad_k, narrow.tensors.grad_k);
  expect_that_it_rounds_to(wide.tensors.grad_v, narrow.tensors.grad_v);
}

TYPED_TEST(EmulatedBackward, DropsWhatTheReferenceDrops) {
  using Way = typename TypeParam::WithDropout;
  const Case few{.name = "a window, part of a larger problem",
                 .mask = masks::sliding_window(150, 200, 70),
                 .dropout = 0.1,
                 .part = true};
  const Case many{.name = "causal, as bits",
                  .mask = masks::causal(130, 150),
                  .form = MaskForm::bits,
                  .query_heads = 4,
                  .kv_heads = 2,
                  .dropout = 0.5};
  for (const Case& with : {few, many}) {
    Call<typename Way::Element, Way::kHeadDim> call(with, 5);
    Way::run(call, with);
    call.expect_accurate(with.name);
  }
}

template <class Way>
void expect_right_with(const Case& with) {
  Call<typename Way::Element, Way::kHeadDim> call(with, 6);
  Way::run(call, with);
  call.expect_accurate(with.name);
}

/// A cap that most scores are close to, one that they are far from, and the first together with dropout.
TYPED_TEST(EmulatedBackward, CapsScoresAsTheReferenceDoes) {
  using Way = typename TypeParam::WithChanges;
  expect_right_with<Way>(
      {.name = "a window", .mask = masks::sliding_window(150, 200, 70), .change = scores::softcap(1)});
  expect_right_with<Way>({.name = "causal, as bits",
                          .mask = masks::causal(130, 150),
                          .form = MaskForm::bits,
                          .change = scores::softcap(50)});
  expect_right_with<typename Way::WithDropout>(
      {.name = "causal with dropout", .mask = masks::causal(130, 150), .dropout = 0.3, .change = scores::softcap(1)});
}

/// Alone, with a softcap, and with dropout. The batch has two entries, and so positions that are not in order.
TYPED_TEST(EmulatedBackward, BiasesScoresByDistance) {
  using Way = typename TypeParam::WithChanges;
  const auto kAlibi = scores::alibi();
  expect_right_with<Way>({.name = "a window", .mask = masks::sliding_window(150, 200, 70), .change = kAlibi});
  expect_right_with<Way>({.name = "causal with a softcap, as bits",
                          .mask = masks::causal(130, 150),
                          .form = MaskForm::bits,
                          .change = scores::softcap(2) | kAlibi});
  expect_right_with<typename Way::WithDropout>(
      {.name = "causal with dropout", .mask = masks::causal(130, 150), .dropout = 0.3, .change = kAlibi});
}

/// Where rows have values of their own, which the batch shares, and where they share a table of distances. A tenth of
/// the values hides its score.
TYPED_TEST(EmulatedBackward, BiasesScoresByTensors) {
  using Way = typename TypeParam::WithChanges;
  expect_right_with<Way>({.name = "a window", .mask = masks::sliding_window(150, 200, 70), .change = scores::bias()});
  expect_right_with<Way>({.name = "causal with a softcap and an odd number of keys, as bits",
                          .mask = masks::causal(130, 151),
                          .form = MaskForm::bits,
                          .change = scores::softcap(2) | scores::bias()});
  expect_right_with<Way>({.name = "causal with a softcap",
                          .mask = masks::causal(70, 136),
                          .copies = Copies::late,
                          .change = scores::softcap(2) | scores::bias()});
  expect_right_with<typename Way::WithDropout>({.name = "causal with dropout, by distance",
                                                .mask = masks::causal(130, 150),
                                                .dropout = 0.3,
                                                .change = scores::distance()});
}

TYPED_TEST(EmulatedBackward, ReadsNoKeysOfSkippedTiles) {
  const Case with{"a window", masks::sliding_window(64, 256, 30)};  // nobody sees the first 162 keys
  Call<typename TypeParam::Element, TypeParam::kHeadDim> call(with, 3);
  for (std::int64_t i = 0; i < 128 * TypeParam::kHeadDim; ++i) {
    call.tensors.k.set(i, NAN);
    call.tensors.v.set(i, INFINITY);
  }
  TypeParam::run(call, with);
  call.expect_accurate(with.name);
}

}  // namespace
}  // namespace flashmask::cuda::sm80
