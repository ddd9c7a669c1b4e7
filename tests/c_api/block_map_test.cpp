// SPDX-License-Identifier: Apache-2.0
#include "flashmask/block_map.h"

#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <vector>

#include "c_api/convert.h"
#include "c_api/handles.h"
#include "flashmask/block_map_builders.h"
#include "flashmask/builders.h"

namespace flashmask::c_api {
namespace {

constexpr flashmask_mask_shape kGiven{1, 2, 100, 200};
constexpr MaskShape kShape{.batch = 1, .heads = 2, .rows = 100, .columns = 200};
constexpr std::int64_t kBlock = 32;  // 4 × 7 blocks

void expect_same(const BlockMapHandle& map, const BlockMap& expected) {
  const MaskHandle mask = make(flashmask_mask_from_block_map, static_cast<const flashmask_block_map*>(map.get()));
  ASSERT_NE(mask, nullptr);
  EXPECT_EQ(expand(mask->mask), expand(from_block_map(expected)));
}

std::vector<float> some_scores() {
  std::vector<float> scores(2 * 4 * 7);
  for (std::size_t k = 0; k < scores.size(); ++k) scores[k] = static_cast<float>(k * 5 % 13);
  return scores;
}

TEST(BlockMaps, AreThoseOfTheBuilders) {
  expect_same(make_block_map(flashmask_block_map_butterfly, &kGiven, kBlock, 2),
              block_maps::butterfly(kShape, kBlock, 2));
  expect_same(make_block_map(flashmask_block_map_butterfly, &kGiven, kBlock, -1),
              block_maps::butterfly(kShape, kBlock));
  expect_same(make_block_map(flashmask_block_map_strided, &kGiven, kBlock, 3), block_maps::strided(kShape, kBlock, 3));
  expect_same(make_block_map(flashmask_block_map_sliding, &kGiven, kBlock, 2, 1),
              block_maps::sliding(kShape, kBlock, 2, 1));
  expect_same(make_block_map(flashmask_block_map_random, &kGiven, kBlock, 3, std::uint64_t{9}),
              block_maps::random(kShape, kBlock, 3, 9));
  const std::vector<float> scores = some_scores();
  expect_same(make_block_map(flashmask_block_map_best, &kGiven, kBlock, scores.data(), 2),
              block_maps::best(kShape, kBlock, scores, 2));
  expect_same(make_block_map(flashmask_block_map_at_least, &kGiven, kBlock, scores.data(), 6.0F),
              block_maps::at_least(kShape, kBlock, scores, 6));
}

TEST(BlockMaps, KeepWhatTheyAreTold) {
  const flashmask_mask_shape shape{1, 1, 32, 48};
  const std::array<std::uint8_t, 6> keep = {0, 1, 0, 1, 0, 1};
  const BlockMapHandle map = make_block_map(flashmask_block_map_create, &shape, 16, keep.data());
  const MaskHandle causal = make(flashmask_mask_causal, 32, 48);
  const MaskHandle both = make(flashmask_mask_and_block_map, static_cast<const flashmask_mask*>(causal.get()),
                               static_cast<const flashmask_block_map*>(map.get()));
  for (std::int64_t i = 0; i < 32; ++i) {
    for (std::int64_t j = 0; j < 48; ++j) {
      const bool kept = keep[static_cast<std::size_t>(i / 16 * 3 + j / 16)] != 0;
      EXPECT_EQ(both->mask.visible(0, 0, i, j), kept && j <= i + 16) << i << " " << j;
    }
  }
}

TEST(BlockMaps, RefuseWhatTheBuildersRefuse) {
  flashmask_block_map* map = nullptr;
  const std::array<std::uint8_t, 1> keep = {2};
  const flashmask_mask_shape one{1, 1, 16, 16};
  expect_refused(flashmask_block_map_create(&one, 16, keep.data(), &map), FLASHMASK_INVALID_ARGUMENT, "keep[0] is 2");
  expect_refused(flashmask_block_map_create(&one, 16, nullptr, &map), FLASHMASK_INVALID_ARGUMENT, "keep is NULL");
  expect_refused(flashmask_block_map_create(nullptr, 16, keep.data(), &map), FLASHMASK_INVALID_ARGUMENT,
                 "shape is NULL");
  expect_refused(flashmask_block_map_create(&one, 0, std::vector<std::uint8_t>(256).data(), &map),
                 FLASHMASK_INVALID_ARGUMENT, "block is 0");
  expect_refused(flashmask_block_map_strided(&one, 16, 0, &map), FLASHMASK_INVALID_ARGUMENT, "stride is 0");
  expect_refused(flashmask_block_map_strided(&one, 16, 1, nullptr), FLASHMASK_INVALID_ARGUMENT, "map is NULL");
  flashmask_mask* mask = nullptr;
  expect_refused(flashmask_mask_from_block_map(nullptr, &mask), FLASHMASK_INVALID_ARGUMENT, "map is NULL");
  EXPECT_EQ(map, nullptr);
  flashmask_block_map_destroy(nullptr);
}

}  // namespace
}  // namespace flashmask::c_api
