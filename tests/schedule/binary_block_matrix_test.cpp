// SPDX-License-Identifier: Apache-2.0
#include "flashmask/binary_block_matrix.h"

#include <gtest/gtest.h>

#include <vector>

#include "flashmask/builders.h"
#include "flashmask/error.h"
#include "schedule/random_mask.h"
#include "schedule/tile_kinds.h"

namespace flashmask {
namespace {

DenseMask dense(const Mask& mask) { return {mask.shape(), expand(mask)}; }

/// Consecutive full tiles of a row from the first one on, by looking at every score.
struct Ones {
  std::int32_t total = 0, offset = 0;
};
Ones brute_force_ones(TileKinds& kinds, std::int64_t row) {
  std::int64_t first = 0;
  while (first < kinds.columns && kinds.at(row, first) != TileKind::full) ++first;
  if (first == kinds.columns) return {};
  std::int64_t end = first;
  while (end < kinds.columns && kinds.at(row, end) == TileKind::full) ++end;
  return {static_cast<std::int32_t>(end - first), static_cast<std::int32_t>(first)};
}

void expect_brute_force(const Mask& mask, TileShape tile) {
  const TileSchedule tiles = schedule(lower(mask), tile);
  const DenseMask scores = dense(mask);
  for (std::int64_t head = 0; head < mask.shape().heads; ++head) {
    const BinaryBlockMatrix matrix = binary_block_matrix(tiles, 0, head);
    TileKinds kinds = brute_force_kinds(scores, 0, head, tile);
    ASSERT_EQ(matrix.rows, kinds.rows);
    ASSERT_EQ(matrix.columns, kinds.columns);
    for (std::int64_t i = 0; i < kinds.rows; ++i) {
      for (std::int64_t j = 0; j < kinds.columns; ++j) {
        EXPECT_EQ(matrix.at(i, j), kinds.at(i, j) == TileKind::skip ? 0 : 1) << head << " " << i << " " << j;
      }
      const Ones ones = brute_force_ones(kinds, i);
      EXPECT_EQ(matrix.total_ones[static_cast<std::size_t>(i)], ones.total) << head << " " << i;
      EXPECT_EQ(matrix.offset[static_cast<std::size_t>(i)], ones.offset) << head << " " << i;
    }
  }
}

TEST(BinaryBlockMatrix, AgreesWithLookingAtEveryScore) {
  expect_brute_force(masks::causal(300, 300), {64, 32});
  expect_brute_force(masks::window(300, 200, 90, 70), {32, 16});
  expect_brute_force(masks::prefix_lm_causal(300, 100), {32, 32});
  expect_brute_force(stack_heads(std::vector<Mask>{masks::full(100, 130), masks::causal(100, 130)}), {32, 16});
}

/// Rows 0 to 15 see columns 0-15, 32-63 and 80-95: full tiles of 16 with gaps between them.
TEST(BinaryBlockMatrix, CountsOnesUpToTheFirstGap) {
  const auto sees = [](std::int64_t, std::int64_t, std::int64_t i, std::int64_t j) {
    return i >= 16 ? j >= 32 && j < 63 : j < 8 || (j >= 32 && j < 64) || (j >= 80 && j < 96);
  };
  const Mask mask = from_predicate({.batch = 1, .heads = 1, .rows = 32, .columns = 96}, sees);
  const BinaryBlockMatrix matrix = binary_block_matrix(schedule(lower(mask), {16, 16}));
  EXPECT_EQ(matrix.blocks, (std::vector<std::uint8_t>{1, 0, 1, 1, 0, 1,  //
                                                      0, 0, 1, 1, 0, 0}));
  EXPECT_EQ(matrix.total_ones, (std::vector<std::int32_t>{2, 1}));
  EXPECT_EQ(matrix.offset, (std::vector<std::int32_t>{2, 2}));
}

TEST(BinaryBlockMatrix, OfTheBackwardIsThatOfTheTransposedMask) {
  const TileShape tile{32, 16};
  const Mask mask = masks::window(150, 200, 60, 20);
  const BinaryBlockMatrix matrix = binary_block_matrix(schedule(lower(mask), tile), 0, 0, Direction::backward);
  TileKinds kinds = brute_force_kinds(dense(mask), 0, 0, tile);
  ASSERT_EQ(matrix.rows, kinds.columns);
  ASSERT_EQ(matrix.columns, kinds.rows);
  for (std::int64_t i = 0; i < kinds.rows; ++i) {
    for (std::int64_t j = 0; j < kinds.columns; ++j) {
      EXPECT_EQ(matrix.at(j, i), kinds.at(i, j) == TileKind::skip ? 0 : 1) << i << " " << j;
    }
  }
}

TEST(BinaryBlockMatrix, RefusesAHeadThatTheMaskDoesNotHave) {
  const TileSchedule tiles = schedule(lower(masks::causal(64, 64)), {});
  EXPECT_THROW(binary_block_matrix(tiles, 0, 1), Error);
  EXPECT_THROW(binary_block_matrix(tiles, -1, 0), Error);
}

}  // namespace
}  // namespace flashmask
