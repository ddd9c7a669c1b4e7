// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <memory>

#include "flashmask/error.h"
#include "flashmask/schedule.h"
#include "schedule/random_mask.h"
#include "schedule/tile_kinds.h"

namespace flashmask {
namespace {

/// Every column masks the same rows.
LoweredMask masked(std::int64_t rows, std::int64_t columns, Interval a, Interval b = {}) {
  auto mask = std::make_shared<IntervalMask>(MaskShape{1, 1, rows, columns});
  for (std::int64_t j = 0; j < columns; ++j) mask->set(mask->index(0, 0, j), a, b);
  return {std::move(mask), "test"};
}

TEST(Classify, NothingMaskedIsFull) { EXPECT_EQ(classify(masked(8, 8, {}), 0, 0, {4, 4}, 1, 1), TileKind::full); }

TEST(Classify, AllMaskedIsSkip) { EXPECT_EQ(classify(masked(8, 8, {4, 8}), 0, 0, {4, 4}, 1, 0), TileKind::skip); }

TEST(Classify, TwoRangesThatCoverATileTogetherAreSkip) {
  EXPECT_EQ(classify(masked(8, 8, {0, 6}, {6, 8}), 0, 0, {4, 4}, 1, 0), TileKind::skip);
  EXPECT_EQ(classify(masked(8, 8, {0, 6}, {5, 8}), 0, 0, {4, 4}, 1, 0), TileKind::skip);
}

TEST(Classify, OneVisibleRowBetweenTwoRangesIsPartial) {
  EXPECT_EQ(classify(masked(8, 8, {0, 5}, {6, 8}), 0, 0, {4, 4}, 1, 0), TileKind::partial);
}

TEST(Classify, ColumnsWhollyMaskedBesideColumnsWhollyVisibleArePartial) {
  auto mask = std::make_shared<IntervalMask>(MaskShape{1, 1, 4, 4});
  mask->set(0, {0, 4}, {});
  EXPECT_EQ(classify({mask, "test"}, 0, 0, {4, 4}, 0, 0), TileKind::partial);
}

TEST(Classify, RaggedTileEndsWhereTheMaskEnds) {
  EXPECT_EQ(classify(masked(6, 5, {4, 6}), 0, 0, {4, 4}, 1, 1), TileKind::skip);
  EXPECT_EQ(classify(masked(6, 5, {0, 4}), 0, 0, {4, 4}, 1, 1), TileKind::full);
}

TEST(Classify, EqualsBruteForceOnRandomMasks) {
  RandomMasks masks(1);
  for (int round = 0; round < 500; ++round) {
    const TileShape tile{static_cast<std::int32_t>(1 + masks.below(20)), static_cast<std::int32_t>(1 + masks.below(9))};
    const MaskShape shape{1 + masks.below(2), 1 + masks.below(2), 1 + masks.below(40), 1 + masks.below(30)};
    const RandomMask mask = masks.next(shape, tile);
    const std::int64_t b = shape.batch - 1;
    const std::int64_t h = shape.heads - 1;
    TileKinds expected = brute_force_kinds(mask.dense, b, h, tile);
    for (std::int64_t i = 0; i < expected.rows; ++i) {
      for (std::int64_t j = 0; j < expected.columns; ++j) {
        ASSERT_EQ(classify(mask.lowered, b, h, tile, i, j), expected.at(i, j)) << "round " << round;
      }
    }
  }
}

TEST(Classify, RefusesATileOutsideTheMask) {
  const LoweredMask mask = masked(8, 8, {});
  EXPECT_THROW(classify(mask, 1, 0, {4, 4}, 0, 0), Error);
  EXPECT_THROW(classify(mask, 0, 1, {4, 4}, 0, 0), Error);
  EXPECT_THROW(classify(mask, 0, 0, {4, 4}, 2, 0), Error);
  EXPECT_THROW(classify(mask, 0, 0, {4, 4}, 0, -1), Error);
  EXPECT_THROW(classify(mask, 0, 0, {0, 4}, 0, 0), Error);
}

TEST(TileKind, HasAName) {
  EXPECT_EQ(to_string(TileKind::skip), "skip");
  EXPECT_EQ(to_string(TileKind::full), "full");
  EXPECT_EQ(to_string(TileKind::partial), "partial");
}

}  // namespace
}  // namespace flashmask
